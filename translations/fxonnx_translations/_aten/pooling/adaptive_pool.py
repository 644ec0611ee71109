"""Adaptive and fractional pooling: pooling to a given number of windows.

Window ``i`` of ``n`` over an axis of size ``s`` is ``[floor(i*s/n), ceil((i+1)*s/n))``. If the windows have equal sizes
and distances, a pooling operator has them; if not, the elements of each window are gathered.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir
import sympy
import torch

from ..._builder.dtypes import DOUBLE, FLOAT, HALF_FLOATS, INT64
from ..._builder.op import Op
from ..._builder.symbolic_dims import Dim
from ..._registry import translates
from ..._torch_compat import FloorDiv, Max
from .pool import Windows, batched, max_windows, plane_indices, unbatched

# ---- windows


def _uniform_windows(size: Dim, wanted: Dim) -> tuple[int, int] | None:
    """Return kernel size and stride, if all windows of an axis have the same ones."""
    if size == wanted:
        return 1, 1
    if isinstance(size, int) and isinstance(wanted, int):
        if wanted == 0:
            return None
        starts = [position * size // wanted for position in range(wanted)]
        lengths = {-(-(position + 1) * size // wanted) - starts[position] for position in range(wanted)}
        strides = {after - before for before, after in itertools.pairwise(starts)} or {1}
        # More windows than elements: several windows begin at the same element.
        alike = len(lengths) == len(strides) == 1 and 0 not in strides
        return (lengths.pop(), strides.pop()) if alike else None
    ratio = sympy.simplify(sympy.sympify(size) / wanted)
    return (int(ratio), int(ratio)) if ratio.is_Integer else None


@dataclass(frozen=True)
class _WindowPositions:
    """The elements of each window of an axis.

    Attributes:
        index: Positions, shape (windows, longest window); those after the end of a shorter window are clamped.
        inside: Whether a position belongs to its window, of the same shape, or None if all do.
        length: Number of elements of each window, shape (windows,).
        dims: Shape of ``index``.
    """

    index: ir.Value
    inside: ir.Value | None
    length: ir.Value
    dims: tuple[Dim, Dim]


def _window_positions(op: Op, size: Dim, wanted: Dim) -> _WindowPositions:
    if isinstance(size, int) and isinstance(wanted, int):
        numbers = torch.arange(wanted)
        begin, end = numbers * size // wanted, -(-(numbers + 1) * size // wanted)
        longest = int((end - begin).max())
        places = begin[:, None] + torch.arange(longest)
        inside = places < end[:, None]
        mask = None if bool(inside.all()) else op.const(inside)
        return _WindowPositions(
            op.const(torch.minimum(places, end[:, None] - 1)), mask, op.const(end - begin), (wanted, longest)
        )
    # A symbolic number of windows may be 0 at run time; ONNX Runtime does not divide by that.
    divisor = Max(sympy.Integer(1), sympy.sympify(wanted))
    longest_of_all = FloorDiv(size - 1, divisor) + 2
    number, count = op.scalar(size, INT64), op.scalar(divisor, INT64)
    window = op.shaped(op.Range(0, op.scalar(wanted, INT64), 1), (wanted,))
    first = op.Div(op.Mul(window, number), count)
    last = op.Div(op.Add(op.Mul(op.Add(window, 1), number), op.Sub(count, 1)), count)
    offsets = op.shaped(op.Range(0, op.scalar(longest_of_all, INT64), 1), (longest_of_all,))
    position, limit = op.Add(op.Unsqueeze(first, [1]), offsets), op.Unsqueeze(last, [1])
    dims = (wanted, longest_of_all)
    index = op.shaped(op.Min(position, op.Sub(limit, 1)), dims)
    return _WindowPositions(index, op.shaped(op.Less(position, limit), dims), op.Sub(last, first), dims)


def _gathered(op: Op, value: ir.Value, axis: int, gathering: _WindowPositions) -> ir.Value:
    dims = op.dims(value)
    return op.shaped(op.Gather(value, gathering.index, axis=axis), (*dims[:axis], *gathering.dims, *dims[axis + 1 :]))


# ---- adaptive average pooling


def _mean_over(op: Op, value: ir.Value, axis: int, size: Dim, wanted: Dim) -> ir.Value:
    if wanted == 1:
        return op.ReduceMean(value, [axis], keepdims=1)
    gathering = _window_positions(op, size, wanted)
    elements = _gathered(op, value, axis, gathering)
    if gathering.inside is None:
        return op.ReduceMean(elements, [axis + 1], keepdims=0)
    behind = op.rank_of(value) - axis - 1
    shape = [0, 0, *[1] * behind]
    dtype = op.dtype_of(value)
    inside = op.Where(op.Reshape(gathering.inside, shape), elements, op.const(0, dtype))
    length = op.Reshape(op.cast(gathering.length, dtype), [0, *[1] * behind])
    return op.Div(op.ReduceSum(inside, [axis + 1], keepdims=0), length)


@translates(
    "aten::adaptive_avg_pool1d",
    "aten::adaptive_avg_pool2d",
    "aten::adaptive_avg_pool3d",
    "aten::_adaptive_avg_pool2d",
    "aten::_adaptive_avg_pool3d",
)
def adaptive_avg_pool(op: Op, self: ir.Value, output_size: Sequence[Dim]) -> ir.Value:
    """aten::adaptive_avg_pool1d(Tensor self, int[1] output_size) -> Tensor
    aten::adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor
    aten::adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor
    aten::_adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor
    aten::_adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor
    """
    rank, dtype = len(output_size), op.dtype_of(self)
    value = batched(op, self, rank)
    # ONNX Runtime's pooling has no kernels for BFLOAT16 and DOUBLE; DOUBLE is reduced instead.
    if dtype != DOUBLE and not op.has_kernel("AveragePool", dtype):
        value = op.widened(value, FLOAT)
    sizes = op.dims(value)[2:]
    if all(wanted == 1 for wanted in output_size):
        axes = list(range(2, rank + 2))
        result = op.ReduceMean(value, axes, keepdims=1) if dtype == DOUBLE else op.GlobalAveragePool(value)
        return unbatched(op, op.cast(result, dtype), rank)
    regular = [
        None if dtype == DOUBLE and size != wanted else _uniform_windows(size, wanted)
        for size, wanted in zip(sizes, output_size, strict=True)
    ]
    kernel, strides = zip(*[alike or (1, 1) for alike in regular], strict=True)
    if any(size != 1 for size in kernel):
        value = op.AveragePool(value, kernel_shape=list(kernel), strides=list(strides))
    for axis, alike in enumerate(regular):
        if alike is None:
            value = _mean_over(op, value, axis + 2, sizes[axis], output_size[axis])
    return unbatched(op, op.cast(value, dtype), rank)


# ---- adaptive max pooling


def _window_elements(op: Op, value: ir.Value, gatherings: Sequence[_WindowPositions]) -> ir.Value:
    """(batch, channels, *sizes) -> (batch, channels, *windows, elements of a window)."""
    rank = len(gatherings)
    for axis in reversed(range(rank)):
        value = _gathered(op, value, axis + 2, gatherings[axis])
    value = op.Transpose(value, perm=[0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2)])
    elements: Dim = 1
    for gathering in gatherings:
        elements = elements * gathering.dims[1]
    return op.shaped(
        op.reshape(value, [*op.dims(value)[: 2 + rank], elements]), [*op.dims(value)[: 2 + rank], elements]
    )


def _max_of_elements(op: Op, value: ir.Value, sizes: Sequence[Dim], wanted: Sequence[Dim]) -> list[ir.Value]:
    """Return the maxima of windows of different lengths, and their indices."""
    gatherings = [_window_positions(op, size, count) for size, count in zip(sizes, wanted, strict=True)]
    elements = _window_elements(op, value, gatherings)
    best = op.ArgMax(elements, axis=-1, keepdims=1)
    plane: Dim = 1
    for size in sizes:
        plane = plane * size
    positions = op.shaped(op.Range(0, op.scalar(plane, INT64), 1), (plane,))
    positions = op.shaped(op.Reshape(positions, op.sizes([1, 1, *sizes])), (1, 1, *sizes))
    candidates = op.expand(_window_elements(op, positions, gatherings), op.dims(elements))
    return [
        op.ReduceMax(elements, [-1], keepdims=0),
        op.Squeeze(op.GatherElements(candidates, best, axis=-1), [-1]),
    ]


def _max_of_all(op: Op, value: ir.Value, rank: int) -> tuple[ir.Value, ir.Value]:
    axes = list(range(2, rank + 2))
    # ONNX Runtime's GlobalMaxPool has no kernel for DOUBLE.
    double = op.dtype_of(value) == DOUBLE
    pooled = op.ReduceMax(value, axes, keepdims=1) if double else op.GlobalMaxPool(value)
    best = op.ArgMax(op.Reshape(value, [0, 0, -1]), axis=-1, keepdims=1)
    return pooled, op.Reshape(best, [0, 0, *[1] * rank])


@translates(
    "aten::adaptive_max_pool1d",
    "aten::adaptive_max_pool2d",
    "aten::adaptive_max_pool3d",
)
def adaptive_max_pool(op: Op, self: ir.Value, output_size: Sequence[int]) -> list[ir.Value]:
    """aten::adaptive_max_pool1d(Tensor self, int[1] output_size) -> (Tensor, Tensor)
    aten::adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor)
    aten::adaptive_max_pool3d(Tensor self, int[3] output_size) -> (Tensor, Tensor)
    """
    rank, dtype = len(output_size), op.dtype_of(self)
    value = op.cast(batched(op, self, rank), FLOAT if dtype in HALF_FLOATS else dtype)
    sizes = op.dims(value)[2:]
    if all(wanted == 1 for wanted in output_size):
        pooled, indices = _max_of_all(op, value, rank)
        return [unbatched(op, op.cast(pooled, dtype), rank), unbatched(op, indices, rank)]
    regular = [_uniform_windows(size, wanted) for size, wanted in zip(sizes, output_size, strict=True)]
    alike = [pair for pair in regular if pair is not None]
    if len(alike) == rank:
        kernel, strides = zip(*alike, strict=True)
        windows = Windows(list(kernel), list(strides), [0] * rank, [1] * rank, False)
        # The indices are rarely used, and MaxPool is slower with them: this node is removed as dead code if they are not.
        pooled = max_windows(op, value, windows, 1)[0]
        indices = plane_indices(op, max_windows(op, value, windows, 2)[1], sizes)
    else:
        pooled, indices = _max_of_elements(op, value, sizes, output_size)
    return [unbatched(op, op.cast(pooled, dtype), rank), unbatched(op, indices, rank)]


# ---- fractional max pooling


def _window_starts(op: Op, sample: ir.Value, size: Dim, count: int, kernel: int) -> ir.Value:
    """The first positions of the windows along an axis, INT64 [batch, channels, count]."""
    last = op.scalar(size - kernel, INT64)
    end = op.Expand(last, op.Shape(sample))
    if count == 1:
        return end
    dtype = op.dtype_of(sample)
    wide = ir.DataType.DOUBLE if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT

    def rounded(value: ir.Value) -> ir.Value:
        # ONNX Runtime would skip the rounding between two operators in half precision.
        return op.cast(op.cast(value, dtype), wide)

    number = op.const([float(position) for position in range(count - 1)], wide)
    random = op.cast(sample, wide)
    step = rounded(op.Div(rounded(op.cast(last, wide)), rounded(op.const(float(count - 1), wide))))
    offset = op.cast(rounded(op.Mul(random, step)), INT64)
    places = rounded(op.Mul(rounded(op.Add(random, rounded(number))), step))
    begins = op.Sub(op.cast(places, INT64), offset)
    return op.Concat(begins, end, axis=2)


def _fractional_max(
    op: Op, value: ir.Value, kernel: Sequence[int], counts: Sequence[int], samples: Sequence[ir.Value]
) -> tuple[ir.Value, ir.Value]:
    """Return maxima and their indices."""
    batch, channels, *sizes = op.dims(value)
    rank = len(sizes)
    places = None
    for axis, (size, count, length, sample) in enumerate(zip(sizes, counts, kernel, samples, strict=True)):
        begins = _window_starts(op, sample, size, count, length)
        # Two axes: the windows, and the elements of each.
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
    # torch returns the first of equal elements, and the last NaN.
    chosen = op.ArgMax(values, axis=-1, keepdims=1)
    if op.exact_numerics:
        unordered = op.cast(op.IsNaN(values), ir.DataType.INT32)
        some = op.cast(op.ReduceMax(unordered, [-1], keepdims=1), ir.DataType.BOOL)
        chosen = op.Where(some, op.ArgMax(unordered, axis=-1, keepdims=1, select_last_index=1), chosen)
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
    """Fractional max pooling; ``order`` gives the column of ``random_samples`` for each axis."""
    rank = len(order)
    unbatched = op.rank_of(self) == rank + 1
    value = op.Unsqueeze(self, [0]) if unbatched else self
    samples = [op.Slice(random_samples, [position], [position + 1], [2]) for position in order]
    found = _fractional_max(op, value, list(kernel_size), list(output_size), samples)
    if unbatched:
        return op.Squeeze(found[0], [0]), op.Squeeze(found[1], [0])
    return found


@translates("aten::fractional_max_pool2d", exact="NaN propagates, with the position of the last one")
def fractional_max_pool2d(
    op: Op, self: ir.Value, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """aten::fractional_max_pool2d(Tensor self, int[2] kernel_size, int[2] output_size, Tensor random_samples) -> (Tensor, Tensor)"""
    return _fractional(op, self, kernel_size, output_size, random_samples, (1, 0))


@translates("aten::fractional_max_pool3d", exact="NaN propagates, with the position of the last one")
def fractional_max_pool3d(
    op: Op, self: ir.Value, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """aten::fractional_max_pool3d(Tensor self, int[3] kernel_size, int[3] output_size, Tensor random_samples) -> (Tensor, Tensor)"""
    return _fractional(op, self, kernel_size, output_size, random_samples, (0, 1, 2))
