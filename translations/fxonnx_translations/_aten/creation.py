"""Factory functions, dtype conversion and copies."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
import torch

from .._builder.op import Op, Operand
from .._builder.symbolic_dims import Dim, is_static
from .._registry import translates

# ---- constants


def filled(op: Op, value: Operand) -> ir.Value:
    """Return a tensor of the result's shape and type, filled with one number."""
    dtype, shape = op.result.dtype, op.result.shape
    if isinstance(value, (bool, int, float)) and is_static(shape) and math.prod(int(dim) for dim in shape) == 1:
        return op.reshape(op.const([value], dtype), shape)
    return op.expand(op.operand(value, dtype), shape)


@translates("aten::full", "aten::full_like", "aten::new_full")
def full(op: Op, fill_value: Operand, **others: Any) -> ir.Value:
    """aten::full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    aten::full_like(Tensor self, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
    aten::new_full(Tensor self, SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    """
    return filled(op, fill_value)


@translates(
    "aten::zeros",
    "aten::empty.memory_format",
    "aten::empty_strided",
    "aten::zeros_like",
    "aten::empty_like",
    "aten::new_zeros",
    "aten::new_empty",
    "aten::new_empty_strided",
)
def zeros(op: Op, **others: Any) -> ir.Value:
    """aten::zeros(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    aten::empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
    aten::empty_strided(SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    aten::zeros_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
    aten::empty_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
    aten::new_zeros(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    aten::new_empty(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    aten::new_empty_strided(Tensor self, SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    """
    # Any content is allowed for empty tensors; zeros are reproducible.
    return filled(op, 0)


@translates("aten::ones", "aten::ones_like", "aten::new_ones")
def ones(op: Op, **others: Any) -> ir.Value:
    """aten::ones(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    aten::ones_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
    aten::new_ones(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    """
    return filled(op, 1)


@translates("aten::fill.Scalar", "aten::fill.Tensor")
def fill(op: Op, self: ir.Value, value: Operand) -> ir.Value:
    """aten::fill.Scalar(Tensor self, Scalar value) -> Tensor
    aten::fill.Tensor(Tensor self, Tensor value) -> Tensor
    """
    return filled(op, value)


@translates("aten::scalar_tensor")
def scalar_tensor(op: Op, s: Operand, **options: Any) -> ir.Value:
    """aten::scalar_tensor(Scalar s, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""
    return op.operand(s, op.result.dtype)


def _range(op: Op, start: Operand, end: Operand, step: Operand) -> ir.Value:
    """Range in the result's type; for half types in FLOAT and for small integers in INT64, which have kernels."""
    dtype = op.result.dtype
    counting = ir.DataType.INT64
    if dtype.is_floating_point():
        if not all(map(_is_exact, (start, end, step))):
            return _rounded_range(op, start, end, step)
        counting = dtype if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    limits = (op.operand(limit, counting) for limit in (start, end, step))
    return op.cast(op.Range(*limits), dtype)


def _is_exact(limit: Operand) -> bool:
    """Whether sums of multiples of a number have no rounding errors."""
    if isinstance(limit, ir.Value):
        return limit.dtype is not None and limit.dtype.is_integer()
    return (limit * 2).is_integer() if isinstance(limit, float) else not isinstance(limit, torch.SymFloat)


def _rounded_range(op: Op, start: Operand, end: Operand, step: Operand) -> ir.Value:
    """A range whose number of elements and elements have torch's rounding: Range adds the step again and again."""
    first, last, difference = (op.operand(limit, ir.DataType.DOUBLE) for limit in (start, end, step))
    count = op.cast(op.Ceil(op.Div(op.Sub(last, first), difference)), ir.DataType.INT64)
    numbers = op.cast(op.Range(op.const(0), count, op.const(1)), ir.DataType.DOUBLE)
    return op.cast(op.Add(op.Mul(numbers, difference), first), op.result.dtype)


@translates("aten::arange")
def arange(op: Op, end: Operand, **options: Any) -> ir.Value:
    """aten::arange(Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""
    return _range(op, 0, end, 1)


@translates("aten::arange.start")
def arange_start(op: Op, start: Operand, end: Operand, **options: Any) -> ir.Value:
    """aten::arange.start(Scalar start, Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""
    return _range(op, start, end, 1)


@translates("aten::arange.start_step")
def arange_start_step(op: Op, start: Operand, end: Operand, step: Operand = 1, **options: Any) -> ir.Value:
    """aten::arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""
    return _range(op, start, end, step)


@translates("aten::eye", "aten::eye.m")
def eye(op: Op, n: Dim, m: Dim | None = None, **options: Any) -> ir.Value:
    """aten::eye(SymInt n, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    aten::eye.m(SymInt n, SymInt m, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    """
    rows, columns = (op.Range(0, op.scalar(size), 1) for size in op.result.shape)
    return op.cast(op.Equal(op.Unsqueeze(rows, [1]), columns), op.result.dtype)


# ---- dtype conversion and copies


@translates(
    "aten::to.dtype",
    "aten::to.dtype_layout",
    "aten::to.device",
    "aten::to.other",
    "aten::_to_copy",
    "aten::type_as",
)
def to(op: Op, self: ir.Value, **options: Any) -> ir.Value:
    """aten::to.dtype(Tensor(a) self, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)
    aten::to.dtype_layout(Tensor(a) self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)
    aten::to.device(Tensor(a) self, Device device, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)
    aten::to.other(Tensor(a) self, Tensor other, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)
    aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor
    aten::type_as(Tensor self, Tensor other) -> Tensor
    """
    return op.cast(self, op.result.dtype)


@translates("prims::convert_element_type")
def convert_element_type(op: Op, a: ir.Value, dtype: torch.dtype) -> ir.Value:
    """prims::convert_element_type(Tensor a, ScalarType dtype) -> Tensor"""
    return op.cast(a, op.result.dtype)


@translates("aten::copy")
def copy(op: Op, self: ir.Value, src: ir.Value, non_blocking: bool = False) -> ir.Value:
    """aten::copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor"""
    return op.expand(op.cast(src, op.result.dtype), op.dims(self))


@translates("aten::_is_all_true")
def is_all_true(op: Op, self: ir.Value) -> ir.Value:
    """aten::_is_all_true(Tensor self) -> Tensor"""
    # True for an empty mask, whose ReduceProd is 1.
    return op.cast(op.ReduceProd(op.cast(self, ir.DataType.INT64), keepdims=0), ir.DataType.BOOL)


@translates("aten::_is_any_true")
def is_any_true(op: Op, self: ir.Value) -> ir.Value:
    """aten::_is_any_true(Tensor self) -> Tensor"""
    return op.cast(op.ReduceSum(op.cast(self, ir.DataType.INT64), keepdims=0), ir.DataType.BOOL)
