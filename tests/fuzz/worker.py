"""Checks in a child process: a crash of ONNX Runtime is a finding and does not end the run."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from dataclasses import asdict
from types import TracebackType

from .check import check
from .outcome import Finding, Outcome
from .program import Program
from .python_check import check_python
from .python_program import PythonProgram
from .state_check import check_state

__all__ = ["Worker"]

_SECONDS = 60
"""Processor time of one check, after which the process is ended by SIGPROF."""


class Worker:
    """A child process that checks programs, restarted after a crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

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

    def check(self, program: Program | PythonProgram) -> Outcome:
        """The outcome of one program; a crash is also an outcome."""
        process = self._process = self._process or _start()
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the worker has no pipes")
        process.stdin.write(program.to_json() + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if answer:
            return _outcome(answer)
        code = process.wait()
        self._process = None
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if code == -signal.SIGPROF:
            return Outcome((Finding("timeout", f"more than {_SECONDS} s of processor time"),))
        return Outcome((Finding("crash", f"the process ended with {name}"),))


def _start() -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.fuzz.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )


def _outcome(text: str) -> Outcome:
    fields = json.loads(text)
    findings = tuple(
        Finding(one["kind"], one["text"], None if one["sizes"] is None else tuple(one["sizes"]))
        for one in fields["findings"]
    )
    sizes = {name: tuple(map(tuple, fields[name])) for name in ("refused", "unstable")}
    return Outcome(findings, fields["status"], limited=tuple(fields["limited"]), **sizes)


def _serve() -> None:
    """Read programs from standard input and write outcomes to standard output, one line each."""
    # Crashes are expected here: write no core dumps.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # Other writes to standard output must not mix with the outcomes.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        outcome = _checked(line)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(json.dumps(asdict(outcome)) + "\n")
        answers.flush()


def _checked(line: str) -> Outcome:
    kind = json.loads(line)["kind"]
    if kind in ("python", "state"):
        return (check_state if kind == "state" else check_python)(PythonProgram.from_json(line))
    return check(Program.from_json(line))


if __name__ == "__main__":
    _serve()
