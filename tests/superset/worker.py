"""Verdicts in a child process: a crash is a verdict, and so is an export that takes too long."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict

from ..child import SECONDS, Child, ended, serve
from .judge import Verdict, judge
from .program import Program

__all__ = ["Worker"]

_WALL_SECONDS = 300

_PROGRAMS = 400
"""A process is restarted after as many programs: torch keeps part of each capture."""


class Worker(Child):
    """A child process that judges programs, restarted after a crash."""

    def __init__(self) -> None:
        super().__init__("tests.superset.worker")
        self._judged = 0

    def __enter__(self) -> Worker:
        return self

    def judge(self, program: Program, exporter: str) -> Verdict:
        """The verdict of one program."""
        if self._judged >= _PROGRAMS:
            self.close()
            self._judged = 0
        self._judged += 1
        try:
            answer = self.ask(json.dumps([program.to_json(), exporter]), _WALL_SECONDS)
        except TimeoutError as error:
            return Verdict("timeout", str(error))
        if isinstance(answer, str):
            return Verdict(**json.loads(answer))
        if answer == -signal.SIGPROF:
            return Verdict("timeout", f"more than {SECONDS} s of processor time")
        return Verdict("crash", f"the process ended with {ended(answer)}")


def _judged(line: str) -> str:
    text, exporter = json.loads(line)
    return json.dumps(asdict(judge(Program.from_json(text), exporter)))


if __name__ == "__main__":
    serve(_judged)
