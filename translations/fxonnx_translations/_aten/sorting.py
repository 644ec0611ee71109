"""Sort, topk, order statistics, searchsorted and unique."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch

from .._builder.dtypes import INT32, INT64
from .._builder.loops import arange
from .._builder.op import Op, Operand, Unsupported
from .._builder.symbolic_dims import Dim
from .._registry import OpCall, translates
from .._torch_compat import FloorDiv
from .reduction import extremum

# ---- sorting and topk


# Types without TopK and ArgMax kernels in ONNX Runtime, to a type that represents all their values in the same order.
_ORDERED = {
    ir.DataType.BOOL: ir.DataType.INT32,
    ir.DataType.INT8: ir.DataType.INT32,
    ir.DataType.UINT8: ir.DataType.INT32,
    ir.DataType.INT16: ir.DataType.INT32,
    ir.DataType.UINT16: ir.DataType.INT32,
    ir.DataType.UINT32: INT64,
    ir.DataType.BFLOAT16: ir.DataType.FLOAT,
    ir.DataType.FLOAT16: ir.DataType.FLOAT,
}


def _ordered(op: Op, value: ir.Value) -> ir.Value:
    dtype = op.dtype_of(value)
    if dtype == ir.DataType.UINT64:
        raise Unsupported("ONNX Runtime cannot sort UINT64, and has no wider type")
    return op.cast(value, _ORDERED.get(dtype, dtype))


_NAN_IS_LARGEST = "NaN is the largest number"


def _top(op: Op, self: ir.Value, k: Dim, dim: int, largest: bool) -> tuple[ir.Value, ir.Value]:
    """Return values and positions of the k largest or smallest, sorted; equal values by ascending position."""
    if op.rank_of(self) == 0:
        return self, op.const(0)
    axis = op.axis(dim, op.rank_of(self))
    if op.exact_numerics and op.is_float(self):
        return _top_with_nan(op, self, op.size(k), axis, largest)
    key, count = _ordered(op, self), op.size(k)
    values, positions = op.multi("TopK", key, count, axis=axis, largest=int(largest), outputs=2)
    return op.cast(values, op.dtype_of(self)), positions


def _top_with_nan(op: Op, self: ir.Value, k: ir.Value, axis: int, largest: bool) -> tuple[ir.Value, ir.Value]:
    """Sort NaN as the largest number, as torch does; in ONNX Runtime it makes the order of all numbers undefined."""
    missing, key = op.IsNaN(self), _ordered(op, self)
    key = op.Where(missing, op.const(math.inf, op.dtype_of(key)), key)
    size = op.size(op.dims(self)[axis])
    _, positions = op.multi("TopK", key, size, axis=axis, largest=int(largest), outputs=2)
    # A second, stable sort separates NaN from the infinities.
    flags = op.GatherElements(op.cast(missing, INT32), positions, axis=axis)
    _, places = op.multi("TopK", flags, k, axis=axis, largest=int(largest), outputs=2)
    positions = op.GatherElements(positions, places, axis=axis)
    return op.GatherElements(self, positions, axis=axis), positions


def _size(op: Op, self: ir.Value, dim: int) -> Dim:
    dims = op.dims(self)
    return dims[dim] if dims else 1


@translates("aten::topk", exact=_NAN_IS_LARGEST)
def topk(
    op: Op, self: ir.Value, k: Dim, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[ir.Value, ir.Value]:
    """aten::topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)"""
    return _top(op, self, k, dim, largest)


@translates("aten::sort", exact=_NAN_IS_LARGEST)
def sort(op: Op, self: ir.Value, dim: int = -1, descending: bool = False) -> tuple[ir.Value, ir.Value]:
    """aten::sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)"""
    return _top(op, self, _size(op, self, dim), dim, descending)


@translates("aten::sort.stable", exact=_NAN_IS_LARGEST)
def sort_stable(
    op: Op, self: ir.Value, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[ir.Value, ir.Value]:
    """aten::sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)"""
    return _top(op, self, _size(op, self, dim), dim, descending)


@translates("aten::argsort", "aten::argsort.stable", exact=_NAN_IS_LARGEST)
def argsort(op: Op, self: ir.Value, dim: int = -1, descending: bool = False, stable: bool = False) -> ir.Value:
    """aten::argsort(Tensor self, int dim=-1, bool descending=False) -> Tensor
    aten::argsort.stable(Tensor self, *, bool stable, int dim=-1, bool descending=False) -> Tensor
    """
    return _top(op, self, _size(op, self, dim), dim, descending)[1]


@translates("aten::msort", exact=_NAN_IS_LARGEST)
def msort(op: Op, self: ir.Value) -> ir.Value:
    """aten::msort(Tensor self) -> Tensor"""
    return _top(op, self, _size(op, self, 0), 0, largest=False)[0]


@translates("aten::kthvalue", exact=_NAN_IS_LARGEST)
def kthvalue(op: Op, self: ir.Value, k: Dim, dim: int = -1, keepdim: bool = False) -> list[ir.Value]:
    """aten::kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    if op.rank_of(self) == 0:
        return [self, op.const(0)]
    axis = op.axis(dim, op.rank_of(self))
    last = op.size(k - 1) if keepdim else op.scalar(k - 1)
    return [op.Gather(value, last, axis=axis) for value in _top(op, self, k, dim, largest=False)]


# ---- extrema and their positions

_FIRST_NAN = "NaN propagates, with the position of the first one"


def _arg_extremum(op: Op, operator: str, self: ir.Value, dim: int | None, keepdim: bool) -> ir.Value:
    """Return the first position of the maximum or minimum; with exact numerics, of the first NaN if there is one."""
    if op.rank_of(self) == 0:
        return op.const(0)
    if dim is None:
        first = _arg_extremum(op, operator, op.Reshape(self, [-1]), 0, False)
        return op.reshape(first, op.result.shape) if keepdim else first
    axis, keepdims = op.axis(dim, op.rank_of(self)), int(keepdim)
    place: ir.Value = getattr(op, operator)(_ordered(op, self), axis=axis, keepdims=keepdims)
    if not op.exact_numerics or not op.is_float(self):
        return place
    flags = op.cast(op.IsNaN(self), INT32)
    some = op.cast(op.ReduceMax(flags, [axis], keepdims=keepdims), ir.DataType.BOOL)
    return op.Where(some, op.ArgMax(flags, axis=axis, keepdims=keepdims), place)


@translates("aten::argmax", exact=_FIRST_NAN)
def argmax(op: Op, self: ir.Value, dim: int | None = None, keepdim: bool = False) -> ir.Value:
    """aten::argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor"""
    return _arg_extremum(op, "ArgMax", self, dim, keepdim)


@translates("aten::argmin", exact=_FIRST_NAN)
def argmin(op: Op, self: ir.Value, dim: int | None = None, keepdim: bool = False) -> ir.Value:
    """aten::argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor"""
    return _arg_extremum(op, "ArgMin", self, dim, keepdim)


def _extremum_with_position(op: Op, which: str, self: ir.Value, dim: int, keepdim: bool) -> list[ir.Value]:
    """Return the ``Max`` or ``Min`` along an axis and its position."""
    if op.rank_of(self) == 0:
        return [self, op.const(0)]
    axis = op.axis(dim, op.rank_of(self))
    if not op.exact_numerics or not op.is_float(self):
        value = extremum(op, f"Reduce{which}", self, axis, keepdim)
        return [value, _arg_extremum(op, f"Arg{which}", self, axis, keepdim)]
    place = _arg_extremum(op, f"Arg{which}", self, axis, True)
    # Gathered at the position, which is right for NaN.
    value = op.GatherElements(self, place, axis=axis)
    return [value, place] if keepdim else [op.Squeeze(value, [axis]), op.Squeeze(place, [axis])]


@translates("aten::max.dim", exact=_FIRST_NAN)
def max_along(op: Op, self: ir.Value, dim: int, keepdim: bool = False) -> list[ir.Value]:
    """aten::max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    return _extremum_with_position(op, "Max", self, dim, keepdim)


@translates("aten::min.dim", exact=_FIRST_NAN)
def min_along(op: Op, self: ir.Value, dim: int, keepdim: bool = False) -> list[ir.Value]:
    """aten::min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    return _extremum_with_position(op, "Min", self, dim, keepdim)


# ---- medians


def _median(op: Op, self: ir.Value, dim: int, keepdim: bool, *, skip_nan: bool) -> list[ir.Value]:
    """Return the lower median along an axis and its position."""
    if op.rank_of(self) == 0:
        return [self, op.const(0)]
    axis = op.axis(dim, op.rank_of(self))
    size = op.dims(self)[axis]
    middle = (size + 1) // 2 if isinstance(size, int) else FloorDiv(size + 1, 2)
    if not op.is_float(self) or not (skip_nan or op.exact_numerics):
        return kthvalue(op, self, middle, axis, keepdim)
    _, positions = _top_with_nan(op, self, op.size(size), axis, False)
    missing = op.IsNaN(self)
    if skip_nan:
        # If all elements are NaN, the first one is the median.
        count = op.ReduceSum(op.cast(op.Not(missing), INT64), [axis], keepdims=1)
        place = op.Max(op.Div(op.Sub(count, op.const(1)), op.const(2)), op.const(0))
        at = op.GatherElements(positions, place, axis=axis)
    else:
        flags = op.cast(missing, INT32)
        some = op.cast(op.ReduceMax(flags, [axis], keepdims=1), ir.DataType.BOOL)
        at = op.Where(
            some, op.ArgMax(flags, axis=axis, keepdims=1), op.Gather(positions, op.size(middle - 1), axis=axis)
        )
    value = op.GatherElements(self, at, axis=axis)
    return [value, at] if keepdim else [op.Squeeze(value, [axis]), op.Squeeze(at, [axis])]


def _of_all(op: Op, self: ir.Value, *, skip_nan: bool) -> ir.Value:
    if 0 in op.dims(self):
        fill = math.nan if op.is_float(self) else torch.iinfo(op.result.torch_dtype).min
        return op.const(fill, op.dtype_of(self))
    for size in op.dims(self):
        if not isinstance(size, int):
            op.builder.positive_sizes.setdefault(size, "the median of an empty tensor is not computed")
    flat = op.reshape(self, (math.prod(op.dims(self)),))
    return _median(op, flat, 0, False, skip_nan=skip_nan)[0]


@translates("aten::median.dim", exact=_FIRST_NAN)
def median_along(op: Op, self: ir.Value, dim: int, keepdim: bool = False) -> list[ir.Value]:
    """aten::median.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    return _median(op, self, dim, keepdim, skip_nan=False)


@translates("aten::nanmedian.dim")
def nanmedian_along(op: Op, self: ir.Value, dim: int, keepdim: bool = False) -> list[ir.Value]:
    """aten::nanmedian.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    return _median(op, self, dim, keepdim, skip_nan=True)


@translates("aten::median", exact="NaN propagates")
def median(op: Op, self: ir.Value) -> ir.Value:
    """aten::median(Tensor self) -> Tensor"""
    return _of_all(op, self, skip_nan=False)


@translates("aten::nanmedian")
def nanmedian(op: Op, self: ir.Value) -> ir.Value:
    """aten::nanmedian(Tensor self) -> Tensor"""
    return _of_all(op, self, skip_nan=True)


# ---- quantiles


def _reject_dynamic(call: OpCall) -> str | None:
    self, dim = call.arguments["self"], call.arguments["dim"]
    sizes = self.shape if dim is None or not self.shape else [self.shape[dim]]
    return (
        None if all(isinstance(size, int) for size in sizes) else "the ranks along an axis of dynamic size are computed"
    )


def _axis_of_quantile(op: Op, self: ir.Value, dim: int | None) -> tuple[ir.Value, int]:
    """Return the tensor to sort and the axis."""
    if dim is None or op.rank_of(self) == 0:
        return op.reshape(self, (math.prod(op.dims(self)),)), 0
    return self, op.axis(dim, op.rank_of(self))


@translates("aten::quantile.scalar", accepts=_reject_dynamic, exact="NaN propagates")
def quantile_of_number(
    op: Op, self: ir.Value, q: float, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> ir.Value:
    """aten::quantile.scalar(Tensor self, float q, int? dim=None, bool keepdim=False, *, str interpolation="linear") -> Tensor"""
    value, axis = _axis_of_quantile(op, self, dim)
    size, dtype = int(op.dims(value)[axis]), op.dtype_of(value)
    # In the type of the tensor, as in torch.
    rank = torch.tensor(q, dtype=op.result.torch_dtype) * (size - 1)
    rank = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}.get(interpolation, torch.clone)(rank)
    values, _ = _top(op, value, size, axis, largest=False)

    def element(place: int) -> ir.Value:
        return op.Gather(values, op.const([place] if keepdim else place), axis=axis)

    low, high = int(rank.floor()), int(rank.ceil())
    weight = 0.5 if interpolation == "midpoint" else float(rank - low)
    result = element(low)
    if low != high:
        step = op.Sub(element(high), result)
        if weight < 0.5:
            result = op.Add(result, op.Mul(step, op.const(weight, dtype)))
        else:
            result = op.Sub(element(high), op.Mul(step, op.const(1 - weight, dtype)))
    if op.exact_numerics:
        last = element(size - 1)
        result = op.Where(op.IsNaN(last), last, result)
    return op.reshape(result, op.result.shape)


@translates("aten::nanquantile", "aten::nanquantile.scalar")
def nanquantile(
    op: Op,
    self: ir.Value,
    q: ir.Value | float,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> ir.Value:
    """aten::nanquantile(Tensor self, Tensor q, int? dim=None, bool keepdim=False, *, str interpolation="linear") -> Tensor
    aten::nanquantile.scalar(Tensor self, float q, int? dim=None, bool keepdim=False, *, str interpolation="linear") -> Tensor
    """
    value, axis = _axis_of_quantile(op, self, dim)
    rank, dtype = op.rank_of(value), op.dtype_of(value)
    zero, half, one = (op.const(number, dtype) for number in (0.0, 0.5, 1.0))
    missing = op.IsNaN(value)
    numbers = op.Where(missing, op.const(math.inf, dtype), value)
    ordered, _ = op.multi("TopK", numbers, op.size(op.dims(value)[axis]), axis=axis, largest=0, outputs=2)
    count = op.ReduceSum(op.cast(op.Not(missing), dtype), [axis], keepdims=1)
    # One rank for each probability, along the axis.
    share = op.operand(q, dtype)
    share = share if not isinstance(q, ir.Value) else op.Reshape(q, [-1 if i == axis else 1 for i in range(rank)])
    place = op.Max(op.Mul(share, op.Sub(count, one)), zero)
    rounding = {"lower": "Floor", "higher": "Ceil", "nearest": "Round"}.get(interpolation)
    place = place if rounding is None else getattr(op, rounding)(place)
    low = op.Floor(place)
    result = op.GatherElements(ordered, op.cast(low, INT64), axis=axis)
    if rounding is None:
        above = op.GatherElements(ordered, op.cast(op.Ceil(place), INT64), axis=axis)
        weight = half if interpolation == "midpoint" else op.Sub(place, low)
        step = op.Sub(above, result)
        upper = op.Sub(above, op.Mul(step, op.Sub(one, weight)))
        result = op.Where(op.Less(weight, half), op.Add(result, op.Mul(step, weight)), upper)
    result = op.Where(op.Equal(count, zero), op.const(math.nan, dtype), result)
    if isinstance(q, ir.Value) and op.rank_of(q) == 1 and axis > 0:
        result = op.Transpose(result, perm=[axis, *(i for i in range(rank) if i != axis)])
    return op.reshape(result, op.result.shape)


# ---- search


def _count_before(op: Op, edges: ir.Value, values: ir.Value, *, right: bool) -> ir.Value:
    """Return the number of edges before each value: [*, m] edges and [*, n] values, or one row of edges for all."""
    edges, values = op.promote(edges, values)
    if op.dtype_of(edges) == ir.DataType.BOOL:
        edges, values = op.cast(edges, INT32), op.cast(values, INT32)
    if op.rank_of(edges) > 1:
        edges = op.Unsqueeze(edges, [-2])
    if op.exact_numerics and op.is_float(edges):
        # "Not at or after" rather than "before": NaN is sorted last.
        before = op.Not((op.Greater if right else op.GreaterOrEqual)(edges, op.Unsqueeze(values, [-1])))
    else:
        before = (op.LessOrEqual if right else op.Less)(edges, op.Unsqueeze(values, [-1]))
    counts = op.ReduceSum(op.cast(before, INT64), [-1], keepdims=0)
    return op.cast(counts, op.result.dtype)


def _is_right(right: bool, side: str | None) -> bool:
    return right if side is None else side == "right"


@translates("aten::searchsorted.Tensor", "aten::searchsorted.Scalar", exact=_NAN_IS_LARGEST)
def searchsorted(
    op: Op,
    sorted_sequence: ir.Value,
    self: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: ir.Value | None = None,
) -> ir.Value:
    """aten::searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, bool right=False, str? side=None, Tensor? sorter=None) -> Tensor
    aten::searchsorted.Scalar(Tensor sorted_sequence, Scalar self, *, bool out_int32=False, bool right=False, str? side=None, Tensor? sorter=None) -> Tensor
    """
    if sorter is not None:
        sorted_sequence = op.GatherElements(sorted_sequence, sorter, axis=-1)
    values = self if isinstance(self, ir.Value) else op.operand(self, op.dtype_of(sorted_sequence))
    if 0 in op.result.shape or 0 in op.dims(sorted_sequence):
        return op.expand(op.const(0, op.result.dtype), op.result.shape)
    return _count_before(op, sorted_sequence, values, right=_is_right(right, side))


@translates("aten::bucketize.Tensor", "aten::bucketize.Scalar", exact=_NAN_IS_LARGEST)
def bucketize(op: Op, self: Operand, boundaries: ir.Value, *, out_int32: bool = False, right: bool = False) -> ir.Value:
    """aten::bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor
    aten::bucketize.Scalar(Scalar self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor
    """
    return searchsorted(op, boundaries, self, right=right)


# ---- unique and mode

# The types with a Unique kernel in ONNX Runtime.
_SORTABLE = (ir.DataType.FLOAT, ir.DataType.DOUBLE, INT64, ir.DataType.INT8)


def _unique(op: Op, self: ir.Value, axis: int | None) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the sorted unique values, the index of each element's value, and the counts."""
    dtype = op.dtype_of(self)
    wide = dtype if dtype in _SORTABLE else ir.DataType.FLOAT if op.is_float(self) else INT64
    values, _, inverse, counts = op.multi("Unique", op.cast(self, wide), axis=axis, sorted=1, outputs=4)
    return op.cast(values, dtype), inverse, counts


def _or_empty(op: Op, value: ir.Value, position: int) -> ir.Value:
    """Return the value if it was requested, else torch's result: an empty tensor."""
    return op.const([], INT64) if op.results[position].shape == (0,) else value


def _runs(op: Op, value: ir.Value, axis: int) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the first of each run of equal elements along an axis, the run of each element, and their lengths."""
    length = op.Gather(op.Shape(value), op.const([axis]), axis=0)
    later = op.Slice(value, [1], [2**62], [axis])
    earlier = op.Slice(value, [0], [-1], [axis])
    changed = op.Not(op.Equal(later, earlier))
    others = [other for other in range(op.rank_of(value)) if other != axis]
    if others:
        changed = op.cast(op.ReduceMax(op.cast(changed, INT32), others, keepdims=0), ir.DataType.BOOL)
    # The first element, if there is one, starts a run.
    first = op.Expand(op.const([True]), op.Min(length, op.const([1])))
    starts = op.Concat(first, changed, axis=0)
    runs = op.Sub(op.CumSum(op.cast(starts, INT64), op.const(0)), op.const(1))
    positions = op.Concat(op.Reshape(op.NonZero(starts), [-1]), length, axis=0)
    counts = op.Sub(op.Slice(positions, [1], [2**62], [0]), op.Slice(positions, [0], [-1], [0]))
    return op.Compress(value, starts, axis=axis), runs, counts


def _unique_with_nan(op: Op, self: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Like ``_unique`` of all elements, where each NaN is a value of its own, after the numbers."""
    flat = op.reshape(self, [math.prod(op.dims(self))])
    ordered, order = _top_with_nan(op, flat, op.size(op.dims(flat)[0]), 0, largest=False)
    values, runs, counts = _runs(op, ordered, 0)
    return values, op.ScatterElements(op.cast(order, INT64), order, runs, axis=0), counts


@translates("aten::_unique2", exact="each NaN is a value of its own")
def _unique2(
    op: Op, self: ir.Value, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """aten::_unique2(Tensor self, bool sorted=True, bool return_inverse=False, bool return_counts=False) -> (Tensor, Tensor, Tensor)"""
    has_nan = op.exact_numerics and op.is_float(self)
    values, inverse, counts = _unique_with_nan(op, self) if has_nan else _unique(op, self, None)
    if return_inverse:
        inverse = op.reshape(inverse, op.dims(self))
    return values, inverse if return_inverse else op.const([], INT64), _or_empty(op, counts, 2)


@translates("aten::unique_dim")
def unique_dim(
    op: Op, self: ir.Value, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """aten::unique_dim(Tensor self, int dim, bool sorted=True, bool return_inverse=False, bool return_counts=False) -> (Tensor, Tensor, Tensor)"""
    if op.rank_of(self) == 0:
        raise Unsupported("unique along a dim of a 0-dim tensor")
    values, inverse, counts = _unique(op, self, op.axis(dim, op.rank_of(self)))
    return values, _or_empty(op, inverse, 1), _or_empty(op, counts, 2)


@translates("aten::unique_consecutive")
def unique_consecutive(
    op: Op, self: ir.Value, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """aten::unique_consecutive(Tensor self, bool return_inverse=False, bool return_counts=False, int? dim=None) -> (Tensor, Tensor, Tensor)"""
    flat = dim is None or op.rank_of(self) == 0
    value = op.Reshape(self, [-1]) if flat else self
    axis = 0 if dim is None else op.axis(dim, op.rank_of(value))
    values, inverse, counts = _runs(op, value, axis)
    if flat:
        inverse = op.reshape(inverse, op.dims(self))
    return values, _or_empty(op, inverse, 1), _or_empty(op, counts, 2)


@translates("aten::mode")
def mode(op: Op, self: ir.Value, dim: int = -1, keepdim: bool = False) -> tuple[ir.Value, ir.Value]:
    """aten::mode(Tensor self, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)

    The most frequent value, the smallest of several ones, and its last position.
    """
    rank = op.rank_of(self)
    if rank == 0:
        return self, op.const(0)
    axis = op.axis(dim, rank)
    dtype = op.dtype_of(self)
    key = op.cast(self, INT32) if dtype == ir.DataType.BOOL else self
    equal = op.Equal(op.Unsqueeze(key, [axis]), op.Unsqueeze(key, [axis + 1]))
    counts = op.ReduceSum(op.cast(equal, INT64), [axis + 1], keepdims=0)
    most = op.Equal(counts, op.ReduceMax(counts, [axis], keepdims=1))
    if dtype == ir.DataType.BOOL:
        largest: ir.Value = op.const(1, INT32)
    elif op.is_float(self):
        largest = op.const(float("inf"), op.dtype_of(key))
    else:
        largest = op.const(torch.iinfo(op.results[0].torch_dtype).max, op.dtype_of(key))
    smallest = op.ReduceMin(op.Where(most, key, largest), [axis], keepdims=1)
    positions = op.Reshape(arange(op, op.dims(self)[axis]), [-1 if other == axis else 1 for other in range(rank)])
    at = op.ReduceMax(op.Where(op.Equal(key, smallest), positions, op.const(-1)), [axis], keepdims=1)
    value = op.cast(smallest, dtype)
    return (value, at) if keepdim else (op.Squeeze(value, [axis]), op.Squeeze(at, [axis]))
