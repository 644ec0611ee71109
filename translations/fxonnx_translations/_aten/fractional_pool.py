"""Pooling over windows that begin at random."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from .._builder.op import Op
from .._builder.symbolic_dims import Dim
from .._registry import translates

INT64 = ir.DataType.INT64


def _begins(op: Op, sample: ir.Value, size: Dim, count: int, kernel: int) -> ir.Value:
    """Where the windows along an axis begin.

    Args:
        op: What to write with.
        sample: Random numbers [batch, channels, 1] from [0, 1), in whose type torch computes, too.
        size: Elements of the axis.
        count: Number of windows.
        kernel: Elements of a window.

    Returns:
        INT64 [batch, channels, count].
    """
    last = op.scalar(size - kernel, INT64)
    end = op.Expand(last, op.Shape(sample))
    if count == 1:
        return end
    dtype = op.dtype_of(sample)
    wide = ir.DataType.DOUBLE if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT

    def rounded(value: ir.Value) -> ir.Value:
        # ONNX Runtime would leave out the rounding between two operators in half precision.
        return op.cast(op.cast(value, dtype), wide)

    number = op.const([float(place) for place in range(count - 1)], wide)
    random = op.cast(sample, wide)
    step = rounded(op.Div(rounded(op.cast(last, wide)), rounded(op.const(float(count - 1), wide))))
    offset = op.cast(rounded(op.Mul(random, step)), INT64)
    places = rounded(op.Mul(rounded(op.Add(random, rounded(number))), step))
    begins = op.Sub(op.cast(places, INT64), offset)
    return op.Concat(begins, end, axis=2)


def _pooled(
    op: Op, value: ir.Value, kernel: Sequence[int], counts: Sequence[int], samples: Sequence[ir.Value]
) -> tuple[ir.Value, ir.Value]:
    """Maxima and their places.

    Args:
        op: What to write with.
        value: [batch, channels, sizes].
        kernel: Elements of a window, per axis.
        counts: Number of windows, per axis.
        samples: Random numbers [batch, channels, 1], per axis.
    """
    batch, channels, *sizes = op.dims(value)
    rank = len(sizes)
    places = None
    for axis, (size, count, length, sample) in enumerate(zip(sizes, counts, kernel, samples, strict=True)):
        begins = _begins(op, sample, size, count, length)
        # Along two axes of its own: the windows, and the elements of each.
        elements = op.Add(op.Unsqueeze(begins, [3]), op.const(list(range(length))))
        others = [2 + other for other in range(2 * rank) if other not in (axis, rank + axis)]
        row = op.Mul(op.Unsqueeze(elements, others), op.scalar(math.prod(sizes[axis + 1 :])))
        places = row if places is None else op.Add(places, row)
    volume = math.prod(kernel)
    spots = op.Reshape(places, [0, 0, -1])
    flat = op.Reshape(value, [0, 0, -1])
    shape = (batch, channels, *counts, volume)
    values = op.reshape(
        op.shaped(op.GatherElements(flat, spots, axis=2), (batch, channels, math.prod(shape[2:]))), shape
    )
    spots = op.reshape(op.shaped(spots, (batch, channels, math.prod(shape[2:]))), shape)
    # torch takes the first of equal elements, and the last NaN.
    unordered = op.cast(op.IsNaN(values), ir.DataType.INT32)
    some = op.cast(op.ReduceMax(unordered, [-1], keepdims=1), ir.DataType.BOOL)
    last = op.ArgMax(unordered, axis=-1, keepdims=1, select_last_index=1)
    chosen = op.Where(some, last, op.ArgMax(values, axis=-1, keepdims=1))
    largest, indices = (op.GatherElements(found, chosen, axis=2 + rank) for found in (values, spots))
    return op.Squeeze(largest, [-1]), op.Squeeze(indices, [-1])


def _fractional(
    op: Op,
    self: ir.Value,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    random_samples: ir.Value,
    order: Sequence[int],
) -> tuple[ir.Value, ir.Value]:
    """torch's number for each axis is the one that ``order`` tells."""
    rank = len(order)
    unbatched = op.rank_of(self) == rank + 1
    value = op.Unsqueeze(self, [0]) if unbatched else self
    samples = [op.Slice(random_samples, [place], [place + 1], [2]) for place in order]
    found = _pooled(op, value, list(kernel_size), list(output_size), samples)
    if unbatched:
        return op.Squeeze(found[0], [0]), op.Squeeze(found[1], [0])
    return found


@translates("aten::fractional_max_pool2d")
def fractional_max_pool2d(
    op: Op, self: ir.Value, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """aten::fractional_max_pool2d(Tensor self, int[2] kernel_size, int[2] output_size, Tensor random_samples) -> (Tensor, Tensor)"""
    return _fractional(op, self, kernel_size, output_size, random_samples, (1, 0))


@translates("aten::fractional_max_pool3d")
def fractional_max_pool3d(
    op: Op, self: ir.Value, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """aten::fractional_max_pool3d(Tensor self, int[3] kernel_size, int[3] output_size, Tensor random_samples) -> (Tensor, Tensor)"""
    return _fractional(op, self, kernel_size, output_size, random_samples, (0, 1, 2))
