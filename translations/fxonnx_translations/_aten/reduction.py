"""Reductions, cumulative operators and segment reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from types import MappingProxyType

import onnx_ir as ir
import torch

from .._builder import dtypes
from .._builder.bit_casts import bits_of_float
from .._builder.dtypes import BOOL, DOUBLE, INT32, INT64
from .._builder.loops import arange, loop
from .._builder.numerics import in_float, log_of_sum_of_exponentials
from .._builder.op import Op, Unsupported
from .._builder.symbolic_dims import Dim
from .._registry import OpCall, Translation, translates

# ---- sums and products


Axes = int | Sequence[int] | None


def axes_of(op: Op, value: ir.Value, dim: Axes) -> list[int]:
    """Return the axes to reduce; None or an empty list means all."""
    rank = op.rank_of(value)
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return list(range(rank))
    dims = [dim] if isinstance(dim, int) else dim
    return sorted({op.axis(axis, rank) for axis in dims}) if rank else []


# Results for no elements; the maximum of no elements is undefined, so that its result is empty as well.
_EMPTY_RESULTS = {
    "ReduceSum": 0,
    "ReduceProd": 1,
    "ReduceMean": math.nan,
    "ReduceMax": 0,
    "ReduceMin": 1,
    "ReduceLogSumExp": -math.inf,
    "ReduceL1": 0,
    "ReduceL2": 0,
    "ReduceSumSquare": 0,
}


def reduced(op: Op, operator: str, value: ir.Value, dim: Axes, keepdim: bool) -> ir.Value:
    """Emit the ONNX reduction; a 0-dim tensor is its own sum, product, mean, maximum ..."""
    if op.rank_of(value) == 0:
        return value
    dims, axes = op.dims(value), axes_of(op, value, dim)
    if 0 in dims:
        # ONNX Runtime returns an empty tensor unchanged, whatever the axes.
        kept = [1 if axis in axes else size for axis, size in enumerate(dims) if keepdim or axis not in axes]
        return op.expand(op.const(_EMPTY_RESULTS[operator], op.dtype_of(value)), kept)
    if operator == "ReduceMean" and [axis for axis in axes if op.is_data_dependent(dims[axis])]:
        # ONNX Runtime's mean of no elements is 0, torch's NaN.
        count = op.scalar(_count([dims[axis] for axis in axes]), op.dtype_of(value))
        return op.Div(op.ReduceSum(value, axes, keepdims=int(keepdim)), count)
    result: ir.Value = getattr(op, operator)(value, axes_of(op, value, dim), keepdims=int(keepdim))
    return result


def _accumulated(op: Op, operator: str, self: ir.Value, dim: Axes, keepdim: bool) -> ir.Value:
    """Emit a reduction in the result's type; smaller types are accumulated in 32 or 64 bits, which have kernels."""
    dtype = op.result.dtype
    wide = dtype if dtype not in _NARROW else (INT32 if dtype in dtypes.INTEGERS else ir.DataType.FLOAT)
    if dtype == INT32:
        # ONNX Runtime's sums of integers saturate, torch's wrap around, as casts do.
        wide = INT64
    result = reduced(op, operator, op.cast(self, wide), dim, keepdim)
    return op.cast(op.without_negative_zeros(result) if operator in ("ReduceSum", "ReduceMean") else result, dtype)


_NARROW = frozenset({ir.DataType.INT8, ir.DataType.INT16, ir.DataType.UINT8, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


@translates("aten::sum", "aten::sum.dim_IntList")
def sum(op: Op, self: ir.Value, dim: Axes = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> ir.Value:
    """aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor
    aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
    """
    return _accumulated(op, "ReduceSum", self, dim, keepdim)


@translates("aten::sum_to_size")
def sum_to_size(op: Op, self: ir.Value, size: Sequence[Dim]) -> ir.Value:
    """aten::sum_to_size(Tensor self, SymInt[] size) -> Tensor"""
    dims = op.dims(self)
    added = len(dims) - len(size)
    # A broadcast axis has the static size 1, so an axis of symbolic size is not broadcast.
    axes = [axis for axis, dim in enumerate(dims) if axis < added or (size[axis - added] == 1 and dim != 1)]
    if not axes:
        return op.cast(self, op.result.dtype)
    return op.reshape(_accumulated(op, "ReduceSum", self, axes, True), list(size))


@translates("aten::mean", "aten::mean.dim")
def mean(op: Op, self: ir.Value, dim: Axes = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> ir.Value:
    """aten::mean(Tensor self, *, ScalarType? dtype=None) -> Tensor
    aten::mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
    """
    return _accumulated(op, "ReduceMean", self, dim, keepdim)


@translates("aten::prod", "aten::prod.dim_int")
def prod(
    op: Op, self: ir.Value, dim: int | None = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> ir.Value:
    """aten::prod(Tensor self, *, ScalarType? dtype=None) -> Tensor
    aten::prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
    """
    if op.result.dtype not in dtypes.INTEGERS or op.dtype_of(self) == BOOL or op.rank_of(self) == 0:
        return _accumulated(op, "ReduceProd", self, dim, keepdim)
    wide = INT32 if op.result.dtype in _NARROW else op.result.dtype
    product = _wrapping_product(op, op.cast(self, wide), dim)
    return op.cast(op.reshape(product, op.result.shape), op.result.dtype)


def _wrapping_product(op: Op, value: ir.Value, dim: int | None) -> ir.Value:
    """A product of integers modulo 2**64 (or 2**32): ONNX Runtime's ReduceProd saturates."""
    if dim is None:
        value, dim = op.reshape(value, [_count(op.dims(value))]), 0
    axis = op.axis(dim, op.rank_of(value))
    size, dims = op.dims(value)[axis], list(op.dims(value))
    if not isinstance(size, int) or not 1 <= size <= _UNROLLED:
        dims[axis] = 1
        start = op.expand(op.const(1, op.dtype_of(value)), dims)
        return loop(op, size, [start], lambda body, k, old: [body.Mul(old[0], body.Gather(value, k, axis=axis))])[0]
    while size > 1:
        half = size // 2
        product = op.Mul(op.Slice(value, [0], [half], [axis]), op.Slice(value, [half], [2 * half], [axis]))
        value = op.Concat(product, op.Slice(value, [2 * half], [size], [axis]), axis=axis) if size % 2 else product
        size -= half
    return value


# ---- extrema


_UNROLLED = 64
"""At most this many factors are multiplied in pairs; more, or a dynamic number, by a Loop."""


def extremum(op: Op, operator: str, self: ir.Value, dim: Axes, keepdim: bool) -> ir.Value:
    """Return the maximum or minimum along axes; of floats without NaN."""
    dtype = op.dtype_of(self)
    if dtype == BOOL or dtype in _NARROW:
        # ONNX Runtime has kernels for 32 and 64 bits, INT8 and UINT8; the wider type keeps the order.
        wide = ir.DataType.FLOAT if dtype.is_floating_point() else INT32
        return op.cast(reduced(op, operator, op.cast(self, wide), dim, keepdim), dtype)
    return reduced(op, operator, self, dim, keepdim)


def _with_nan(op: Op, operator: str, self: ir.Value, dim: Axes, keepdim: bool) -> ir.Value:
    """With exact numerics, propagate NaN, as torch does; in ONNX Runtime's reductions it depends on the order of elements."""
    extreme = extremum(op, operator, self, dim, keepdim)
    if not op.exact_numerics or not op.is_float(self) or op.rank_of(self) == 0:
        return extreme
    # By IsNaN, not by the sum of x - x, which is NaN for infinities as well.
    flags = op.cast(op.IsNaN(self), ir.DataType.FLOAT)
    some = op.cast(reduced(op, "ReduceMax", flags, dim, keepdim), BOOL)
    return op.Where(some, op.const(math.nan, op.dtype_of(self)), extreme)


@translates("aten::amax", exact="NaN propagates")
def amax(op: Op, self: ir.Value, dim: Sequence[int] = (), keepdim: bool = False) -> ir.Value:
    """aten::amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor"""
    return _with_nan(op, "ReduceMax", self, dim, keepdim)


@translates("aten::amin", exact="NaN propagates")
def amin(op: Op, self: ir.Value, dim: Sequence[int] = (), keepdim: bool = False) -> ir.Value:
    """aten::amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor"""
    return _with_nan(op, "ReduceMin", self, dim, keepdim)


@translates("aten::max", exact="NaN propagates")
def max(op: Op, self: ir.Value) -> ir.Value:
    """aten::max(Tensor self) -> Tensor"""
    return _with_nan(op, "ReduceMax", self, None, False)


@translates("aten::min", exact="NaN propagates")
def min(op: Op, self: ir.Value) -> ir.Value:
    """aten::min(Tensor self) -> Tensor"""
    return _with_nan(op, "ReduceMin", self, None, False)


# ---- logical reductions


@translates("aten::any", "aten::any.dim", "aten::any.dims")
def any(op: Op, self: ir.Value, dim: Axes = None, keepdim: bool = False) -> ir.Value:
    """aten::any(Tensor self) -> Tensor
    aten::any.dim(Tensor self, int dim, bool keepdim=False) -> Tensor
    aten::any.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor
    """
    # A sum of the flags is also right for no elements, where ReduceMax gives the lowest number of the type.
    flags = op.cast(op.cast(self, BOOL), INT32)
    return op.cast(op.cast(reduced(op, "ReduceSum", flags, dim, keepdim), BOOL), op.result.dtype)


@translates("aten::all", "aten::all.dim", "aten::all.dims")
def all(op: Op, self: ir.Value, dim: Axes = None, keepdim: bool = False) -> ir.Value:
    """aten::all(Tensor self) -> Tensor
    aten::all.dim(Tensor self, int dim, bool keepdim=False) -> Tensor
    aten::all.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor
    """
    # ReduceMin of no elements is the largest number of the type, which is true.
    flags = op.cast(op.cast(self, BOOL), INT32)
    return op.cast(op.cast(reduced(op, "ReduceMin", flags, dim, keepdim), BOOL), op.result.dtype)


_BITWISE_SINCE = 18


def _reject_symbolic_sizes(call: OpCall) -> str | None:
    if call.opset < _BITWISE_SINCE:
        return f"BitwiseXor is of opset {_BITWISE_SINCE}"
    value = call.arguments["self"]
    return "a symbolic size" if [size for size in value.shape if not isinstance(size, int)] else None


@translates("aten::hash_tensor", accepts=_reject_symbolic_sizes)
def hash_tensor(op: Op, self: ir.Value, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0) -> ir.Value:
    """aten::hash_tensor(Tensor self, int[1] dim=[], *, bool keepdim=False, int mode=0) -> Tensor

    The exclusive or of the elements, in halves.
    """
    # 64 bits keep all of them; torch hashes floats as float64.
    value = bits_of_float(op, op.cast(self, DOUBLE)) if op.is_float(self) else op.cast(self, INT64)
    if 0 in op.dims(self):
        return op.expand(op.const(0, op.result.dtype), op.result.shape)
    for axis in axes_of(op, self, dim):
        size = op.dims(value)[axis]
        while isinstance(size, int) and size > 1:
            half = size // 2
            parts = op.Slice(value, [0], [half], [axis]), op.Slice(value, [half], [2 * half], [axis])
            joined = op.BitwiseXor(*parts)
            value = op.Concat(joined, op.Slice(value, [2 * half], [size], [axis]), axis=axis) if size % 2 else joined
            size -= half
    return op.cast(op.reshape(value, op.result.shape), op.result.dtype)


# ---- variance


def _count(dims: Sequence[Dim]) -> Dim:
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


def _divisor(op: Op, count: Dim, correction: float | Dim, dtype: ir.DataType) -> ir.Value | float:
    """Return ``count - correction``, which torch clamps to zero: 0/0 is NaN, and x/0 infinite."""
    if isinstance(count, int) and isinstance(correction, int | float):
        return float(count - correction) if count > correction else 0.0
    is_number = isinstance(correction, int | float)
    subtracted = op.const(float(correction), dtype) if is_number else op.scalar(correction, dtype)
    return op.Max(op.Sub(op.scalar(count, dtype), subtracted), op.const(0.0, dtype))


def _spread(
    op: Op, self: ir.Value, dim: Axes, correction: float | Dim, keepdim: bool, *, root: bool
) -> tuple[ir.Value, ir.Value]:
    """Return the variance, or its square root, and the mean with the reduced axes kept."""
    axes, dtype = axes_of(op, self, dim), op.dtype_of(self)
    mean = reduced(op, "ReduceMean", self, axes, True)
    centered = op.Sub(self, mean)
    count = _count([op.dims(self)[axis] for axis in axes])
    if correction == 0 and not (root and isinstance(count, int)):
        biased = reduced(op, "ReduceMean", op.Mul(centered, centered), axes, keepdim)
        return (op.Sqrt(biased) if root else biased), mean
    divisor = _divisor(op, count, correction, dtype)
    if op.rank_of(self) == 0:
        # reduced() returns a 0-dim tensor unchanged.
        total = op.Abs(centered) if root else op.Mul(centered, centered)
    else:
        total = reduced(op, "ReduceL2" if root else "ReduceSumSquare", centered, axes, keepdim)
    if isinstance(divisor, float):
        return op.Div(total, op.const(math.sqrt(divisor) if root else divisor, dtype)), mean
    return op.Div(total, op.Sqrt(divisor) if root else divisor), mean


def _correction_of(unbiased: bool, correction: float | None) -> float:
    return float(unbiased) if correction is None else correction


def deviation(
    op: Op,
    self: ir.Value,
    dim: Axes = None,
    unbiased: bool = True,
    keepdim: bool = False,
    correction: float | None = None,
    *,
    root: bool,
) -> ir.Value:
    """aten::var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor
    aten::var.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor
    aten::var(Tensor self, bool unbiased=True) -> Tensor
    aten::std.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor
    aten::std.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor
    aten::std(Tensor self, bool unbiased=True) -> Tensor
    """
    return _spread(op, self, dim, _correction_of(unbiased, correction), keepdim, root=root)[0]


def _deviation_and_mean(
    op: Op,
    self: ir.Value,
    dim: Axes = None,
    unbiased: bool = True,
    keepdim: bool = False,
    correction: float | None = None,
    *,
    root: bool,
) -> tuple[ir.Value, ir.Value]:
    """aten::var_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)
    aten::var_mean.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> (Tensor, Tensor)
    aten::var_mean(Tensor self, bool unbiased=True) -> (Tensor, Tensor)
    aten::std_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)
    aten::std_mean.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> (Tensor, Tensor)
    aten::std_mean(Tensor self, bool unbiased=True) -> (Tensor, Tensor)
    """
    value, mean = _spread(op, self, dim, _correction_of(unbiased, correction), keepdim, root=root)
    mean, axes = op.without_negative_zeros(mean), axes_of(op, self, dim)
    return value, op.Squeeze(mean, axes) if axes and not keepdim else mean


TRANSLATIONS = tuple(
    Translation(partial(function, root=root), (f"aten::{name}.correction", f"aten::{name}.dim", f"aten::{name}"))
    for name, function, root in (
        ("var", deviation, False),
        ("std", deviation, True),
        ("var_mean", _deviation_and_mean, False),
        ("std_mean", _deviation_and_mean, True),
    )
)


@translates("aten::logsumexp")
def logsumexp(op: Op, self: ir.Value, dim: Sequence[int], keepdim: bool = False) -> ir.Value:
    """aten::logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor"""
    return reduced(op, "ReduceLogSumExp", op.cast(self, op.result.dtype), dim, keepdim)


# ---- cumulative sums


@translates("aten::cumsum")
def cumsum(op: Op, self: ir.Value, dim: int, dtype: torch.dtype | None = None) -> ir.Value:
    """aten::cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor"""
    result = op.result.dtype
    if op.rank_of(self) == 0:
        return op.cast(self, result)
    if result == BOOL:
        raise Unsupported("cumsum into bool")
    wide = result if result not in _NARROW else (INT32 if result in dtypes.INTEGERS else ir.DataType.FLOAT)
    axis = op.const(dim % op.rank_of(self), INT64)
    return op.cast(op.without_negative_zeros(op.CumSum(op.cast(self, wide), axis)), result)


# ---- segment reductions


_STARTS = MappingProxyType({"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf})


def _segment_bounds(op: Op, lengths: ir.Value | None, offsets: ir.Value | None) -> tuple[ir.Value, ir.Value]:
    """Return start and end (exclusive) of each segment: INT64 [*, segments]."""
    if offsets is not None:
        edges = op.cast(offsets, INT64)
        last = op.rank_of(edges) - 1
        return op.Slice(edges, [0], [-1], [last]), op.Slice(edges, [1], [2**62], [last])
    if lengths is None:
        raise Unsupported("segment_reduce with neither lengths nor offsets")
    sizes = op.cast(lengths, INT64)
    ends = op.CumSum(sizes, op.const(-1))
    return op.Sub(ends, sizes), ends


@translates("aten::segment_reduce", exact="NaN propagates through max and min")
def segment_reduce(
    op: Op,
    data: ir.Value,
    reduce: str,
    *,
    lengths: ir.Value | None = None,
    indices: ir.Value | None = None,
    offsets: ir.Value | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> ir.Value:
    """aten::segment_reduce(Tensor data, str reduce, *, Tensor? lengths=None, Tensor? indices=None, Tensor? offsets=None, int axis=0, bool unsafe=False, Scalar? initial=None) -> Tensor"""
    rank, dtype = op.rank_of(data), op.dtype_of(data)
    carrier = dtype if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    dim = op.axis(axis, rank)
    begin, end = _segment_bounds(op, lengths, offsets)
    trailing = list(range(dim + 1, rank))
    # [*, segments, elements, 1 ...]
    columns = [dim + 1, *(position + 1 for position in trailing)]
    positions = op.Range(0, op.scalar(op.dims(data)[dim]), 1)
    positions = op.Unsqueeze(positions, list(range(1, rank - dim))) if trailing else positions
    begin, end = op.Unsqueeze(begin, columns), op.Unsqueeze(end, columns)
    inside = op.And(op.GreaterOrEqual(positions, begin), op.Less(positions, end))
    start = _STARTS[reduce]
    values = op.Where(inside, op.Unsqueeze(op.cast(data, carrier), [dim]), op.const(start, carrier))
    if reduce in ("max", "min"):
        result = (amax if reduce == "max" else amin)(op, values, [dim + 1])
    else:
        result = (op.ReduceProd if reduce == "prod" else op.ReduceSum)(values, [dim + 1], keepdims=0)
    counts = op.Squeeze(op.cast(op.Sub(end, begin), carrier), [dim + 1])
    if initial is not None:
        first = op.const(float(initial), carrier)
        combine = {"sum": op.Add, "mean": op.Add, "prod": op.Mul, "max": op.Max, "min": op.Min}[reduce]
        result = combine(result, first)
    if reduce == "mean":
        empty = op.const(math.nan if initial is None else float(initial), carrier)
        some = op.Greater(counts, op.const(0.0, carrier))
        result = op.Where(some, op.Div(result, op.Max(counts, op.const(1.0, carrier))), empty)
    return op.cast(result, dtype)


# ---- cumulative operators by Scan


ScanStep = Callable[[Op, Sequence[ir.Value], Sequence[ir.Value]], Sequence[ir.Value]]
"""``step(op, states, items)`` emits one iteration over the items and returns the new states."""


def scan(
    op: Op, values: Sequence[ir.Value], axes: Sequence[int], initial: Sequence[ir.Value], out_axis: int, step: ScanStep
) -> tuple[ir.Value, ...]:
    """Emit a Scan and return its states after each iteration, stacked along ``out_axis``."""
    items = []
    for value, axis in zip(values, axes, strict=True):
        dims = op.dims(value)
        items.append((op.dtype_of(value), (*dims[:axis], *dims[axis + 1 :])))
    types = [(op.dtype_of(state), op.dims(state)) for state in initial]
    body = op.body("step", [*types, *items])
    new = step(body, body.graph.inputs[: len(initial)], body.graph.inputs[len(initial) :])
    sizes = [dims for _, dims in types]
    graph = body.finish(list(zip([*new, *new], [*sizes, *sizes], strict=True)))
    made = op.multi(
        "Scan",
        *initial,
        *values,
        outputs=2 * len(initial),
        body=graph,
        num_scan_inputs=len(values),
        scan_input_axes=list(axes),
        scan_output_axes=[out_axis] * len(initial),
    )
    length = op.dims(values[0])[axes[0]]
    last, stacked = made[: len(initial)], made[len(initial) :]
    for end, value, (dtype, dims) in zip(last, stacked, types, strict=True):
        end.type = value.type = ir.TensorType(dtype)
        op.shaped(end, dims)
        op.shaped(value, (*dims[:out_axis], length, *dims[out_axis:]))
    return tuple(stacked)


def over_items(
    op: Op, values: Sequence[ir.Value], axis: int, formula: Callable[[Op, Sequence[ir.Value], int], Sequence[ir.Value]]
) -> list[ir.Value]:
    """Apply a cumulative formula to values of equal shape and element type, along an axis.

    ONNX Runtime's Scan does not accept an empty axis. An axis of data-dependent size, which may be empty, has one more
    item for the Scan; other sizes of 0 are excluded by a constraint.
    """
    dims = op.dims(values[0])
    if not op.is_data_dependent(dims[axis]):
        return list(formula(op, values, axis))
    zero = op.expand(op.const(0, op.dtype_of(values[0])), (*dims[:axis], 1, *dims[axis + 1 :]))
    shape = (*dims[:axis], dims[axis] + 1, *dims[axis + 1 :])
    longer = [op.shaped(op.Concat(value, zero, axis=axis), shape) for value in values]
    return [op.shaped(op.Slice(result, [0], [-1], [axis]), dims) for result in formula(op, longer, axis)]


def _cumulative_extremum(op: Op, self: ir.Value, dim: int, comparison: str) -> tuple[ir.Value, ir.Value]:
    """Return the cumulative maximum or minimum and its last position."""
    rank = op.rank_of(self)
    if rank == 0 or 0 in op.dims(self):
        return self, op.expand(op.const(0), op.results[1].shape)
    values, indices = over_items(op, [self], op.axis(dim, rank), partial(_extremum_scan, comparison=comparison))
    return values, indices


def _extremum_scan(op: Op, values: Sequence[ir.Value], axis: int, comparison: str) -> tuple[ir.Value, ...]:
    (self,) = values
    positions = arange(op, op.dims(self)[axis])
    first = op.Gather(self, op.const(0), axis=axis)

    def step(body: Op, states: Sequence[ir.Value], items: Sequence[ir.Value]) -> Sequence[ir.Value]:
        (best, at), (item, place) = states, items
        # GreaterOrEqual and LessOrEqual do not accept BOOL.
        one, other = (body.cast(x, ir.DataType.INT32) if x.dtype == ir.DataType.BOOL else x for x in (item, best))
        better: ir.Value = getattr(body, comparison)(one, other)
        if body.exact_numerics and body.is_float(item):
            better = body.Or(body.IsNaN(item), body.And(body.Not(body.IsNaN(best)), better))
        return body.Where(better, item, best), body.Where(better, place, at)

    start = op.expand(op.const(0), op.dims(first))
    return scan(op, [self, positions], [axis, 0], [first, start], axis, step)


@translates("aten::cummax", exact="NaN propagates")
def cummax(op: Op, self: ir.Value, dim: int) -> tuple[ir.Value, ir.Value]:
    """aten::cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)"""
    return _cumulative_extremum(op, self, dim, "GreaterOrEqual")


@translates("aten::cummin", exact="NaN propagates")
def cummin(op: Op, self: ir.Value, dim: int) -> tuple[ir.Value, ir.Value]:
    """aten::cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)"""
    return _cumulative_extremum(op, self, dim, "LessOrEqual")


@translates("aten::cumprod")
def cumprod(op: Op, self: ir.Value, dim: int, *, dtype: torch.dtype | None = None) -> ir.Value:
    """aten::cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor"""
    made = op.result.dtype
    value = op.cast(self, made)
    rank = op.rank_of(value)
    if rank == 0:
        return value
    # torch rounds products of half types once, at the end.
    value = op.cast(value, ir.DataType.FLOAT) if made in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else value

    def step(body: Op, states: Sequence[ir.Value], items: Sequence[ir.Value]) -> Sequence[ir.Value]:
        return [body.Mul(states[0], items[0])]

    def products(op: Op, values: Sequence[ir.Value], axis: int) -> Sequence[ir.Value]:
        first = op.Gather(values[0], op.const(0), axis=axis)
        start = op.expand(op.const(1, op.dtype_of(first)), op.dims(first))
        return scan(op, values, [axis], [start], axis, step)

    return op.cast(over_items(op, [value], op.axis(dim, rank), products)[0], made)


@translates("aten::logcumsumexp")
def logcumsumexp(op: Op, self: ir.Value, dim: int) -> ir.Value:
    """aten::logcumsumexp(Tensor self, int dim) -> Tensor"""
    rank = op.rank_of(self)
    if rank == 0 or 0 in op.dims(self):
        return self

    def step(body: Op, states: Sequence[ir.Value], items: Sequence[ir.Value]) -> Sequence[ir.Value]:
        (total,), (item,) = states, items
        return [log_of_sum_of_exponentials(body, total, item)]

    def sums(op: Op, values: Sequence[ir.Value], axis: int) -> Sequence[ir.Value]:
        first = op.Gather(values[0], op.const(0), axis=axis)
        start = op.expand(op.const(-math.inf, op.dtype_of(first)), op.dims(first))
        return scan(op, values, [axis], [start], axis, step)

    return in_float(op, lambda op, value: over_items(op, [value], op.axis(dim, rank), sums)[0], self)
