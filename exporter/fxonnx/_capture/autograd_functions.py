"""Capture of ``torch.autograd.Function``: one with a ``symbolic`` becomes a single opaque operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._context_values import activated, active
from .._own_operators import define_operator

__all__ = ["FunctionCall", "record_function_call", "recorded_function_calls"]


@dataclass
class FunctionCall:
    """One call of ``Function.apply`` in the model.

    Attributes:
        function: The subclass of ``torch.autograd.Function``.
        args: The arguments, with None in place of tensors.
        positions: Indices of the tensors among the arguments.
        is_single: Whether it returns a tensor instead of a tuple; known after it has run.
    """

    function: type[torch.autograd.Function]
    args: tuple[Any, ...]
    positions: tuple[int, ...]
    is_single: bool = True

    @property
    def symbolic(self) -> Callable[..., Any]:
        """The function that emits its ONNX operators."""
        function: Any = self.function
        symbolic: Callable[..., Any] = function.symbolic
        return symbolic

    def with_tensors(self, tensors: list[Any]) -> list[Any]:
        """The arguments, with ``tensors`` in place of the tensors."""
        args = list(self.args)
        for position, tensor in zip(self.positions, tensors, strict=True):
            args[position] = tensor
        return args


@dataclass(frozen=True)
class _Calls:
    """The recorded calls; None if functions run instead of being recorded."""

    found: Sequence[FunctionCall] | None = None


def _run(tensors: list[Tensor], name: str, index: int) -> list[Tensor]:
    """Kernel of ``fxonnx_functions::apply``: run the function.

    Raises:
        RuntimeError: If the operator is called outside of fxonnx, where the function is unknown.
    """
    calls = (active(_Calls) or _Calls()).found
    if calls is None or index >= len(calls):
        raise RuntimeError(f"{name} can only run through the ONNXProgram, which holds the autograd function")
    call = calls[index]
    # Without recorded calls, ``record_function_call`` runs the function instead of recording it again.
    with activated(_Calls()), torch.no_grad():
        function: Any = call.function
        returned = function.apply(*call.with_tensors(list(tensors)))
    call.is_single = isinstance(returned, Tensor)
    outputs = [returned] if call.is_single else list(returned)
    # An operator must not return one of its inputs.
    return [output.clone() if any(output is tensor for tensor in tensors) else output for output in outputs]


_OPERATOR = define_operator("fxonnx_functions::apply(Tensor[] tensors, str name, int index) -> Tensor[]", _run, _run)


def record_function_call(
    original: Callable[..., Any], cls: type[torch.autograd.Function], *args: Any, **kwargs: Any
) -> Any:
    """Replacement of ``Function.apply``: record a function with a ``symbolic`` as a single operator."""
    calls: Any = (active(_Calls) or _Calls()).found
    positions = tuple(index for index, argument in enumerate(args) if isinstance(argument, Tensor))
    if calls is None or not callable(getattr(cls, "symbolic", None)) or not positions or kwargs:
        return original(cls, *args, **kwargs)
    index = len(calls)
    kept = tuple(None if isinstance(argument, Tensor) else argument for argument in args)
    calls.append(FunctionCall(cls, kept, positions))
    tensors = [args[position] for position in positions]
    outputs = torch.ops.fxonnx_functions.apply(tensors, cls.__qualname__, index)
    return outputs[0] if calls[index].is_single else tuple(outputs)


def recorded_function_calls(calls: Sequence[FunctionCall]) -> AbstractContextManager[Any]:
    """Make recorded autograd functions available to their operators inside the context.

    Args:
        calls: The recorded calls; during a capture, a list to which new calls are appended.
    """
    return activated(_Calls(calls))
