"""Facts about sizes, which may be symbolic: they hold at every size, or are unknown.

Python's own comparisons and conversions decide a symbolic size for the example, and raise an error if it depends on
data. No pass may fail for a size that it does not know.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

__all__ = ["element_count", "expression", "is_known", "known_size", "same_shape", "same_size"]


def expression(size: int | torch.SymInt) -> Any:
    """A size as a number or a symbolic expression."""
    return size if isinstance(size, int) else size.node.expr


def known_size(size: int | torch.SymInt) -> int | None:
    """A size as a number; None if it is symbolic."""
    return size if isinstance(size, int) else size.node.maybe_as_int()


def element_count(tensor: torch.Tensor) -> int | None:
    """The number of elements of a tensor; None if it is symbolic."""
    return known_size(tensor.numel())


def is_known(condition: bool | torch.SymBool) -> bool:
    """Whether a condition on sizes holds at every size, without adding a guard."""
    return statically_known_true(condition)


def same_size(left: int | torch.SymInt, right: int | torch.SymInt) -> bool:
    """Whether two sizes have the same number or expression, and hence are equal at every size."""
    return bool(expression(left) == expression(right))


def same_shape(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors have the same rank and, at every size, the same sizes."""
    return left.dim() == right.dim() and all(map(same_size, left.shape, right.shape))
