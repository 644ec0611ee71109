"""Worker processes that may die: a task that crashes or hangs costs that task only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from queue import Empty, Queue
from typing import Any

__all__ = ["Worker", "sweep"]

TASK_SECONDS = 120


class Worker:
    """A process that answers each task, a line of JSON, with a line of JSON.

    Args:
        command: Module and arguments of the process.
        seconds: Time limit of a task.
    """

    def __init__(self, command: Sequence[str], seconds: float = TASK_SECONDS) -> None:
        self._command = command
        self._seconds = seconds
        self._process: subprocess.Popen[str] | None = None

    def do(self, task: Any) -> dict[str, Any] | int:
        """Return the result of one task, or the exit code of the process that died of it."""
        process = self._process or self._start()
        self._process = process
        timer = threading.Timer(self._seconds, process.kill)
        timer.start()
        try:
            print(json.dumps(task), file=process.stdin, flush=True)
            line = process.stdout.readline() if process.stdout is not None else ""
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if line:
            return json.loads(line)  # type: ignore[no-any-return]
        self._process = None
        return process.wait()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", *self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()


def sweep(
    tasks: Sequence[Any], processes: int, command: Sequence[str], seconds: float = TASK_SECONDS
) -> Iterator[tuple[Any, dict[str, Any] | int]]:
    """Yield all tasks with their results, in the order in which they are done.

    Args:
        tasks: The tasks.
        processes: Number of worker processes.
        command: Module and arguments of a worker.
        seconds: Time limit of a task.
    """
    waiting: Queue[Any] = Queue()
    done: Queue[tuple[Any, dict[str, Any] | int]] = Queue()
    for task in tasks:
        waiting.put(task)

    def serve() -> None:
        worker = Worker(command, seconds)
        while True:
            try:
                task = waiting.get_nowait()
            except Empty:
                break
            done.put((task, worker.do(task)))
        worker.close()

    for _ in range(processes):
        threading.Thread(target=serve, daemon=True).start()
    for _ in tasks:
        yield done.get()
