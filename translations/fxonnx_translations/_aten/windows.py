"""The elements of windows side by side, for what ONNX Runtime's windowed operators do not compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch

from .._builder.op import Op
from .._builder.symbolic_dims import Dim

__all__ = ["Row", "padded_spatially", "windowed"]


@dataclass(frozen=True)
class Row:
    """The windows along one axis.

    Attributes:
        count: How many there are.
        size: Elements of each.
        stride: From one window to the next.
        dilation: From one element of a window to the next.
        mirrored: Whether the last element of a window comes first.
    """

    count: Dim
    size: Dim
    stride: Dim = 1
    dilation: Dim = 1
    mirrored: bool = False

    def places(self, op: Op) -> ir.Value:
        """The positions of all elements, INT64 [count, size]."""
        count, size, stride, dilation = self.count, self.size, self.stride, self.dilation
        if isinstance(count, int) and isinstance(size, int) and isinstance(stride, int) and isinstance(dilation, int):
            known = torch.arange(size) * dilation
            known = known.flip(0) if self.mirrored else known
            return op.const(torch.arange(count)[:, None] * stride + known)
        first = op.Mul(op.Range(0, op.scalar(self.count), 1), op.scalar(self.stride))
        number = op.Range(0, op.scalar(self.size), 1)
        if self.mirrored:
            number = op.Sub(op.scalar(self.size - 1), number)
        steps = op.Mul(number, op.scalar(self.dilation))
        return op.shaped(op.Add(op.Unsqueeze(first, [1]), steps), (self.count, self.size))


def windowed(op: Op, value: ir.Value, rows: Sequence[Row]) -> ir.Value:
    """Each of the last axes replaced by two: its windows, and the elements of each."""
    position = op.rank_of(value) - len(rows)
    for row in rows:
        dims = op.dims(value)
        value = op.shaped(
            op.Gather(value, row.places(op), axis=position),
            (*dims[:position], row.count, row.size, *dims[position + 1 :]),
        )
        position += 2
    return value


def padded_spatially(op: Op, value: ir.Value, before: Sequence[Dim], after: Sequence[Dim], fill: float = 0) -> ir.Value:
    """The value with numbers around its last axes; negative paddings cut off."""
    if all(pad == 0 for pad in [*before, *after]):
        return value
    dims = op.dims(value)
    lead = len(dims) - len(before)
    inputs = [op.const(fill, op.dtype_of(value))] if fill else []
    padded = op.Pad(value, op.sizes([*[0] * lead, *before, *[0] * lead, *after]), *inputs)
    sizes = [low + size + high for low, size, high in zip(before, dims[lead:], after, strict=True)]
    return op.shaped(padded, (*dims[:lead], *sizes))
