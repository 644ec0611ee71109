"""The order of attempts to capture a model that asks tensors for their values, from the surest to the loosest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, PendingUnbackedSymbolNotFound

from fxonnx_translations._torch_compat import DataDependentOutputException, DynamicOutputShapeException

from ..._warnings import warn_user
from ...errors import CaptureError
from ..attempts import next_attempt
from ..constraints.specialized_dims import SpecializedDimsError
from .assumption import AssumptionKind, AssumptionLog
from .known_values import KnownValues

__all__ = ["DataDependent", "answer_questions", "is_question"]

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
            if not _may_be_question(error):
                raise
        next_attempt("values that depend on no input are known, and checks that only raise are assumed to pass")
    values = KnownValues(AssumptionLog())
    try:
        return attempt(values)
    except CaptureError as error:
        if not _may_be_question(error):
            raise
        failure = error
    try:
        return rewrite(lambda: attempt(KnownValues(AssumptionLog())), failure)
    except CaptureError as error:
        if isinstance(error, SpecializedDimsError):
            raise
        if data_dependent != "example":
            raise _unanswered(failure, values, error) from failure.__cause__
    return _follow_example(attempt)


def _follow_example(attempt: Callable[[KnownValues | None], _Result]) -> _Result:
    next_attempt("branches on data follow the example")
    values = KnownValues(AssumptionLog(), follow_example=True)
    result = attempt(values)
    followed = values.log.of(AssumptionKind.EXAMPLE)
    if followed:
        warn_user(
            "the model branches on the values of its inputs; the export is valid for inputs that give the same "
            "answers as the example:\n" + "\n".join(f"  {assumption}" for assumption in followed)
        )
    return result


def is_question(error: BaseException | None) -> bool:
    """Whether an error of torch, or one of its causes, is a question about the value of a tensor."""
    return any(isinstance(cause, _QUESTIONS) for cause in _causes(error))


def _may_be_question(error: CaptureError) -> bool:
    """Whether a capture failed because the model asked for a value, or used one where torch requires a number."""
    if isinstance(error, SpecializedDimsError):
        return False
    return any(
        isinstance(cause, _QUESTIONS) or "data-dependent" in str(cause) or "unbacked" in str(cause)
        for cause in _causes(error.__cause__)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _unanswered(question: CaptureError, values: KnownValues, last: CaptureError) -> CaptureError:
    """The error for a question without an answer.

    Args:
        question: The failure of the capture at the question.
        values: The values of that capture.
        last: The failure of rewriting; the question itself if there is nothing to rewrite.
    """
    if question.hint is not None:
        # The error of a library function that fxonnx explains itself.
        return question
    sources = ", ".join(f'"{name}"' for name in _sources(question, values))
    hint = 'pass data_dependent="example" to follow the branch that the example takes'
    if sources:
        hint = f"the value depends on {sources}: {hint}, or frozen=[{sources}] to make it a constant"
    if last is not question and last.hint is not None:
        hint = f"{last.hint}; or {hint}" if not sources else f"{last.hint}; {hint}"
    return CaptureError(
        "the model asks for the value of a tensor, which depends on its inputs:\n"
        f"{last.message}\n"
        "  tried: values that depend on no input, checks that only raise, rewriting to torch.cond and torch.while_loop",
        hint=hint,
    )


def _sources(error: CaptureError, values: KnownValues) -> list[str]:
    cause: BaseException | None = error.__cause__
    while cause is not None:
        condition = getattr(cause, "cond", None)
        if condition is not None and hasattr(condition, "free_symbols"):
            return sorted(values.sources_of(condition))
        cause = cause.__cause__ or cause.__context__
    return []
