"""The order of attempts to capture a model that asks tensors for their values, from the surest to the loosest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, PendingUnbackedSymbolNotFound

from fxonnx_translations._torch_compat import DataDependentOutputException, DynamicOutputShapeException

from ..._warnings import warn_user
from ...errors import CaptureError
from ..constraints.specialized_dims import SpecializedDimsError
from .assumption import AssumptionLog, Rung
from .known_values import KnownValues

__all__ = ["DataDependent", "answer_questions"]

DataDependent = Literal["error", "example"]
"""Treatment of branches on the values of inputs: an error, or the branch of the example."""

_QUESTIONS = (
    GuardOnDataDependentSymNode,
    PendingUnbackedSymbolNotFound,
    DataDependentOutputException,
    DynamicOutputShapeException,
)
_Result = TypeVar("_Result")


def answer_questions(
    attempt: Callable[[KnownValues | None], _Result],
    rewrite: Callable[[Callable[[], _Result], CaptureError], _Result],
    *,
    from_start: bool,
    data_dependent: DataDependent,
) -> _Result:
    """Capture a model; if it asks for the value of a tensor, capture it again with more answers.

    Args:
        attempt: Function that captures the model with the given answers.
        rewrite: Function that repeats a failed attempt with rewritten control flow; raises the failure itself if there
            is none to rewrite.
        from_start: Whether the first attempt already has the values of constants.
        data_dependent: Whether the last attempt follows the example.

    Raises:
        CaptureError: If all attempts fail; the error names the question and the option that would answer it.
    """
    if not from_start:
        try:
            return attempt(None)
        except CaptureError as error:
            if not _is_question(error):
                raise
    values = KnownValues(AssumptionLog())
    try:
        return attempt(values)
    except CaptureError as error:
        if not _is_question(error):
            raise
        failure = error
    try:
        return rewrite(lambda: attempt(KnownValues(AssumptionLog())), failure)
    except CaptureError as error:
        if data_dependent != "example":
            raise (_unanswered(failure, values) if error is failure else error) from error.__cause__
    return _follow_example(attempt)


def _follow_example(attempt: Callable[[KnownValues | None], _Result]) -> _Result:
    values = KnownValues(AssumptionLog(), follow_example=True)
    result = attempt(values)
    followed = values.log.of(Rung.EXAMPLE)
    if followed:
        warn_user(
            "the model branches on the values of its inputs; the export is valid for inputs that give the same "
            "answers as the example:\n" + "\n".join(f"  {assumption}" for assumption in followed)
        )
    return result


def _is_question(error: CaptureError) -> bool:
    """Whether a capture failed because the model asked for a value."""
    if isinstance(error, SpecializedDimsError):
        return False
    cause = error.__cause__
    while cause is not None:
        if isinstance(cause, _QUESTIONS) or "data-dependent" in str(cause) or "unbacked" in str(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _unanswered(error: CaptureError, values: KnownValues) -> CaptureError:
    """The error for a question without an answer; one with a hint of its own is complete."""
    if error.hint is not None:
        return error
    sources = _sources(error, values)
    hint = 'pass data_dependent="example" to follow the branch that the example takes'
    if sources:
        names = ", ".join(f'"{name}"' for name in sources)
        hint = f"the value depends on {names}: pass frozen=[{names}] to make it a constant, or " + hint.removeprefix(
            "pass "
        )
    return CaptureError(
        "the model asks for the value of a tensor, which depends on its inputs:\n" + error.message, hint=hint
    )


def _sources(error: CaptureError, values: KnownValues) -> list[str]:
    cause: BaseException | None = error.__cause__
    while cause is not None:
        condition = getattr(cause, "cond", None)
        if condition is not None and hasattr(condition, "free_symbols"):
            return sorted(values.sources_of(condition))
        cause = cause.__cause__ or cause.__context__
    return []
