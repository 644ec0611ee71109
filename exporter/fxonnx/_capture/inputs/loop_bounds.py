"""Inputs that the model counts with in Python: ``for i in range(n)`` with a tensor ``n``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from fxonnx_translations._torch_compat import pytree

__all__ = ["ExampleNumbers", "counted_inputs", "example_index", "note_examples"]


@dataclass
class ExampleNumbers:
    """The integers among the example inputs, while the model is captured.

    Attributes:
        known: Identity of what stands for an input to its position among the leaves and its value.
        used: Position to value of those that the model has counted with.
    """

    known: dict[int, tuple[int, int]] = field(default_factory=dict)
    used: dict[int, int] = field(default_factory=dict)


_numbers: ContextVar[ExampleNumbers | None] = ContextVar("fxonnx_example_numbers", default=None)


@contextmanager
def counted_inputs() -> Iterator[Mapping[int, int]]:
    """Notes which inputs the model counts with in the body.

    Yields:
        Position among the leaves of the inputs to value of the inputs that were asked.
    """
    numbers = ExampleNumbers()
    token = _numbers.set(numbers)
    try:
        yield numbers.used
    finally:
        _numbers.reset(token)


def example_index(original: Callable[[torch.Tensor], int], tensor: torch.Tensor) -> int:
    """``Tensor.__index__`` for the capture: an input has the value that the example has."""
    numbers = _numbers.get()
    known = None if numbers is None else numbers.known.get(id(tensor))
    if numbers is None or known is None:
        return original(tensor)
    numbers.used[known[0]] = known[1]
    return known[1]


def note_examples(given: Any, examples: Any) -> None:
    """Says which tensors of a call stand for which examples.

    Args:
        given: Positional and keyword arguments of the call.
        examples: Those of the example inputs.
    """
    numbers = _numbers.get()
    if numbers is None:
        return
    # What stood for an input when an earlier attempt was made may be gone, and its identity that of something else.
    numbers.known.clear()
    leaves = zip(pytree.tree_leaves(given), pytree.tree_leaves(examples), strict=False)
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
