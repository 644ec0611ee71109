"""Medians and what else picks one of the sorted elements."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch

from .._builder.op import Op
from .._registry import translates
from .sorting import argsort

INT64 = ir.DataType.INT64


def _middle(op: Op, self: ir.Value, axis: int, *, skip_nan: bool) -> tuple[ir.Value, ir.Value]:
    """The lower median along an axis and its place, dims kept."""
    places = argsort(op, self, axis)
    is_float = op.is_float(self)
    count = op.scalar(op.dims(self)[axis], INT64)
    if is_float and skip_nan:
        numbers = op.cast(op.Not(op.IsNaN(self)), INT64)
        count = op.ReduceSum(numbers, [axis], keepdims=1)
        # NaN stands behind all others; where there is nothing else, the first one is the median.
        middle = op.Max(op.Div(op.Sub(count, op.const(1)), op.const(2)), op.const(0))
        at = op.GatherElements(places, middle, axis=axis)
    else:
        middle = op.Reshape(op.Div(op.Sub(count, op.const(1)), op.const(2)), [1])
        at = op.Gather(places, middle, axis=axis)
    if is_float and not skip_nan:
        missing = op.IsNaN(self)
        flags = op.cast(missing, INT64)
        some = op.cast(op.ReduceMax(flags, [axis], keepdims=1), ir.DataType.BOOL)
        at = op.Where(some, op.ArgMax(flags, axis=axis, keepdims=1), at)
    return op.GatherElements(self, at, axis=axis), at


def _median(op: Op, self: ir.Value, dim: int, keepdim: bool, *, skip_nan: bool) -> tuple[ir.Value, ir.Value]:
    if op.rank_of(self) == 0:
        return self, op.const(0)
    axis = op.axis(dim, op.rank_of(self))
    value, at = _middle(op, self, axis, skip_nan=skip_nan)
    return (value, at) if keepdim else (op.Squeeze(value, [axis]), op.Squeeze(at, [axis]))


def _of_all(op: Op, self: ir.Value, *, skip_nan: bool) -> ir.Value:
    if 0 in op.dims(self):
        fill = math.nan if op.is_float(self) else torch.iinfo(op.result.torch_dtype).min
        return op.const(fill, op.dtype_of(self))
    total = 1
    for dim in op.dims(self):
        total = total * dim
    flat = op.reshape(self, (total,))
    return op.Squeeze(_middle(op, flat, 0, skip_nan=skip_nan)[0], [0])


@translates("aten::median.dim")
def median_along(op: Op, self: ir.Value, dim: int, keepdim: bool = False) -> tuple[ir.Value, ir.Value]:
    """aten::median.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    return _median(op, self, dim, keepdim, skip_nan=False)


@translates("aten::nanmedian.dim")
def nanmedian_along(op: Op, self: ir.Value, dim: int, keepdim: bool = False) -> tuple[ir.Value, ir.Value]:
    """aten::nanmedian.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    return _median(op, self, dim, keepdim, skip_nan=True)


@translates("aten::median")
def median(op: Op, self: ir.Value) -> ir.Value:
    """aten::median(Tensor self) -> Tensor"""
    return _of_all(op, self, skip_nan=False)


@translates("aten::nanmedian")
def nanmedian(op: Op, self: ir.Value) -> ir.Value:
    """aten::nanmedian(Tensor self) -> Tensor"""
    return _of_all(op, self, skip_nan=True)
