"""The answer of ``torch.compiler.is_compiling`` to a model, whose branch for torch.export may be the one that fails."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ..._context_values import activated, active
from ..suspicions.departures import DepartureKind, record_departure

__all__ = ["CompilingState", "answer_is_compiling", "recorded_compiling_state"]

_OWN = ("fxonnx.", "fxonnx_translations.")


@dataclass
class CompilingState:
    """Whether a model asks if it is compiled.

    Attributes:
        is_asked: Whether the model, or a library other than torch, has asked.
        is_eager: Whether the answer is the one of eager mode.
    """

    is_asked: bool = False
    is_eager: bool = False


def recorded_compiling_state(*, is_eager: bool) -> AbstractContextManager[CompilingState]:
    """Record inside the context whether the model asks, and answer as in eager mode if requested."""
    return activated(CompilingState(is_eager=is_eager))


def answer_is_compiling(original: Callable[[], bool]) -> bool:
    """``is_compiling`` in the tracing thread: torch's own functions get its answer, others the recorded state's.

    BigBird-Pegasus of transformers 4.57 makes a causal mask that is a column too long if a program is compiled.
    """
    state, value = active(CompilingState), original()
    if state is None or not value:
        return value
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OWN):
        frame = frame.f_back
    if frame.f_globals.get("__name__", "").partition(".")[0] == "torch":
        return value
    state.is_asked = True
    if state.is_eager:
        record_departure(DepartureKind.REPLACED, "torch.compiler.is_compiling", frame)
    return not state.is_eager
