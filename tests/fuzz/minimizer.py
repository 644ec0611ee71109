"""Minimization: smaller programs with the same finding."""

from __future__ import annotations

from collections.abc import Iterator

from .check import Finding
from .program import Program
from .worker import Worker

__all__ = ["minimize"]


def minimize(program: Program, finding: Finding, worker: Worker) -> Program:
    """Remove the outputs, lines, sizes, opset and target that a finding does not need from a program.

    Args:
        program: The program.
        finding: The finding to reproduce.
        worker: The process that checks candidates.
    """
    while True:
        for smaller in _smaller(program, finding):
            if any(found.key == finding.key for found in worker.check(smaller).findings):
                program = smaller
                break
        else:
            return program


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
