"""Unary functions, comparisons, logic and bitwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import onnx_ir as ir
import torch

from .._builder.dtypes import BOOL, to_torch_dtype
from .._builder.numerics import (
    exp_minus_one,
    in_double,
    in_float,
    log_of_sum_of_exponentials,
    log_one_plus,
    sign_bit,
    truncated,
)
from .._builder.op import Op, Operand, Unsupported
from .._registry import OpCall, Translation, translates


def _unary(op: Op, self: ir.Value, *, operator: str) -> ir.Value:
    """Apply the equivalent ONNX operator in the result's type (integers become floats, as in torch)."""
    value: ir.Value = getattr(op, operator)(op.cast(self, op.result.dtype))
    return value


_OPERATORS: Mapping[str, str] = {
    "aten::acos": "Acos",
    "aten::acosh": "Acosh",
    "aten::asin": "Asin",
    "aten::asinh": "Asinh",
    "aten::atan": "Atan",
    "aten::atanh": "Atanh",
    "aten::cos": "Cos",
    "aten::cosh": "Cosh",
    "aten::erf": "Erf",
    "aten::exp": "Exp",
    "aten::log": "Log",
    "aten::reciprocal": "Reciprocal",
    "aten::sigmoid": "Sigmoid",
    "aten::sin": "Sin",
    "aten::sinh": "Sinh",
    "aten::sqrt": "Sqrt",
    "aten::tan": "Tan",
    "aten::tanh": "Tanh",
    "aten::special_expit": "Sigmoid",
    "aten::special_erf": "Erf",
}

# ---- rounding


def _rounding(op: Op, self: ir.Value, *, operator: str) -> ir.Value:
    """aten::ceil(Tensor self) -> Tensor
    aten::floor(Tensor self) -> Tensor
    aten::round(Tensor self) -> Tensor
    """
    # The ONNX operators accept floats only.
    value: ir.Value = getattr(op, operator)(self) if op.is_float(self) else self
    return value


@translates("aten::trunc", "aten::fix", exact="the sign of a zero")
def trunc(op: Op, self: ir.Value) -> ir.Value:
    """aten::trunc(Tensor self) -> Tensor
    aten::fix(Tensor self) -> Tensor
    """
    return truncated(op, self) if op.is_float(self) else self


# ---- magnitude and sign


@translates("aten::abs", "aten::absolute")
def abs(op: Op, self: ir.Value) -> ir.Value:
    """aten::abs(Tensor self) -> Tensor
    aten::absolute(Tensor self) -> Tensor
    """
    return self if op.dtype_of(self) == ir.DataType.BOOL else op.Abs(self)


@translates("aten::neg", "aten::negative")
def neg(op: Op, self: ir.Value) -> ir.Value:
    """aten::neg(Tensor self) -> Tensor
    aten::negative(Tensor self) -> Tensor
    """
    if op.dtype_of(self).name.startswith("U"):
        # Neg accepts signed types only; unsigned negation wraps around, as 0 - x does.
        return op.Sub(op.const(0, op.dtype_of(self)), self)
    return op.Neg(self)


@translates("aten::sign", "aten::sgn", exact="the sign of NaN is 0")
def sign(op: Op, self: ir.Value) -> ir.Value:
    """aten::sign(Tensor self) -> Tensor
    aten::sgn(Tensor self) -> Tensor
    """
    if op.dtype_of(self) == ir.DataType.BOOL:
        return self
    if op.exact_numerics and op.is_float(self):
        # torch's sign of NaN is 0, ONNX Runtime's is NaN.
        return op.Where(op.IsNaN(self), op.const(0.0, op.dtype_of(self)), op.Sign(self))
    return op.Sign(self)


# ---- roots, powers and logarithms


@translates("aten::rsqrt")
def rsqrt(op: Op, self: ir.Value) -> ir.Value:
    """aten::rsqrt(Tensor self) -> Tensor"""
    return in_float(op, lambda op, x: op.Reciprocal(op.Sqrt(x)), self)


@translates("aten::square")
def square(op: Op, self: ir.Value) -> ir.Value:
    """aten::square(Tensor self) -> Tensor"""
    value = op.cast(self, op.result.dtype)
    return op.Mul(value, value)


def _log_of_base(op: Op, self: ir.Value, base: float, scale: float) -> ir.Value:
    def formula(op: Op, x: ir.Value) -> ir.Value:
        return op.Mul(op.Log(x), op.const(scale, op.dtype_of(x)))

    # In the dtype itself, the logarithm of one in six powers of two is not an integer, which would change its floor.
    if op.result.dtype == ir.DataType.FLOAT:
        return in_double(op, formula, self)
    value = in_float(op, formula, self)
    if op.result.dtype != ir.DataType.DOUBLE:
        return value
    power = op.Floor(op.Add(value, op.const(0.5, ir.DataType.DOUBLE)))
    return op.Where(op.Equal(op.Pow(op.const(base, ir.DataType.DOUBLE), power), self), power, value)


def _reject_uncertain_limits(call: OpCall) -> str | None:
    dtype, eps = call.arguments["self"].dtype, call.arguments["eps"]
    if dtype not in (torch.float32, torch.float64) and (eps is None or not dtype.is_floating_point):
        return "torch's decomposition computes half precision in float32, and converts integers"
    return None if eps is None or 0 <= eps <= 0.5 else "the limits are exchanged"


@translates("aten::logit", accepts=_reject_uncertain_limits)
def logit(op: Op, self: ir.Value, eps: float | None = None) -> ir.Value:
    """aten::logit(Tensor self, float? eps=None) -> Tensor"""
    dtype, x = op.dtype_of(self), self
    one = torch.ones((), dtype=op.result.torch_dtype)
    if eps is not None:
        low = torch.full_like(one, eps)
        x = op.Clip(x, op.const(low), op.const(one - low))
    return op.Log(op.Div(x, op.Sub(op.const(1.0, dtype), x)))


@translates("aten::log2")
def log2(op: Op, self: ir.Value) -> ir.Value:
    """aten::log2(Tensor self) -> Tensor"""
    return _log_of_base(op, self, 2.0, math.log2(math.e))


@translates("aten::log10")
def log10(op: Op, self: ir.Value) -> ir.Value:
    """aten::log10(Tensor self) -> Tensor"""
    return _log_of_base(op, self, 10.0, math.log10(math.e))


@translates("aten::exp2")
def exp2(op: Op, self: ir.Value) -> ir.Value:
    """aten::exp2(Tensor self) -> Tensor"""
    return op.Pow(op.const(2.0, op.result.dtype), op.cast(self, op.result.dtype))


# ---- negation


@translates("aten::logical_not")
def logical_not(op: Op, self: ir.Value) -> ir.Value:
    """aten::logical_not(Tensor self) -> Tensor"""
    return op.Not(op.cast(self, ir.DataType.BOOL))


@translates("aten::bitwise_not")
def bitwise_not(op: Op, self: ir.Value) -> ir.Value:
    """aten::bitwise_not(Tensor self) -> Tensor"""
    dtype = op.dtype_of(self)
    if dtype == ir.DataType.BOOL:
        return op.Not(self)
    if op.opset >= 18:
        return op.BitwiseNot(self)
    # Two's complement: ~x == -x - 1, and for unsigned types the largest value minus x.
    return op.Sub(op.const(-1 if not dtype.name.startswith("U") else 2 ** (dtype.itemsize * 8) - 1, dtype), self)


# ---- properties of floats


@translates("aten::isnan")
def isnan(op: Op, self: ir.Value) -> ir.Value:
    """aten::isnan(Tensor self) -> Tensor"""
    if not op.is_float(self):
        return op.expand(op.const(False), op.result.shape)
    return op.IsNaN(self)


@translates("aten::isfinite")
def isfinite(op: Op, self: ir.Value) -> ir.Value:
    """aten::isfinite(Tensor self) -> Tensor"""
    if not op.is_float(self):
        return op.expand(op.const(True), op.result.shape)
    # False for NaN.
    return op.Less(op.Abs(self), op.const(math.inf, op.dtype_of(self)))


@translates("aten::isinf")
def isinf(op: Op, self: ir.Value) -> ir.Value:
    """aten::isinf(Tensor self) -> Tensor"""
    if not op.is_float(self):
        return op.expand(op.const(False), op.result.shape)
    if op.dtype_of(self) in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        # IsInf accepts half types from opset 20 on; the cast to float keeps infinities.
        return op.IsInf(op.cast(self, ir.DataType.FLOAT))
    return op.IsInf(self)


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
    if op.is_float(self):
        return sign_bit(op, self)
    return op.Less(self, op.const(0, dtype))


# ---- functions of two floats


@translates("aten::logaddexp")
def logaddexp(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::logaddexp(Tensor self, Tensor other) -> Tensor"""
    return in_float(op, log_of_sum_of_exponentials, *op.promote(self, other))


@translates("aten::logaddexp2")
def logaddexp2(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::logaddexp2(Tensor self, Tensor other) -> Tensor"""

    def formula(op: Op, a: ir.Value, b: ir.Value) -> ir.Value:
        return log_of_sum_of_exponentials(op, a, b, base=2.0)

    return in_float(op, formula, *op.promote(self, other))


def _reject_non_floats(call: OpCall) -> str | None:
    is_float = call.arguments["self"].dtype.is_floating_point
    return None if is_float else "integers, which torch compares as integers"


@translates("aten::isclose", accepts=_reject_non_floats)
def isclose(
    op: Op, self: ir.Value, other: ir.Value, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> ir.Value:
    """aten::isclose(Tensor self, Tensor other, float rtol=1.0000000000000001e-05, float atol=1e-08, bool equal_nan=False) -> Tensor"""
    dtype = op.dtype_of(self)
    close = op.Equal(self, other)
    if equal_nan:
        close = op.Or(close, op.And(op.IsNaN(self), op.IsNaN(other)))
    if rtol == 0 and atol == 0:
        return close
    allowed = op.const(float(atol), dtype)
    if rtol != 0:
        wide = dtype if op.holds(float(rtol), dtype) else ir.DataType.FLOAT
        share = op.cast(op.Mul(op.cast(other, wide), op.const(float(rtol), wide)), dtype)
        # An infinite number is close to itself only.
        sum_ = op.Add(op.Abs(share), allowed)
        allowed = op.Min(sum_, op.const(float(torch.finfo(to_torch_dtype(dtype)).max), dtype))
    return op.Or(close, op.LessOrEqual(op.Abs(op.Sub(self, other)), allowed))


@translates("aten::heaviside")
def heaviside(op: Op, self: ir.Value, values: ir.Value) -> ir.Value:
    """aten::heaviside(Tensor self, Tensor values) -> Tensor"""
    dtype = op.dtype_of(self)
    if dtype == BOOL:
        return op.Or(self, values)
    zero = op.const(0, dtype)
    # NaN is neither zero nor greater: its step is 0.
    return op.selected(op.Equal(self, zero), values, op.cast(op.Greater(self, zero), dtype))


@translates("aten::copysign.Tensor", "aten::copysign.Scalar")
def copysign(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::copysign.Tensor(Tensor self, Tensor other) -> Tensor
    aten::copysign.Scalar(Tensor self, Scalar other) -> Tensor
    """
    size, sign = op.Abs(op.operand(self, op.result.dtype)), op.operand(other, op.result.dtype)
    return op.selected(sign_bit(op, sign), op.Neg(size), size)


def _without_nan(op: Op, self: ir.Value, other: ir.Value, operator: str) -> ir.Value:
    left, right = op.promote(self, other)
    if op.dtype_of(left) == ir.DataType.BOOL:
        return op.Or(left, right) if operator == "Max" else op.And(left, right)
    larger: ir.Value = getattr(op, operator)(left, right)
    if not op.is_float(left):
        return larger
    return op.selected(op.IsNaN(left), right, op.selected(op.IsNaN(right), left, larger))


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
    # The quotient of equal magnitudes is one, also of two zeros or infinities; the angle of two zeros is zero.
    quotient = op.Where(op.Equal(height, width), one, op.Div(height, width))
    acute = op.Where(op.Equal(op.Add(height, width), zero), zero, op.Atan(quotient))
    angle = op.Where(sign_bit(op, x), op.Sub(op.const(math.pi, dtype), acute), acute)
    return op.selected(sign_bit(op, y), op.Neg(angle), angle)


@translates("aten::atan2", "aten::arctan2")
def atan2(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::atan2(Tensor self, Tensor other) -> Tensor
    aten::arctan2(Tensor self, Tensor other) -> Tensor
    """
    return in_float(op, _angle_of, *op.promote(self, other))


def _magnitude(op: Op, one: ir.Value, other: ir.Value) -> ir.Value:
    dtype = op.dtype_of(one)
    zero = op.const(0.0, dtype)
    one, other = op.Abs(one), op.Abs(other)
    larger, smaller = op.Max(one, other), op.Min(one, other)
    # Scaled by the larger magnitude, so that no square overflows; equal ones may be zeros or infinities.
    quotient = op.Where(op.Equal(larger, smaller), op.const(1.0, dtype), op.Div(smaller, larger))
    length = op.Mul(larger, op.Sqrt(op.Add(op.Mul(quotient, quotient), op.const(1.0, dtype))))
    infinite = op.Or(op.IsInf(one), op.IsInf(other))
    length = op.Where(op.Equal(larger, zero), zero, length)
    return op.Where(infinite, op.const(math.inf, dtype), length)


@translates("aten::hypot")
def hypot(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::hypot(Tensor self, Tensor other) -> Tensor"""
    return in_float(op, _magnitude, *op.promote(self, other))


@translates("aten::frexp.Tensor", exact="NaN propagates")
def frexp(op: Op, self: ir.Value) -> tuple[ir.Value, ir.Value]:
    """aten::frexp.Tensor(Tensor self) -> (Tensor mantissa, Tensor exponent)

    The logarithm gives the exponent within one; scaling by a power of two does not round.
    """
    dtype = op.dtype_of(self)
    wide = ir.DataType.DOUBLE if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    x = op.cast(self, wide)
    zero, one, half, two = (op.const(number, wide) for number in (0.0, 1.0, 0.5, 2.0))
    special = op.Or(op.Equal(x, zero), op.IsInf(x))
    if op.exact_numerics:
        special = op.Or(special, op.IsNaN(x))
    safe = op.Where(special, one, x)
    # Subnormal numbers are scaled to normal ones first.
    tiny = op.Less(op.Abs(safe), op.const(2.0**-100, wide))
    safe = op.Where(tiny, op.Mul(safe, op.const(2.0**60, wide)), safe)
    power = op.Add(op.Floor(op.Mul(op.Log(op.Abs(safe)), op.const(1 / math.log(2), wide))), one)
    # In two steps, because the power of two may be out of range.
    part = op.Floor(op.Mul(power, half))
    mantissa = op.Div(op.Div(safe, op.Pow(two, part)), op.Pow(two, op.Sub(power, part)))
    over, under = op.GreaterOrEqual(op.Abs(mantissa), one), op.Less(op.Abs(mantissa), half)
    mantissa = op.Where(over, op.Mul(mantissa, half), op.Where(under, op.Mul(mantissa, two), mantissa))
    power = op.Where(over, op.Add(power, one), op.Where(under, op.Sub(power, one), power))
    power = op.Where(tiny, op.Sub(power, op.const(60.0, wide)), power)
    exponent = op.cast(op.Where(special, zero, power), ir.DataType.INT32)
    return op.cast(op.Where(special, x, mantissa), dtype), exponent


@translates("aten::nextafter", exact="NaN propagates")
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
    # The step of a number below 1 is computed for a scaled one, where it is not subnormal.
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
    value = op.selected(op.Equal(x, goal), goal, value)
    if op.exact_numerics:
        # The sum is NaN if an operand is.
        value = op.Where(op.Or(op.IsNaN(x), op.IsNaN(goal)), op.Add(x, goal), value)
    return op.cast(value, dtype)


# ---- comparison


def _comparison(op: Op, self: Operand, other: Operand, *, operator: str) -> ir.Value:
    """aten::eq.Tensor(Tensor self, Tensor other) -> Tensor
    aten::eq.Scalar(Tensor self, Scalar other) -> Tensor
    aten::lt.Tensor(Tensor self, Tensor other) -> Tensor
    aten::lt.Scalar(Tensor self, Scalar other) -> Tensor
    aten::le.Tensor(Tensor self, Tensor other) -> Tensor
    aten::le.Scalar(Tensor self, Scalar other) -> Tensor
    aten::gt.Tensor(Tensor self, Tensor other) -> Tensor
    aten::gt.Scalar(Tensor self, Scalar other) -> Tensor
    aten::ge.Tensor(Tensor self, Tensor other) -> Tensor
    aten::ge.Scalar(Tensor self, Scalar other) -> Tensor
    """
    left, right = op.promote(self, other)
    dtype = op.dtype_of(left)
    if dtype == BOOL and operator != "Equal":
        # Booleans are ordered as 0 and 1.
        left, right = op.cast(left, ir.DataType.INT32), op.cast(right, ir.DataType.INT32)
    elif dtype in (ir.DataType.INT8, ir.DataType.INT16, ir.DataType.UINT8, ir.DataType.UINT16):
        # ONNX Runtime compares 32 and 64 bit integers only.
        left, right = op.cast(left, ir.DataType.INT32), op.cast(right, ir.DataType.INT32)
    value: ir.Value = getattr(op, operator)(left, right)
    return value


@translates("aten::ne.Tensor", "aten::ne.Scalar", "aten::not_equal.Tensor")
def ne(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::ne.Tensor(Tensor self, Tensor other) -> Tensor
    aten::ne.Scalar(Tensor self, Scalar other) -> Tensor
    aten::not_equal.Tensor(Tensor self, Tensor other) -> Tensor
    """
    if not isinstance(other, ir.Value) and other == 0:
        return op.cast(self, BOOL)
    return op.Not(_comparison(op, self, other, operator="Equal"))


# ---- logical and bitwise operators


def _logical(op: Op, self: ir.Value, other: ir.Value, *, operator: str) -> ir.Value:
    """aten::logical_and(Tensor self, Tensor other) -> Tensor
    aten::logical_or(Tensor self, Tensor other) -> Tensor
    aten::logical_xor(Tensor self, Tensor other) -> Tensor
    """
    value: ir.Value = getattr(op, operator)(op.cast(self, BOOL), op.cast(other, BOOL))
    return value


def _bitwise(op: Op, self: Operand, other: Operand, *, operator: str) -> ir.Value:
    """aten::bitwise_or.Tensor(Tensor self, Tensor other) -> Tensor
    aten::bitwise_or.Scalar(Tensor self, Scalar other) -> Tensor
    aten::__or__.Tensor(Tensor self, Tensor other) -> Tensor
    aten::__or__.Scalar(Tensor self, Scalar other) -> Tensor
    aten::bitwise_xor.Tensor(Tensor self, Tensor other) -> Tensor
    aten::bitwise_xor.Scalar(Tensor self, Scalar other) -> Tensor
    aten::__xor__.Tensor(Tensor self, Tensor other) -> Tensor
    aten::__xor__.Scalar(Tensor self, Scalar other) -> Tensor
    """
    left, right = op.promote(self, other)
    if op.dtype_of(left) == BOOL:
        value: ir.Value = getattr(op, operator)(left, right)
        return value
    if op.opset < 18:
        raise Unsupported(f"Bitwise{operator} of integers exists from opset 18 on")
    bits: ir.Value = getattr(op, f"Bitwise{operator}")(left, right)
    return bits


@translates("aten::bitwise_and.Tensor", "aten::bitwise_and.Scalar", "aten::__and__.Tensor", "aten::__and__.Scalar")
def bitwise_and(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::bitwise_and.Tensor(Tensor self, Tensor other) -> Tensor
    aten::bitwise_and.Scalar(Tensor self, Scalar other) -> Tensor
    aten::__and__.Tensor(Tensor self, Tensor other) -> Tensor
    aten::__and__.Scalar(Tensor self, Scalar other) -> Tensor
    """
    # A mask of the lowest bits is a remainder, of negative integers as well: BitwiseAnd exists from opset 18 on.
    is_mask = isinstance(other, int) and 0 < other < 64 and (other + 1).bit_count() == 1
    if is_mask and op.opset < 18 and op.dtype_of(self).is_integer():
        return op.Mod(self, op.const(other + 1, op.dtype_of(self)))
    return _bitwise(op, self, other, operator="And")


def _overloads(name: str) -> tuple[str, str]:
    return f"aten::{name}.Tensor", f"aten::{name}.Scalar"


_TABLES: Sequence[tuple[Callable[..., ir.Value], Mapping[str, tuple[str, ...]]]] = (
    (_rounding, {"Ceil": ("aten::ceil",), "Floor": ("aten::floor",), "Round": ("aten::round",)}),
    (
        _comparison,
        {
            "Equal": _overloads("eq"),
            "Less": _overloads("lt"),
            "LessOrEqual": _overloads("le"),
            "Greater": _overloads("gt"),
            "GreaterOrEqual": _overloads("ge"),
        },
    ),
    (_logical, {"And": ("aten::logical_and",), "Or": ("aten::logical_or",), "Xor": ("aten::logical_xor",)}),
    (
        _bitwise,
        {
            "Or": (*_overloads("bitwise_or"), *_overloads("__or__")),
            "Xor": (*_overloads("bitwise_xor"), *_overloads("__xor__")),
        },
    ),
)
"""Functions of an ONNX operator; for each operator, those that it translates."""

TRANSLATIONS = (
    *(Translation(partial(_unary, operator=operator), (target,)) for target, operator in _OPERATORS.items()),
    *(
        Translation(partial(function, operator=operator), targets)
        for function, table in _TABLES
        for operator, targets in table.items()
    ),
)
