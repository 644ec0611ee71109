"""A child process that answers lines, one each: a crash of it is an answer too, and does not end the run."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from types import TracebackType

__all__ = ["SECONDS", "Child", "ended", "serve"]

SECONDS = 60
"""Processor time of one answer, after which SIGPROF ends the process."""


class Child:
    """A process of ``python -m module``, which calls ``serve``; it is started for the first line and after a crash.

    Args:
        module: The name of the module.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ask(self, line: str, seconds: float | None = None) -> str | int:
        """The answer to a line, or the exit code of the process that ended.

        Args:
            line: The line.
            seconds: How long to wait.

        Raises:
            TimeoutError: If the answer takes longer.
        """
        process = self._process = self._process or _start(self._module)
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the child process has no pipes")
        process.stdin.write(line + "\n")
        process.stdin.flush()
        if seconds is not None and not select.select([process.stdout], [], [], seconds)[0]:
            self.close()
            raise TimeoutError(f"more than {seconds} s")
        answer = process.stdout.readline()
        if answer:
            return answer
        code = process.wait()
        self._process = None
        return code


def ended(code: int) -> str:
    """How a process ended, in words."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _start(module: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def serve(answered: Callable[[str], str]) -> None:
    """Read lines from standard input, and write the answer to each to standard output."""
    # Crashes are expected here: write no core dumps.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "w")
    # Whatever else is printed must not mix with the answers.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        answer = answered(line)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(answer + "\n")
        answers.flush()
