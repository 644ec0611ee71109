"""Minimization: smaller programs with the same finding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from .outcome import Finding
from .program import Program
from .python_program import PythonProgram
from .python_reductions import smaller_python
from .worker import Worker

__all__ = ["minimize"]

_CHECKS = 400
"""The largest number of candidates that are checked."""

_Program = TypeVar("_Program", Program, PythonProgram)


def minimize(program: _Program, finding: Finding, worker: Worker) -> _Program:
    """Remove the statements, outputs, sizes, opset and target that a finding does not need from a program.

    Args:
        program: The program.
        finding: The finding to reproduce.
        worker: The process that checks candidates.
    """
    position, failures = 0, 0
    candidates = list(_candidates(program, finding))
    for _ in range(_CHECKS):
        if failures >= len(candidates):
            break
        smaller = candidates[position % len(candidates)]
        if any(found.key == finding.key for found in worker.check(smaller).findings):
            # The next candidates are at about the same positions, and those before it failed a moment ago.
            program, failures = smaller, 0
            candidates = list(_candidates(program, finding))
        else:
            position, failures = (position + 1) % len(candidates), failures + 1
    return program


def _candidates(program: _Program, finding: Finding) -> Iterator[_Program]:
    return smaller_python(program, finding) if isinstance(program, PythonProgram) else _smaller(program, finding)


def _smaller(program: Program, finding: Finding) -> Iterator[Program]:
    """The next candidates, the smallest first."""
    if len(program.outputs) > 1:
        for name in reversed(program.outputs):
            yield program.replaced(outputs=(name,))
    sizes = () if finding.sizes is None else (finding.sizes,)
    if program.sizes != sizes:
        yield program.replaced(sizes=sizes)
    for index in reversed(range(len(program.lines))):
        yield program.replaced(lines=(*program.lines[:index], *program.lines[index + 1 :]))
    if program.target is not None:
        yield program.replaced(target=None)
    if program.opset not in (20, None):
        yield program.replaced(opset=20)
