"""Verdicts in a child process: a crash is a verdict, and so is an export that takes too long."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import asdict
from types import TracebackType

from .judge import Verdict, judge
from .program import Program

__all__ = ["Worker"]

_SECONDS = 60
"""Processor time of one verdict, after which SIGPROF ends the process."""

_WALL_SECONDS = 300

_PROGRAMS = 400
"""A process is restarted after as many programs: torch keeps part of each capture."""


class Worker:
    """A child process that judges programs, restarted after a crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._judged = 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._judged = 0

    def judge(self, program: Program, exporter: str) -> Verdict:
        """The verdict of one program."""
        if self._judged >= _PROGRAMS:
            self.close()
        self._judged += 1
        process = self._process = self._process or _start()
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the worker has no pipes")
        process.stdin.write(json.dumps([program.to_json(), exporter]) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], _WALL_SECONDS)[0]:
            self.close()
            return Verdict("timeout", f"more than {_WALL_SECONDS} s")
        answer = process.stdout.readline()
        if answer:
            return Verdict(**json.loads(answer))
        code = process.wait()
        self.close()
        if code == -signal.SIGPROF:
            return Verdict("timeout", f"more than {_SECONDS} s of processor time")
        return Verdict("crash", f"the process ended with {signal.Signals(-code).name if code < 0 else code}")


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.superset.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def _serve() -> None:
    # Exporters print to the standard output, which is the pipe of the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for line in sys.stdin:
        text, exporter = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        verdict = judge(Program.from_json(text), exporter)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(json.dumps(asdict(verdict)) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
