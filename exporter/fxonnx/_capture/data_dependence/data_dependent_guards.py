"""Failures at data-dependent guards: the model asks for the value of a tensor."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, PendingUnbackedSymbolNotFound

from fxonnx_translations._torch_compat import DataDependentOutputException, DynamicOutputShapeException

from ...errors import CaptureError
from ..constraints.specialized_dims import SpecializedDimsError
from .concrete_values import ConcreteValues

__all__ = ["inputs_of_guard", "is_data_dependent", "may_be_data_dependent", "unresolved_error"]

_GUARDS = (
    GuardOnDataDependentSymNode,
    PendingUnbackedSymbolNotFound,
    DataDependentOutputException,
    DynamicOutputShapeException,
)


def is_data_dependent(error: BaseException | None) -> bool:
    """Whether an error of torch, or one of its causes, stems from a guard on the value of a tensor."""
    return any(isinstance(cause, _GUARDS) for cause in _causes(error))


def may_be_data_dependent(error: CaptureError) -> bool:
    """Whether a capture failed at a guard on the value of a tensor, or used one where torch requires a number."""
    if isinstance(error, SpecializedDimsError):
        return False
    return any(
        isinstance(cause, _GUARDS) or "data-dependent" in str(cause) or "unbacked" in str(cause)
        for cause in _causes(error.__cause__)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def inputs_of_guard(error: CaptureError, values: ConcreteValues | None) -> tuple[str, ...]:
    """Labels of the inputs that the condition of a failed guard depends on.

    Args:
        error: The failure.
        values: The concrete values of that attempt; None without any.
    """
    for cause in _causes(error.__cause__):
        condition = getattr(cause, "cond", None)
        if values is not None and condition is not None and hasattr(condition, "free_symbols"):
            return tuple(sorted(values.sources_of(condition)))
    return ()


_LAMBDA = re.compile(r"  at: .* in <lambda>: .*\b(if|for|and|or|not)\b")


def unresolved_error(
    guard: CaptureError, inputs: tuple[str, ...], last: CaptureError, states: frozenset[str]
) -> CaptureError:
    """The error for a guard that no strategy resolves.

    Args:
        guard: The failure at the guard.
        inputs: Labels of the inputs that its condition depends on.
        last: The failure of the last attempt with rewritten control flow; ``guard`` itself without one.
        states: FQNs of the parameters and buffers that are inputs, among these labels.
    """
    if guard.hint is not None:
        # The error of a library function that fxonnx explains itself.
        return guard
    names = ", ".join(f'"{name}"' for name in inputs)
    hint = 'pass data_dependent="example" to follow the branch that the example takes'
    if names:
        constants = f"frozen=[{names}]" if states.isdisjoint(inputs) else 'state="outputs"'
        hint = f"the value depends on {names}: {hint}, or {constants} to make it a constant"
    if last is guard and _LAMBDA.search(last.message):
        hint = f"a branch or loop is captured in a function with def, and not in a lambda; {hint}"
    if last is not guard and last.hint is not None:
        hint = f"{last.hint}; or {hint}" if not names else f"{last.hint}; {hint}"
    error = CaptureError(
        "the model asks for the value of a tensor, which depends on its inputs:\n"
        f"{last.message}\n"
        "  tried: values that depend on no input, checks that only raise, rewriting to torch.cond and torch.while_loop",
        hint=hint,
    )
    error.__cause__ = guard.__cause__
    return error
