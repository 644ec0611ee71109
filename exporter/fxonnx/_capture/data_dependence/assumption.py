"""Answers that the capture gives when Python asks a tensor for its value, as records for the user."""

from __future__ import annotations

import enum
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from ..._public import public
from ..._user_files import is_user_frame
from ..constraints.guard_recorder import SourceLine, source_line_of
from ..suspicions.departures import Departure, DepartureKind

__all__ = ["Assumption", "AssumptionKind", "AssumptionLog", "asking_frame"]

_TORCH = str(Path(torch.__file__).parent) + "/"
# Directories of torch whose Python code models call, and which may have guards on data as the code of a model has.
_LIBRARY_OF_TORCH = tuple(_TORCH + name for name in ("nn/", "distributions/", "functional.py"))

_MODULE_CALL = _TORCH + "nn/modules/module.py"


@public
class AssumptionKind(enum.Enum):
    """The reason for an answer, from the surest to the loosest."""

    CONSTANT = "constant"
    """The value depends on no input of the program."""
    CHECK = "check"
    """The other branch only raises an error or writes a log message."""
    EXAMPLE = "example"
    """The value is the example inputs'."""
    UNPROVED = "unproved"
    """No input at which the capture was compared with the model reached the line; see ``ONNXProgram.proof``."""


@public
@dataclass(frozen=True)
class Assumption:
    """The resolution of one guard on the value of a tensor.

    Attributes:
        line: The line of code that asked.
        answer: The answer.
        kind: The reason for the answer.
        condition: For ``AssumptionKind.EXAMPLE``, the condition in torch's symbols, which other inputs have to satisfy.
    """

    line: SourceLine | None
    answer: Any
    kind: AssumptionKind
    condition: str = ""

    @property
    def departure(self) -> Departure:
        """The departure from torch.export that the answer is."""
        return Departure(DepartureKind.RESOLVED, self._reason, str(self.line or ""))

    def __str__(self) -> str:
        return f"{self.line or 'unknown line'} -> {self.answer} ({self._reason})"

    @property
    def _reason(self) -> str:
        reason = {
            AssumptionKind.CONSTANT: "does not depend on the inputs",
            AssumptionKind.CHECK: "otherwise the model only raises or logs",
            AssumptionKind.EXAMPLE: "as for the example inputs",
            AssumptionKind.UNPROVED: "not compared with the model",
        }
        return reason[self.kind]


@dataclass
class AssumptionLog:
    """The answers of one capture, in order, without repetitions."""

    assumptions: list[Assumption] = field(default_factory=list)

    def add(self, kind: AssumptionKind, answer: Any, condition: str = "", frame: FrameType | None = None) -> None:
        """Record an answer for the line of code that asks."""
        frame = asking_frame() if frame is None else frame
        line = None
        if frame is not None:
            line = source_line_of(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        assumption = Assumption(line, answer, kind, condition)
        if assumption not in self.assumptions:
            self.assumptions.append(assumption)

    def of(self, kind: AssumptionKind) -> Sequence[Assumption]:
        """The answers with one reason."""
        return [assumption for assumption in self.assumptions if assumption.kind is kind]


def asking_frame() -> FrameType | None:
    """The innermost frame of the model's code, or of the library of torch that it calls."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_user_frame(frame) or (name.startswith(_LIBRARY_OF_TORCH) and name != _MODULE_CALL):
            return frame
        frame = frame.f_back
    return None
