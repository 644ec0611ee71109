"""Blocks of torchao's affine quantization over tensors of dynamic sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx.experimental.symbolic_shapes import statically_known_true

__all__ = ["reduction_axes"]

_Original = Callable[[Sequence[Any], Sequence[Any]], tuple[list[Any], list[int]]]


def reduction_axes(original: _Original, block_size: Sequence[Any], input_size: Sequence[Any]) -> Any:
    """``_get_reduction_params`` without guards on dynamic sizes: the shape by blocks, and the axes within blocks.

    torch specializes sizes other than 1 where a block is one element or the whole axis: the reduction over an axis of size
    1 returns its elements.
    """
    shape: list[Any] = []
    inner: list[int] = []
    for block, size in zip(block_size, input_size, strict=True):
        if isinstance(block, int) and block == 1:
            shape.append(size)
        elif statically_known_true(block == size):
            inner.append(len(shape))
            shape.append(size)
        elif isinstance(block, int) and isinstance(size, int):
            parts, axes = original([block], [size])
            inner.extend(len(shape) + axis for axis in axes)
            shape.extend(parts)
        else:
            return original(block_size, input_size)
    return shape, inner
