"""Functions of torch that take numbers where models pass sizes: a number of classes, the size of a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fxonnx_translations._torch_compat import arange, check, sym_max

from ..patch import FunctionPatch, Patch

__all__ = ["ARGUMENT_PATCHES"]


def _one_hot(original: Callable[..., Tensor], tensor: Tensor, num_classes: Any = -1) -> Tensor:
    """``F.one_hot`` with a number of classes that is a size."""
    if not isinstance(num_classes, torch.SymInt):
        return original(tensor, num_classes)
    return (tensor.unsqueeze(-1) == arange(num_classes, device=tensor.device)).to(torch.int64)


def _adaptive_avg_pool1d(original: Callable[..., Tensor], input: Tensor, output_size: Any) -> Tensor:
    """``F.adaptive_avg_pool1d`` with a dynamic size of the result, as the pooling of images of height 1."""
    (size,) = output_size if isinstance(output_size, Sequence) else (output_size,)
    if not isinstance(size, torch.SymInt):
        return original(input, output_size)
    sizes: Any = (1, size)
    return torch.nn.functional.adaptive_avg_pool2d(input.unsqueeze(-2), sizes).squeeze(-2)


def _adaptive_max_pool(
    rank: int, original: Callable[..., Any], input: Tensor, output_size: Any, return_indices: bool = False
) -> Any:
    """``F.adaptive_max_pool2d`` and its relatives with a dynamic size of the result, one axis after the other."""
    sizes = tuple(output_size) if isinstance(output_size, Sequence) else (output_size,) * rank
    is_dynamic = any(isinstance(size, torch.SymInt) for size in sizes)
    if not is_dynamic or return_indices or len(sizes) != rank:
        return original(input, output_size, return_indices)
    for axis, size in zip(range(-rank, 0), sizes, strict=True):
        input = input if size is None else _greatest_of_windows(input, axis, size)
    return input


def _greatest_of_windows(x: Tensor, axis: int, count: Any) -> Tensor:
    """The maxima of windows of almost equal lengths that cover an axis; the last element of short ones is repeated."""
    size = x.shape[axis]
    index = arange(count, device=x.device)
    first, last = index * size // count, ((index + 1) * size + count - 1) // count - 1
    # At most ceil(size / count) + 1 elements. It is evident that there are some, also if there are no windows.
    offsets = arange(sym_max((size - 1) // count + 2, 1), device=x.device)
    positions = torch.minimum(first.unsqueeze(1) + offsets, last.unsqueeze(1))
    windows = x.movedim(axis, -1)[..., positions]
    return windows.amax(-1).movedim(-1, axis)


def _triangle_indices(
    is_upper: bool,
    original: Callable[..., Tensor],
    row: Any,
    col: Any,
    offset: Any = 0,
    *,
    dtype: torch.dtype = torch.long,
    device: Any = None,
    **options: Any,
) -> Tensor:
    """``torch.tril_indices`` and ``torch.triu_indices`` of dynamic sizes, as the positions in a mask."""
    if not any(isinstance(number, torch.SymInt) for number in (row, col, offset)):
        return original(row, col, offset, dtype=dtype, device=device, **options)
    differences = arange(col, device=device) - arange(row, device=device).unsqueeze(1)
    below = offset - 1 if is_upper else offset
    found = (differences > below if is_upper else differences <= below).nonzero()
    count = _sum_of_positive(row, below) - _sum_of_positive(row, below - col)
    count = row * col - count if is_upper else count
    check(found.shape[0] == count)
    indices: Tensor = found.T.to(dtype)
    return indices


def _sum_of_positive(count: Any, offset: Any) -> Any:
    """The sum of the positive ones of the numbers from offset + 1 to offset + count."""
    last, before = sym_max(offset + count, 0), sym_max(offset, 0)
    return last * (last + 1) // 2 - before * (before + 1) // 2


ARGUMENT_PATCHES: tuple[Patch, ...] = (
    FunctionPatch("torch.nn.functional:one_hot", _one_hot, "it specializes the number of classes", strict=False),
    FunctionPatch(
        "torch.nn.functional:adaptive_avg_pool1d",
        _adaptive_avg_pool1d,
        "it specializes the size of its result",
        strict=False,
    ),
    *(
        FunctionPatch(
            f"torch.nn.functional:adaptive_max_pool{rank}d",
            partial(_adaptive_max_pool, rank),
            "it specializes the size of its result",
            strict=False,
        )
        for rank in (1, 2, 3)
    ),
    *(
        FunctionPatch(
            f"torch:{name}_indices",
            partial(_triangle_indices, name == "triu"),
            "it specializes the sizes",
            strict=False,
        )
        for name in ("tril", "triu")
    ),
)
