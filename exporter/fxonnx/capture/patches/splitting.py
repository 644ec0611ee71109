"""Sections of a tensor whose sizes are expressions, without a branch on the size of the example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["tensor_split"]


def tensor_split(
    original: Callable[..., Any], self: torch.Tensor, sections: int | torch.SymInt, dim: int = 0
) -> list[torch.Tensor]:
    """aten::tensor_split.sections(Tensor(a -> *) self, SymInt sections, int dim=0) -> Tensor(a)[]

    The first ``size % sections`` sections are longer by one element.
    """
    size = self.shape[dim] if self.dim() else None
    if not isinstance(size, torch.SymInt) or not isinstance(sections, int) or sections < 1:
        return list(original(self, sections, dim))
    parts, start = [], 0
    for section in range(sections):
        length = (size + sections - 1 - section) // sections
        parts.append(self.narrow(dim, start, length))
        start = start + length
    return parts
