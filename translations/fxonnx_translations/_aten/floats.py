"""Elementwise functions that look at signs, zeros, NaN and the parts of a float."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch

from .._builder.dtypes import to_torch_dtype
from .._builder.numerics import exp_minus_one, in_float, log_one_plus, sign_bit
from .._builder.op import Op, Operand
from .._registry import translates


@translates("aten::log1p", "aten::special_log1p")
def log1p(op: Op, self: ir.Value) -> ir.Value:
    """aten::log1p(Tensor self) -> Tensor
    aten::special_log1p(Tensor self) -> Tensor
    """
    return in_float(op, log_one_plus, self)


@translates("aten::expm1", "aten::special_expm1")
def expm1(op: Op, self: ir.Value) -> ir.Value:
    """aten::expm1(Tensor self) -> Tensor
    aten::special_expm1(Tensor self) -> Tensor
    """
    return in_float(op, exp_minus_one, self)


@translates("aten::signbit")
def signbit(op: Op, self: ir.Value) -> ir.Value:
    """aten::signbit(Tensor self) -> Tensor"""
    dtype = op.dtype_of(self)
    if dtype == ir.DataType.BOOL or dtype.name.startswith("U"):
        return op.expand(op.const(False), op.result.shape)
    return sign_bit(op, self) if op.is_float(self) else op.Less(self, op.const(0, dtype))


@translates("aten::copysign.Tensor", "aten::copysign.Scalar")
def copysign(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::copysign.Tensor(Tensor self, Tensor other) -> Tensor
    aten::copysign.Scalar(Tensor self, Scalar other) -> Tensor
    """
    size, sign = op.Abs(op.operand(self, op.result.dtype)), op.operand(other, op.result.dtype)
    return op.Where(sign_bit(op, sign), op.Neg(size), size)


def _without_nan(op: Op, self: ir.Value, other: ir.Value, operator: str) -> ir.Value:
    left, right = op.promote(self, other)
    if op.dtype_of(left) == ir.DataType.BOOL:
        return op.Or(left, right) if operator == "Max" else op.And(left, right)
    larger: ir.Value = getattr(op, operator)(left, right)
    if not op.is_float(left):
        return larger
    return op.Where(op.IsNaN(left), right, op.Where(op.IsNaN(right), left, larger))


@translates("aten::fmax")
def fmax(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::fmax(Tensor self, Tensor other) -> Tensor"""
    return _without_nan(op, self, other, "Max")


@translates("aten::fmin")
def fmin(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::fmin(Tensor self, Tensor other) -> Tensor"""
    return _without_nan(op, self, other, "Min")


def _angle_of(op: Op, y: ir.Value, x: ir.Value) -> ir.Value:
    dtype = op.dtype_of(y)
    zero, one = op.const(0.0, dtype), op.const(1.0, dtype)
    height, width = op.Abs(y), op.Abs(x)
    # Equal parts, two zeros and two infinities among them, have a quotient of one; two zeros then an angle of zero.
    quotient = op.Where(op.Equal(height, width), one, op.Div(height, width))
    acute = op.Where(op.Equal(op.Add(height, width), zero), zero, op.Atan(quotient))
    angle = op.Where(sign_bit(op, x), op.Sub(op.const(math.pi, dtype), acute), acute)
    return op.Where(sign_bit(op, y), op.Neg(angle), angle)


@translates("aten::atan2", "aten::arctan2")
def atan2(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::atan2(Tensor self, Tensor other) -> Tensor
    aten::arctan2(Tensor self, Tensor other) -> Tensor
    """
    return in_float(op, _angle_of, self, other)


def _length_of(op: Op, one: ir.Value, other: ir.Value) -> ir.Value:
    dtype = op.dtype_of(one)
    zero = op.const(0.0, dtype)
    one, other = op.Abs(one), op.Abs(other)
    larger, smaller = op.Max(one, other), op.Min(one, other)
    # Scaled by the larger one, so that no square overflows; equal ones may be zeros or infinities.
    quotient = op.Where(op.Equal(larger, smaller), op.const(1.0, dtype), op.Div(smaller, larger))
    length = op.Mul(larger, op.Sqrt(op.Add(op.Mul(quotient, quotient), op.const(1.0, dtype))))
    infinite = op.Or(op.IsInf(one), op.IsInf(other))
    length = op.Where(op.Equal(larger, zero), zero, length)
    return op.Where(infinite, op.const(math.inf, dtype), length)


@translates("aten::hypot")
def hypot(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::hypot(Tensor self, Tensor other) -> Tensor"""
    return in_float(op, _length_of, self, other)


@translates("aten::frexp.Tensor")
def frexp(op: Op, self: ir.Value) -> tuple[ir.Value, ir.Value]:
    """aten::frexp.Tensor(Tensor self) -> (Tensor mantissa, Tensor exponent)

    The logarithm finds the exponent to within one; a power of two scales without rounding.
    """
    dtype = op.dtype_of(self)
    wide = ir.DataType.DOUBLE if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    x = op.cast(self, wide)
    zero, one, half, two = (op.const(number, wide) for number in (0.0, 1.0, 0.5, 2.0))
    special = op.Or(op.Equal(x, zero), op.Or(op.IsNaN(x), op.IsInf(x)))
    safe = op.Where(special, one, x)
    # Subnormal numbers are brought into the range of the others first.
    tiny = op.Less(op.Abs(safe), op.const(2.0**-100, wide))
    safe = op.Where(tiny, op.Mul(safe, op.const(2.0**60, wide)), safe)
    power = op.Add(op.Floor(op.Mul(op.Log(op.Abs(safe)), op.const(1 / math.log(2), wide))), one)
    # In two steps, because the power itself may be out of range.
    part = op.Floor(op.Mul(power, half))
    mantissa = op.Div(op.Div(safe, op.Pow(two, part)), op.Pow(two, op.Sub(power, part)))
    over, under = op.GreaterOrEqual(op.Abs(mantissa), one), op.Less(op.Abs(mantissa), half)
    mantissa = op.Where(over, op.Mul(mantissa, half), op.Where(under, op.Mul(mantissa, two), mantissa))
    power = op.Where(over, op.Add(power, one), op.Where(under, op.Sub(power, one), power))
    power = op.Where(tiny, op.Sub(power, op.const(60.0, wide)), power)
    exponent = op.cast(op.Where(special, zero, power), ir.DataType.INT32)
    return op.cast(op.Where(special, x, mantissa), dtype), exponent


@translates("aten::nextafter")
def nextafter(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::nextafter(Tensor self, Tensor other) -> Tensor

    ONNX has no bits of floats. Adding more than half a unit in the last place, and less than one and a half, rounds to
    the next number; the half types are rounded by the cast from float32.
    """
    dtype = op.result.dtype
    limits = torch.finfo(to_torch_dtype(dtype))
    wide = ir.DataType.DOUBLE if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    x, goal = op.cast(self, wide), op.cast(other, wide)
    zero, one, size = op.const(0.0, wide), op.const(1.0, wide), op.Abs(x)
    upwards = op.Less(x, goal)
    # The step of a number below 1 is computed for a larger one, where it is not subnormal.
    scale = op.Where(op.Less(size, one), op.const(2.0**64, wide), one)
    scaled = op.Mul(x, scale)
    step = op.Mul(op.Abs(scaled), op.const(0.625 * limits.eps, wide))
    value = op.Div(op.Where(upwards, op.Add(scaled, step), op.Sub(scaled, step)), scale)
    smallest = op.const(limits.smallest_normal * limits.eps, wide)
    near_zero = op.Where(upwards, op.Add(x, smallest), op.Sub(x, smallest))
    value = op.Where(op.LessOrEqual(size, op.const(limits.smallest_normal, wide)), near_zero, value)
    largest = limits.max
    finite = op.Where(op.Less(x, zero), op.const(-largest, wide), op.const(largest, wide))
    value = op.Where(op.IsInf(x), finite, value)
    value = op.Where(op.Equal(x, goal), goal, value)
    # Their sum is NaN if one of them is.
    return op.cast(op.Where(op.Or(op.IsNaN(x), op.IsNaN(goal)), op.Add(x, goal), value), dtype)
