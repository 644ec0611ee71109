"""Histograms and counts of values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
import torch

from .._builder.constants import END
from .._builder.dtypes import INT64, to_torch_dtype
from .._builder.op import Op, Operand, Unsupported
from .._builder.symbolic_dims import Dim
from .._registry import translates

# ---- histograms of numbers


@translates("aten::histc")
def histc(op: Op, self: ir.Value, bins: int = 100, min: Operand = 0, max: Operand = 0) -> ir.Value:
    """aten::histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor"""
    dtype = op.dtype_of(self)
    wide = dtype if dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE) else ir.DataType.FLOAT
    values = op.Reshape(op.cast(self, wide), [-1])
    if 0 in op.dims(self):
        return op.expand(op.const(0, dtype), (bins,))
    one = op.const(1.0, wide)
    if min == max:
        # The default range is the values'; an empty range is extended by one on both sides.
        low, high = op.ReduceMin(values, [0], keepdims=0), op.ReduceMax(values, [0], keepdims=0)
        if not isinstance(min, (int, float)) or min != 0:
            low, high = op.operand(min, wide), op.operand(max, wide)
        equal = op.Equal(low, high)
        low, high = op.Where(equal, op.Sub(low, one), low), op.Where(equal, op.Add(high, one), high)
    else:
        low, high = op.operand(min, wide), op.operand(max, wide)
    scaled = op.Div(op.Mul(op.Sub(values, low), op.const(float(bins), wide)), op.Sub(high, low))
    positions = op.Min(op.Floor(scaled), op.const(float(bins - 1), wide))
    inside = op.And(op.GreaterOrEqual(values, low), op.LessOrEqual(values, high))
    positions = op.Where(inside, positions, op.const(-1.0, wide))
    numbers = op.const([[float(place)] for place in range(bins)], wide)
    counts = op.ReduceSum(op.cast(op.Equal(op.Unsqueeze(positions, [0]), numbers), INT64), [1], keepdims=0)
    return op.cast(counts, dtype)


def _histogram(
    op: Op, values: ir.Value, edges: ir.Value, weight: ir.Value | None, density: bool
) -> tuple[ir.Value, ir.Value]:
    """Sum the weights of the elements between consecutive edges; the last bin includes its upper edge."""
    dtype = op.dtype_of(values)
    flat = op.Reshape(values, [1, -1])
    lower = op.Unsqueeze(op.Slice(edges, [0], [-1], [0]), [1])
    reached = op.GreaterOrEqual(flat, lower)
    passed = op.Greater(flat, op.Slice(edges, [-1], [END], [0]))
    later = op.Concat(op.Slice(reached, [1], [END], [0]), passed, axis=0)
    inside = op.And(reached, op.Not(later))
    if weight is None:
        added = op.cast(inside, dtype)
    else:
        added = op.Where(inside, op.Reshape(op.cast(weight, dtype), [1, -1]), op.const(0.0, dtype))
    counts = op.shaped(op.ReduceSum(added, [1], keepdims=0), op.result.shape)
    if density:
        widths = op.Sub(op.Slice(edges, [1], [END], [0]), op.Slice(edges, [0], [-1], [0]))
        counts = op.Div(op.Div(counts, op.ReduceSum(counts, keepdims=0)), widths)
    return counts, edges


@translates("aten::histogram.bins_tensor")
def histogram_of_edges(
    op: Op, self: ir.Value, bins: ir.Value, *, weight: ir.Value | None = None, density: bool = False
) -> tuple[ir.Value, ir.Value]:
    """aten::histogram.bins_tensor(Tensor self, Tensor bins, *, Tensor? weight=None, bool density=False) -> (Tensor hist, Tensor bin_edges)"""
    return _histogram(op, self, bins, weight, density)


def _widened(op: Op, low: ir.Value, high: ir.Value, dtype: ir.DataType) -> tuple[ir.Value, ir.Value]:
    """Return the limits of a range; an empty one is extended by a half on both sides."""
    margin = op.Where(op.Equal(low, high), op.const(0.5, dtype), op.const(0.0, dtype))
    return op.Sub(low, margin), op.Add(high, margin)


def _linear_edges(op: Op, low: ir.Value, high: ir.Value, bins: int, dtype: ir.DataType) -> ir.Value:
    """Return the edges of bins of one width, as linspace does."""
    step = op.Div(op.Sub(high, low), op.const(float(bins), dtype))
    # The second half is computed from the end.
    numbers = torch.arange(bins + 1, dtype=to_torch_dtype(dtype))
    from_start = op.Add(low, op.Mul(step, op.const(numbers)))
    from_end = op.Sub(high, op.Mul(step, op.const(numbers.flip(0))))
    return op.Where(op.const(numbers < (bins + 1) // 2), from_start, from_end)


@translates("aten::histogram.bin_ct")
def histogram(
    op: Op,
    self: ir.Value,
    bins: int = 100,
    range: Sequence[float] | None = None,
    weight: ir.Value | None = None,
    density: bool = False,
) -> tuple[ir.Value, ir.Value]:
    """aten::histogram.bin_ct(Tensor self, int bins=100, *, float[]? range=None, Tensor? weight=None, bool density=False) -> (Tensor hist, Tensor bin_edges)"""
    dtype = op.dtype_of(self)
    if range is not None and range[0] != range[1]:
        limits = torch.linspace(range[0], range[1], bins + 1, dtype=to_torch_dtype(dtype))
        return _histogram(op, self, op.const(limits), weight, density)
    if range is not None:
        low, high = (op.const(limit, dtype) for limit in range)
    elif 0 in op.dims(self):
        low, high = op.const(0.0, dtype), op.const(1.0, dtype)
    else:
        low, high = op.ReduceMin(self, keepdims=0), op.ReduceMax(self, keepdims=0)
    low, high = _widened(op, low, high, dtype)
    return _histogram(op, self, _linear_edges(op, low, high, bins, dtype), weight, density)


@translates("aten::bincount")
def bincount(op: Op, self: ir.Value, weights: ir.Value | None = None, minlength: int = 0) -> ir.Value:
    """aten::bincount(Tensor self, Tensor? weights=None, SymInt minlength=0) -> Tensor"""
    values = op.cast(self, INT64)
    largest = op.ReduceMax(op.Concat(values, op.const([-1]), axis=0), [0], keepdims=0)
    count = op.Max(op.Add(largest, op.const(1)), op.scalar(minlength, INT64))
    numbers = op.Range(op.const(0), count, op.const(1))
    chosen = op.Equal(op.Unsqueeze(numbers, [1]), op.Unsqueeze(values, [0]))
    dtype = op.result.dtype
    added = op.cast(chosen, dtype)
    if weights is not None:
        added = op.Where(chosen, op.cast(weights, dtype), op.const(0, dtype))
    return op.shaped(op.ReduceSum(added, [1], keepdims=0), op.result.shape)


# ---- histograms of points


def _edges_of_points(op: Op, points: ir.Value, bins: Sequence[int], limits: Sequence[float] | None) -> list[ir.Value]:
    """Return the edges of the bins of each coordinate; by default, they cover the points [n, d]."""
    dtype = op.dtype_of(points)
    edges = []
    for axis, count in enumerate(bins):
        start, end = (0.0, 0.0) if limits is None else limits[2 * axis : 2 * axis + 2]
        if start != end:
            edges.append(op.const(torch.linspace(start, end, count + 1, dtype=to_torch_dtype(dtype))))
            continue
        if limits is not None:
            low, high = op.const(start, dtype), op.const(end, dtype)
        elif 0 in op.dims(points):
            low, high = op.const(0.0, dtype), op.const(1.0, dtype)
        else:
            values = op.Gather(points, op.const(axis), axis=1)
            low, high = op.ReduceMin(values, keepdims=0), op.ReduceMax(values, keepdims=0)
        edges.append(_linear_edges(op, *_widened(op, low, high, dtype), count, dtype))
    return edges


def _histogram_of_points(
    op: Op, points: ir.Value, edges: Sequence[ir.Value], weight: ir.Value | None, density: bool
) -> ir.Value:
    """Add the weight of each point [n, d] to its bin; those outside go to a bin after the last one, which is dropped."""
    dtype, shape = op.dtype_of(points), op.result.shape
    total: Dim = math.prod(shape)
    place, inside = None, None
    for axis, (one, count) in enumerate(zip(edges, shape, strict=True)):
        values = op.Gather(points, op.const([axis]), axis=1)
        reached = op.GreaterOrEqual(values, one)
        # The last bin includes its upper edge.
        own = op.Min(op.Sub(op.ReduceSum(op.cast(reached, INT64), [1], keepdims=0), op.const(1)), op.size(count - 1))
        place = own if place is None else op.Add(op.Mul(place, op.size(count)), own)
        is_within = op.And(
            op.Squeeze(op.Slice(reached, [0], [1], [1]), [1]),
            op.Squeeze(op.LessOrEqual(values, op.Slice(one, [-1], [END], [0])), [1]),
        )
        inside = is_within if inside is None else op.And(inside, is_within)
    if place is None or inside is None:
        raise Unsupported("points without coordinates")
    place = op.Where(inside, place, op.scalar(total, INT64))
    added = op.cast(inside, dtype) if weight is None else op.Reshape(op.cast(weight, dtype), [-1])
    zeros = op.expand(op.const(0.0, dtype), (total + 1,))
    counts = op.ScatterElements(zeros, place, added, axis=0, reduction="add")
    counts = op.reshape(op.Slice(counts, [0], op.size(total), [0]), shape)
    if density:
        counts = op.Div(counts, op.ReduceSum(counts, keepdims=0))
        for axis, one in enumerate(edges):
            widths = op.Sub(op.Slice(one, [1], [END], [0]), op.Slice(one, [0], [-1], [0]))
            counts = op.Div(counts, op.Reshape(widths, [-1] + [1] * (len(shape) - axis - 1)))
    return counts


def _points(op: Op, self: ir.Value, coordinates: int) -> ir.Value:
    return op.Reshape(self, [-1, coordinates])


@translates("aten::_histogramdd_bin_edges")
def histogramdd_bin_edges(
    op: Op,
    self: ir.Value,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: ir.Value | None = None,
    density: bool = False,
) -> list[ir.Value]:
    """aten::_histogramdd_bin_edges(Tensor self, int[] bins, *, float[]? range=None, Tensor? weight=None, bool density=False) -> Tensor[]"""
    return _edges_of_points(op, _points(op, self, len(bins)), bins, range)


@translates("aten::_histogramdd_from_bin_cts")
def histogramdd(
    op: Op,
    self: ir.Value,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: ir.Value | None = None,
    density: bool = False,
) -> ir.Value:
    """aten::_histogramdd_from_bin_cts(Tensor self, int[] bins, *, float[]? range=None, Tensor? weight=None, bool density=False) -> Tensor"""
    points = _points(op, self, len(bins))
    return _histogram_of_points(op, points, _edges_of_points(op, points, bins, range), weight, density)


@translates("aten::_histogramdd_from_bin_tensors")
def histogramdd_of_edges(
    op: Op, self: ir.Value, bins: Sequence[ir.Value], *, weight: ir.Value | None = None, density: bool = False
) -> ir.Value:
    """aten::_histogramdd_from_bin_tensors(Tensor self, Tensor[] bins, *, Tensor? weight=None, bool density=False) -> Tensor"""
    return _histogram_of_points(op, _points(op, self, len(bins)), bins, weight, density)


@translates("aten::histogramdd", "aten::histogramdd.int_bins", "aten::histogramdd.TensorList_bins")
def histogramdd_and_edges(
    op: Op,
    self: ir.Value,
    bins: int | Sequence[int] | Sequence[ir.Value],
    range: Sequence[float] | None = None,
    weight: ir.Value | None = None,
    density: bool = False,
) -> list[ir.Value]:
    """aten::histogramdd(Tensor self, int[] bins, float[]? range=None, Tensor? weight=None, bool density=False) -> (Tensor hist, Tensor[] bin_edges)
    aten::histogramdd.int_bins(Tensor self, int bins, float[]? range=None, Tensor? weight=None, bool density=False) -> (Tensor hist, Tensor[] bin_edges)
    aten::histogramdd.TensorList_bins(Tensor self, Tensor[] bins, float[]? range=None, Tensor? weight=None, bool density=False) -> (Tensor hist, Tensor[] bin_edges)
    """
    points = _points(op, self, len(op.result.shape))
    counts = [bins] * len(op.result.shape) if isinstance(bins, int) else [one for one in bins if isinstance(one, int)]
    edges = [one for one in bins if isinstance(one, ir.Value)] if not isinstance(bins, int) else []
    edges = edges or _edges_of_points(op, points, counts, range)
    return [_histogram_of_points(op, points, edges, weight, density), *edges]
