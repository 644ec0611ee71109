"""Checks in a child process: a crash of ONNX Runtime is a finding and does not end the run."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict

from ..child import SECONDS, Child, ended, serve
from .check import check
from .outcome import Finding, Outcome
from .program import Program
from .python_check import check_python
from .python_program import PythonProgram
from .state_check import check_state

__all__ = ["Worker"]


class Worker(Child):
    """A child process that checks programs, restarted after a crash."""

    def __init__(self) -> None:
        super().__init__("tests.fuzz.worker")

    def __enter__(self) -> Worker:
        return self

    def check(self, program: Program | PythonProgram) -> Outcome:
        """The outcome of one program; a crash is also an outcome."""
        answer = self.ask(program.to_json())
        if isinstance(answer, str):
            return _outcome(answer)
        if answer == -signal.SIGPROF:
            return Outcome((Finding("timeout", f"more than {SECONDS} s of processor time"),))
        return Outcome((Finding("crash", f"the process ended with {ended(answer)}"),))


def _outcome(text: str) -> Outcome:
    fields = json.loads(text)
    findings = tuple(
        Finding(one["kind"], one["text"], None if one["sizes"] is None else tuple(one["sizes"]))
        for one in fields["findings"]
    )
    sizes = {name: tuple(map(tuple, fields[name])) for name in ("refused", "unstable")}
    return Outcome(findings, fields["status"], limited=tuple(fields["limited"]), **sizes)


def _checked(line: str) -> str:
    kind = json.loads(line)["kind"]
    if kind in ("python", "state"):
        outcome = (check_state if kind == "state" else check_python)(PythonProgram.from_json(line))
    else:
        outcome = check(Program.from_json(line))
    return json.dumps(asdict(outcome))


if __name__ == "__main__":
    serve(_checked)
