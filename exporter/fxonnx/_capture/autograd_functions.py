"""``torch.autograd.Function`` with a ``symbolic`` of its own: kept whole by the capture, not traced into."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["FunctionCall", "call_whole", "called_functions"]


@dataclass
class FunctionCall:
    """One ``Function.apply`` in the model.

    Attributes:
        function: The class.
        args: Its arguments; None where a tensor is.
        positions: Where the tensors are among them.
        is_single: Whether it returns a tensor, not a tuple; known once it has run.
    """

    function: type[torch.autograd.Function]
    args: tuple[Any, ...]
    positions: tuple[int, ...]
    is_single: bool = True

    @property
    def symbolic(self) -> Callable[..., Any]:
        """The function that writes it."""
        function: Any = self.function
        return function.symbolic  # type: ignore[no-any-return]

    def with_tensors(self, tensors: list[Any]) -> list[Any]:
        """The arguments with other tensors."""
        args = list(self.args)
        for position, tensor in zip(self.positions, tensors, strict=True):
            args[position] = tensor
        return args


_calls: ContextVar[Sequence[FunctionCall] | None] = ContextVar("fxonnx_function_calls", default=None)


def _run(tensors: list[Tensor], name: str, index: int) -> list[Tensor]:
    """What the function computes.

    Raises:
        RuntimeError: If the operator is called by itself: only a program of fxonnx knows the function.
    """
    calls = _calls.get()
    if calls is None or index >= len(calls):
        raise RuntimeError(f"{name} can be run by the ONNXProgram only, which knows the function")
    call = calls[index]
    # ``call_whole`` leaves the call alone then.
    token = _calls.set(None)
    try:
        with torch.no_grad():
            function: Any = call.function
            returned = function.apply(*call.with_tensors(list(tensors)))
    finally:
        _calls.reset(token)
    call.is_single = isinstance(returned, Tensor)
    outputs = [returned] if call.is_single else list(returned)
    # An operator may not return what it was given.
    return [output.clone() if any(output is tensor for tensor in tensors) else output for output in outputs]


def _defined() -> Any:
    make: Callable[..., Any] = torch.library.Library
    library = make("fxonnx_functions", "DEF")
    library.define("apply(Tensor[] tensors, str name, int index) -> Tensor[]")
    library.impl("apply", _run, "CompositeExplicitAutograd")
    torch.library.register_fake("fxonnx_functions::apply", _run, lib=library)
    return library


_LIBRARY = _defined()


def call_whole(original: Callable[..., Any], cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
    """``Function.apply`` for the capture: a function with a ``symbolic`` becomes a single operator.

    Args:
        original: ``Function.apply``, for functions without a ``symbolic``.
        cls: The function.
        *args: Its arguments.
        **kwargs: Likewise.
    """
    calls: Any = _calls.get()
    positions = tuple(index for index, argument in enumerate(args) if isinstance(argument, Tensor))
    if calls is None or not callable(getattr(cls, "symbolic", None)) or not positions or kwargs:
        return original(cls, *args, **kwargs)
    index = len(calls)
    kept = tuple(None if isinstance(argument, Tensor) else argument for argument in args)
    calls.append(FunctionCall(cls, kept, positions))
    tensors = [args[position] for position in positions]
    outputs = torch.ops.fxonnx_functions.apply(tensors, cls.__qualname__, index)
    return outputs[0] if calls[index].is_single else tuple(outputs)


@contextmanager
def called_functions(calls: Sequence[FunctionCall]) -> Iterator[None]:
    """For the body, the operators that stand for functions can be run.

    Args:
        calls: The functions; a list, if more are to be added.
    """
    token = _calls.set(calls)
    try:
        yield
    finally:
        _calls.reset(token)
