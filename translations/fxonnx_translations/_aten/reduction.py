"""Reductions over dims."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
import torch

from .._builder import dtypes
from .._builder.loops import loop
from .._builder.op import Op, Unsupported
from .._builder.symbolic_dims import Dim
from .._registry import translates

BOOL, INT32, INT64 = ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64
Axes = int | Sequence[int] | None


def axes_of(op: Op, value: ir.Value, dim: Axes) -> list[int]:
    """The axes to reduce; none given, or an empty list, means all."""
    rank = op.rank_of(value)
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return list(range(rank))
    dims = [dim] if isinstance(dim, int) else dim
    return sorted({op.axis(axis, rank) for axis in dims}) if rank else []


# What is left of no elements; a maximum does not exist, so that there are none of it either.
_OF_NOTHING = {
    "ReduceSum": 0,
    "ReduceProd": 1,
    "ReduceMean": math.nan,
    "ReduceMax": 0,
    "ReduceMin": 0,
    "ReduceLogSumExp": -math.inf,
    "ReduceL1": 0,
    "ReduceL2": 0,
    "ReduceSumSquare": 0,
}


def reduced(op: Op, operator: str, value: ir.Value, dim: Axes, keepdim: bool) -> ir.Value:
    """The ONNX reduction; a 0-dim tensor is its own sum, product, mean, maximum ..."""
    if op.rank_of(value) == 0:
        return value
    dims, axes = op.dims(value), axes_of(op, value, dim)
    if 0 in dims:
        # ONNX Runtime returns a tensor without elements as it is, whatever the axes.
        kept = [1 if axis in axes else size for axis, size in enumerate(dims) if keepdim or axis not in axes]
        return op.expand(op.const(_OF_NOTHING[operator], op.dtype_of(value)), kept)
    result: ir.Value = getattr(op, operator)(value, axes_of(op, value, dim), keepdims=int(keepdim))
    return result


def _accumulated(op: Op, operator: str, self: ir.Value, dim: Axes, keepdim: bool) -> ir.Value:
    """A reduction in the result's type; ONNX Runtime adds up 32 and 64 bit numbers, the smaller ones in those."""
    dtype = op.result.dtype
    wide = dtype if dtype not in _NARROW else (INT32 if dtype in dtypes.INTEGERS else ir.DataType.FLOAT)
    if dtype == INT32:
        # ONNX Runtime's sums stop at the largest number, torch's wrap around, as casts do.
        wide = INT64
    return op.cast(reduced(op, operator, op.cast(self, wide), dim, keepdim), dtype)


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
    # A symbolic size is the one that is there: what is broadcast has size 1.
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
    """A product of integers modulo 2**64 (or 2**32): ReduceProd of ONNX Runtime stops at the largest number.

    Returns:
        The value with the axis ``dim`` of size 1; with one axis if ``dim`` is None.
    """
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


_UNROLLED = 64
"""Up to so many factors are multiplied in pairs; more, or a dynamic number, by a Loop."""


def _extremum(op: Op, operator: str, self: ir.Value, dim: Axes, keepdim: bool) -> ir.Value:
    dtype = op.dtype_of(self)
    if dtype == BOOL or dtype in _NARROW:
        # ONNX Runtime has kernels for 32 and 64 bit numbers, INT8 and UINT8; the wider type orders the same.
        wide = ir.DataType.FLOAT if dtype.is_floating_point() else INT32
        return op.cast(reduced(op, operator, op.cast(self, wide), dim, keepdim), dtype)
    return reduced(op, operator, self, dim, keepdim)


def _with_nan(op: Op, operator: str, self: ir.Value, dim: Axes, keepdim: bool) -> ir.Value:
    """torch's maximum of anything with NaN is NaN; ONNX Runtime's reductions agree only by accident of the order."""
    extreme = _extremum(op, operator, self, dim, keepdim)
    if not op.is_float(self) or op.rank_of(self) == 0:
        return extreme
    # The sum of x - x is 0 for finite numbers but NaN for infinities, so ask for NaN itself.
    flags = op.cast(op.IsNaN(self), ir.DataType.FLOAT)
    some = op.cast(reduced(op, "ReduceMax", flags, dim, keepdim), BOOL)
    return op.Where(some, op.const(math.nan, op.dtype_of(self)), extreme)


@translates("aten::amax")
def amax(op: Op, self: ir.Value, dim: Sequence[int] = (), keepdim: bool = False) -> ir.Value:
    """aten::amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor"""
    return _with_nan(op, "ReduceMax", self, dim, keepdim)


@translates("aten::amin")
def amin(op: Op, self: ir.Value, dim: Sequence[int] = (), keepdim: bool = False) -> ir.Value:
    """aten::amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor"""
    return _with_nan(op, "ReduceMin", self, dim, keepdim)


@translates("aten::max")
def max(op: Op, self: ir.Value) -> ir.Value:
    """aten::max(Tensor self) -> Tensor"""
    return _with_nan(op, "ReduceMax", self, None, False)


@translates("aten::min")
def min(op: Op, self: ir.Value) -> ir.Value:
    """aten::min(Tensor self) -> Tensor"""
    return _with_nan(op, "ReduceMin", self, None, False)


@translates("aten::any", "aten::any.dim", "aten::any.dims")
def any(op: Op, self: ir.Value, dim: Axes = None, keepdim: bool = False) -> ir.Value:
    """aten::any(Tensor self) -> Tensor
    aten::any.dim(Tensor self, int dim, bool keepdim=False) -> Tensor
    aten::any.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor
    """
    # Summing the flags is right for no elements, too, where ReduceMax gives its type's lowest number.
    flags = op.cast(op.cast(self, BOOL), INT64)
    return op.cast(op.cast(reduced(op, "ReduceSum", flags, dim, keepdim), BOOL), op.result.dtype)


@translates("aten::all", "aten::all.dim", "aten::all.dims")
def all(op: Op, self: ir.Value, dim: Axes = None, keepdim: bool = False) -> ir.Value:
    """aten::all(Tensor self) -> Tensor
    aten::all.dim(Tensor self, int dim, bool keepdim=False) -> Tensor
    aten::all.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor
    """
    missing = op.cast(op.Not(op.cast(self, BOOL)), INT64)
    none_missing = op.Not(op.cast(reduced(op, "ReduceSum", missing, dim, keepdim), BOOL))
    return op.cast(none_missing, op.result.dtype)


def _count(dims: Sequence[Dim]) -> Dim:
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


def variance(op: Op, self: ir.Value, dim: Axes, correction: float | Dim, keepdim: bool) -> ir.Value:
    """The mean squared distance from the mean, over ``count - correction``."""
    axes = axes_of(op, self, dim)
    centered = op.Sub(self, reduced(op, "ReduceMean", self, axes, True))
    squares = op.Mul(centered, centered)
    dtype = op.dtype_of(self)
    if correction == 0:
        return reduced(op, "ReduceMean", squares, axes, keepdim)
    count = _count([op.dims(self)[axis] for axis in axes])
    total = reduced(op, "ReduceSum", squares, axes, keepdim)
    if isinstance(count, int) and isinstance(correction, int | float):
        # torch clamps the divisor at zero: 0/0 is NaN, and x/0 infinite.
        return op.Div(total, op.const(float(count - correction if count > correction else 0), dtype))
    is_number = isinstance(correction, int | float)
    subtracted = op.const(float(correction), dtype) if is_number else op.scalar(correction, dtype)
    divisor = op.Sub(op.scalar(count, dtype), subtracted)
    return op.Div(total, op.Max(divisor, op.const(0.0, dtype)))


@translates("aten::var.correction", "aten::var.dim", "aten::var")
def var(
    op: Op,
    self: ir.Value,
    dim: Axes = None,
    unbiased: bool = True,
    keepdim: bool = False,
    correction: float | None = None,
) -> ir.Value:
    """aten::var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor
    aten::var.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor
    aten::var(Tensor self, bool unbiased=True) -> Tensor
    """
    return variance(op, self, dim, float(unbiased) if correction is None else correction, keepdim)


@translates("aten::std.correction", "aten::std.dim", "aten::std")
def std(
    op: Op,
    self: ir.Value,
    dim: Axes = None,
    unbiased: bool = True,
    keepdim: bool = False,
    correction: float | None = None,
) -> ir.Value:
    """aten::std.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor
    aten::std.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor
    aten::std(Tensor self, bool unbiased=True) -> Tensor
    """
    return op.Sqrt(variance(op, self, dim, float(unbiased) if correction is None else correction, keepdim))


@translates("aten::logsumexp")
def logsumexp(op: Op, self: ir.Value, dim: Sequence[int], keepdim: bool = False) -> ir.Value:
    """aten::logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor"""
    return reduced(op, "ReduceLogSumExp", op.cast(self, op.result.dtype), dim, keepdim)


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
    return op.cast(op.CumSum(op.cast(self, wide), axis), result)
