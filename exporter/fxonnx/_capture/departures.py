"""Departures from plain torch.export: rewritten, resolved, interpreted or replaced code, which has to be proved."""

from __future__ import annotations

import enum
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FrameType

from .._context_values import activated, active
from .._public import public
from .constraints.guard_recorder import SourceLine, user_line

__all__ = ["Departure", "DepartureKind", "is_recording", "record_departure", "recorded_departures"]


@public
class DepartureKind(enum.Enum):
    """How a capture departs from plain torch.export."""

    REWRITTEN = "rewritten control flow"
    """Python control flow that was captured as an operator."""
    RESOLVED = "resolved guard"
    """A data-dependent guard that was resolved without the values of the inputs."""
    SCRIPT = "interpreted TorchScript"
    """A scripted function or module that was interpreted, or a scripted function that ran in its Python form."""
    TRANSFORM = "function transform"
    """A ``torch.func`` transform that was traced as plain operators."""
    REPLACED = "replaced function"
    """A function of torch or of a library that was replaced for this model."""
    STRICT = "strict mode"
    """TorchDynamo captured the model."""
    LAST = "last attempt"
    """Plain torch.export captured a model that every other attempt refused or could not capture."""
    INTROSPECTION = "Python introspection"
    """Code that asks for Python types, identities or modes, which may differ between the capture and eager torch."""


@public
@dataclass(frozen=True)
class Departure:
    """One place in which a capture departs from plain torch.export.

    Attributes:
        kind: The way in which it departs.
        detail: The construct or function.
        line: The line of user code, ``file.py:12 in forward: code``; "" if there is none.
    """

    kind: DepartureKind
    detail: str
    line: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.detail}" + (f" ({self.line})" if self.line else "")


class _Departures(dict[Departure, None]):
    """The departures of a capture, in order and without repetitions."""


def recorded_departures() -> AbstractContextManager[dict[Departure, None]]:
    """Record departures inside the context, after the departures so far of an outer context.

    Yields:
        The departures, in order and without repetitions; filled while the context is active.
    """
    return activated(_Departures(active(_Departures) or {}))


def is_recording() -> bool:
    """Whether departures are recorded."""
    return active(_Departures) is not None


def record_departure(
    kind: DepartureKind, detail: str, frame: FrameType | None = None, line: SourceLine | str | None = None
) -> None:
    """Record a departure for the innermost line of user code; without effect outside of a capture.

    Args:
        kind: The way in which the capture departs.
        detail: The construct or function.
        frame: The frame from which the line is searched; by default the caller's.
        line: The line, if it is known; "" if there is none.
    """
    found = active(_Departures)
    if found is not None:
        if line is None:
            line = user_line(sys._getframe(1) if frame is None else frame)
        found.setdefault(Departure(kind, detail, "" if line is None else str(line)))
