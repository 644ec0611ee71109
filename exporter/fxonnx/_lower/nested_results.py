"""Results of operators that are lists, or have lists inside: ``(Tensor, Tensor[])``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx_ir as ir
import torch

__all__ = ["is_nested", "leaves_of", "nest_like", "nesting"]


def nest_like(val: Any, values: Iterator[ir.Value]) -> Any:
    """Nest the values, one for each tensor, like torch's results."""
    if isinstance(val, (list, tuple)):
        return [nest_like(item, values) for item in val]
    return next(values) if isinstance(val, torch.Tensor) else None


def leaves_of(val: Any) -> list[Any]:
    """The values of a result, in the order of its schema."""
    return [leaf for item in val for leaf in leaves_of(item)] if isinstance(val, (list, tuple)) else [val]


def is_nested(returned: Any) -> bool:
    """Whether it is a list that has lists."""
    return isinstance(returned, (list, tuple)) and any(isinstance(item, (list, tuple)) for item in returned)


def nesting(returned: Any) -> str:
    """The lists of a result, for messages: ``[value, [value, value]]``."""
    return f"[{', '.join(map(nesting, returned))}]" if isinstance(returned, (list, tuple)) else "value"
