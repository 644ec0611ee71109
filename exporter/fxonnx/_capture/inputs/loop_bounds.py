"""Tensor inputs used as Python loop bounds (``for i in range(n)``)."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from fxonnx_translations._torch_compat import pytree

from ..._context_values import assigned
from ..constraints.guard_recorder import user_line

__all__ = ["ExampleIntegers", "example_index", "recorded_loop_bounds", "register_example_integers"]


@dataclass
class ExampleIntegers:
    """The integer tensors among the example inputs of the current capture.

    Attributes:
        known: ``id`` of the traced tensor to leaf index and value of the example.
        used: Leaf index to value of the inputs that were used as a Python integer.
        places: The lines that use them (``file.py:12 in forward``).
    """

    known: dict[int, tuple[int, int]] = field(default_factory=dict)
    used: dict[int, int] = field(default_factory=dict)
    places: dict[str, None] = field(default_factory=dict)


_numbers: ContextVar[ExampleIntegers | None] = ContextVar("fxonnx_example_numbers", default=None)


def recorded_loop_bounds() -> AbstractContextManager[ExampleIntegers]:
    """Record the inputs that the model uses as Python integers inside the context.

    Yields:
        The record; filled while the context is active.
    """
    return assigned(_numbers, ExampleIntegers())


def example_index(original: Callable[[torch.Tensor], int], tensor: torch.Tensor) -> int:
    """Replacement of ``Tensor.__index__``: return the example value of an input."""
    numbers = _numbers.get()
    known = None if numbers is None else numbers.known.get(id(tensor))
    if numbers is None or known is None:
        return original(tensor)
    numbers.used[known[0]] = known[1]
    line = user_line(sys._getframe(1))
    if line is not None:
        numbers.places[line.place] = None
    return known[1]


def register_example_integers(given: Any, examples: Sequence[Any]) -> None:
    """Associate the traced tensors of a call with the integers among the example inputs.

    Args:
        given: Positional and keyword arguments of the traced call.
        examples: The leaves of the example inputs.
    """
    numbers = _numbers.get()
    if numbers is None:
        return
    # Traced tensors of an earlier attempt may be freed and their ids reused.
    numbers.known.clear()
    leaves = zip(pytree.tree_leaves(given), examples, strict=False)
    for position, (leaf, example) in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and _is_integer(example):
            numbers.known[id(leaf)] = (position, operator.index(example.item()))


def _is_integer(example: Any) -> bool:
    return (
        isinstance(example, torch.Tensor)
        and not example.is_meta
        and type(example) is torch.Tensor
        and example.numel() == 1
        and not (example.is_floating_point() or example.is_complex() or example.dtype == torch.bool)
    )
