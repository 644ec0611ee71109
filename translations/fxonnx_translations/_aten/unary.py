"""Elementwise functions of one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import onnx_ir as ir

from .._builder.numerics import in_double, in_float
from .._builder.op import Op
from .._registry import Translation, translates


def _one_to_one(op: Op, self: ir.Value, *, operator: str) -> ir.Value:
    """The ONNX operator of the same meaning, in the result's type (integers become floats, as in torch)."""
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

TRANSLATIONS = tuple(
    Translation(partial(_one_to_one, operator=operator), (target,)) for target, operator in _OPERATORS.items()
)


def _rounding(op: Op, self: ir.Value, operator: str) -> ir.Value:
    # Integers are already whole, and the ONNX operators take floats only.
    value: ir.Value = getattr(op, operator)(self) if op.is_float(self) else self
    return value


@translates("aten::ceil")
def ceil(op: Op, self: ir.Value) -> ir.Value:
    """aten::ceil(Tensor self) -> Tensor"""
    return _rounding(op, self, "Ceil")


@translates("aten::floor")
def floor(op: Op, self: ir.Value) -> ir.Value:
    """aten::floor(Tensor self) -> Tensor"""
    return _rounding(op, self, "Floor")


@translates("aten::round")
def round(op: Op, self: ir.Value) -> ir.Value:
    """aten::round(Tensor self) -> Tensor"""
    return _rounding(op, self, "Round")


@translates("aten::trunc", "aten::fix")
def trunc(op: Op, self: ir.Value) -> ir.Value:
    """aten::trunc(Tensor self) -> Tensor
    aten::fix(Tensor self) -> Tensor
    """
    return op.Mul(op.Sign(self), op.Floor(op.Abs(self))) if op.is_float(self) else self


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
        # Neg takes signed types only; unsigned negation wraps around, as 0 - x does.
        return op.Sub(op.const(0, op.dtype_of(self)), self)
    return op.Neg(self)


@translates("aten::sign", "aten::sgn")
def sign(op: Op, self: ir.Value) -> ir.Value:
    """aten::sign(Tensor self) -> Tensor
    aten::sgn(Tensor self) -> Tensor
    """
    if op.dtype_of(self) == ir.DataType.BOOL:
        return self
    # torch's sign of NaN is 0, ONNX Runtime's is NaN.
    return (
        op.Where(op.IsNaN(self), op.const(0.0, op.dtype_of(self)), op.Sign(self))
        if op.is_float(self)
        else op.Sign(self)
    )


@translates("aten::rsqrt")
def rsqrt(op: Op, self: ir.Value) -> ir.Value:
    """aten::rsqrt(Tensor self) -> Tensor"""
    return in_float(op, lambda op, x: op.Reciprocal(op.Sqrt(x)), self)


@translates("aten::square")
def square(op: Op, self: ir.Value) -> ir.Value:
    """aten::square(Tensor self) -> Tensor"""
    value = op.cast(self, op.result.dtype)
    return op.Mul(value, value)


def _log_of_base(op: Op, self: ir.Value, scale: float) -> ir.Value:
    def formula(op: Op, x: ir.Value) -> ir.Value:
        return op.Mul(op.Log(x), op.const(scale, op.dtype_of(x)))

    # In float32 one in six powers of two would get a logarithm that is not whole, and its floor is another number.
    exact = in_double if op.result.dtype == ir.DataType.FLOAT else in_float
    return exact(op, formula, self)


@translates("aten::log2")
def log2(op: Op, self: ir.Value) -> ir.Value:
    """aten::log2(Tensor self) -> Tensor"""
    return _log_of_base(op, self, 1.4426950408889634)


@translates("aten::log10")
def log10(op: Op, self: ir.Value) -> ir.Value:
    """aten::log10(Tensor self) -> Tensor"""
    return _log_of_base(op, self, 0.4342944819032518)


@translates("aten::exp2")
def exp2(op: Op, self: ir.Value) -> ir.Value:
    """aten::exp2(Tensor self) -> Tensor"""
    return op.Pow(op.const(2.0, op.result.dtype), op.cast(self, op.result.dtype))


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


@translates("aten::isnan")
def isnan(op: Op, self: ir.Value) -> ir.Value:
    """aten::isnan(Tensor self) -> Tensor"""
    if not op.is_float(self):
        return op.expand(op.const(False), op.result.shape)
    return op.IsNaN(self)


@translates("aten::isinf")
def isinf(op: Op, self: ir.Value) -> ir.Value:
    """aten::isinf(Tensor self) -> Tensor"""
    if not op.is_float(self):
        return op.expand(op.const(False), op.result.shape)
    if op.dtype_of(self) in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        # IsInf takes the half types from opset 20 on only; the wider float keeps infinities.
        return op.IsInf(op.cast(self, ir.DataType.FLOAT))
    return op.IsInf(self)
