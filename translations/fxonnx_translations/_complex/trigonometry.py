"""Circular and hyperbolic functions of complex tensors, and their inverses."""

from __future__ import annotations

import onnx_ir as ir

from .._builder.numerics import log_one_plus
from .._builder.op import Op
from .._registry import translates
from .functions import sqrt_of
from .parts import Pair, join
from .polar import angle_of


def _times_i(op: Op, value: Pair) -> Pair:
    return op.Neg(value[1]), value[0]


def _over_i(op: Op, value: Pair) -> Pair:
    return value[1], op.Neg(value[0])


def _sinh(op: Op, value: Pair) -> Pair:
    a, b = value
    zero = op.const(0.0, op.dtype_of(a))
    real, imaginary = op.Mul(op.Sinh(a), op.Cos(b)), op.Mul(op.Cosh(a), op.Sin(b))
    return real, op.Where(op.Equal(b, zero), b, imaginary)


def _cosh(op: Op, value: Pair) -> Pair:
    a, b = value
    zero = op.const(0.0, op.dtype_of(a))
    imaginary = op.Mul(op.Sinh(a), op.Sin(b))
    return op.Mul(op.Cosh(a), op.Cos(b)), op.Where(op.Or(op.Equal(a, zero), op.Equal(b, zero)), zero, imaginary)


def _tanh(op: Op, value: Pair) -> Pair:
    """Kahan's formula; beyond 22 its limit, where sinh and cosh are both exp(|x|) / 2."""
    a, b = value
    dtype = op.dtype_of(a)
    one, limit = op.const(1.0, dtype), op.const(22.0, dtype)
    far = op.Greater(op.Abs(a), limit)
    sinh = op.Sinh(op.Where(far, one, a))
    tangent, square = op.Tan(b), op.Mul(sinh, sinh)
    beta = op.Add(op.Mul(tangent, tangent), one)
    rho = op.Sqrt(op.Add(square, one))
    divisor = op.Add(op.Mul(beta, square), one)
    real = op.Div(op.Mul(op.Mul(beta, rho), sinh), divisor)
    size = op.Mul(op.const(4.0, dtype), op.Exp(op.Mul(op.Abs(a), op.const(-2.0, dtype))))
    rest = op.Mul(op.Mul(op.Sin(b), op.Cos(b)), size)
    return op.Where(far, op.Sign(a), real), op.Where(far, rest, op.Div(tangent, divisor))


def _around_one(op: Op, value: Pair) -> tuple[Pair, Pair]:
    """sqrt(1 - z) and sqrt(1 + z)."""
    a, b = value
    one = op.const(1.0, op.dtype_of(a))
    return sqrt_of(op, (op.Sub(one, a), op.Neg(b))), sqrt_of(op, (op.Add(one, a), b))


def _asin(op: Op, value: Pair) -> Pair:
    """Kahan, Branch Cuts for Complex Elementary Functions."""
    (c, d), (e, f) = _around_one(op, value)
    real = angle_of(op, (op.Sub(op.Mul(c, e), op.Mul(d, f)), value[0]))
    return real, op.Asinh(op.Sub(op.Mul(c, f), op.Mul(d, e)))


def _acos(op: Op, value: Pair) -> Pair:
    (c, d), (e, f) = _around_one(op, value)
    two = op.const(2.0, op.dtype_of(c))
    return op.Mul(two, angle_of(op, (e, c))), op.Asinh(op.Sub(op.Mul(e, d), op.Mul(f, c)))


def _acosh(op: Op, value: Pair) -> Pair:
    a, b = value
    dtype = op.dtype_of(a)
    c, d = sqrt_of(op, (op.Sub(a, op.const(1.0, dtype)), b))
    e, f = sqrt_of(op, (op.Add(a, op.const(1.0, dtype)), b))
    real = op.Asinh(op.Add(op.Mul(c, e), op.Mul(d, f)))
    return real, op.Mul(op.const(2.0, dtype), angle_of(op, (e, d)))


def _atanh(op: Op, value: Pair) -> Pair:
    a, b = value
    dtype = op.dtype_of(a)
    one, half = op.const(1.0, dtype), op.const(0.5, dtype)
    below, above, square = op.Sub(one, a), op.Add(one, a), op.Mul(b, b)
    # By the magnitude of a, so that the argument of log1p is never near its pole.
    size = op.Abs(a)
    near = op.Sub(one, size)
    quotient = op.Div(op.Mul(op.const(4.0, dtype), size), op.Add(op.Mul(near, near), square))
    real = op.Mul(op.Mul(op.const(0.25, dtype), op.Sign(a)), log_one_plus(op, quotient))
    angle = angle_of(op, (op.Sub(op.Mul(below, above), square), op.Add(b, b)))
    return real, op.Mul(half, angle)


@translates("aten::sin", complex=True)
def sin(op: Op, self: ir.Value) -> ir.Value:
    """aten::sin(Tensor self) -> Tensor"""
    return join(op, *_over_i(op, _sinh(op, _times_i(op, op.parts(self)))))


@translates("aten::cos", complex=True)
def cos(op: Op, self: ir.Value) -> ir.Value:
    """aten::cos(Tensor self) -> Tensor"""
    return join(op, *_cosh(op, _times_i(op, op.parts(self))))


@translates("aten::tan", complex=True)
def tan(op: Op, self: ir.Value) -> ir.Value:
    """aten::tan(Tensor self) -> Tensor"""
    return join(op, *_over_i(op, _tanh(op, _times_i(op, op.parts(self)))))


@translates("aten::sinh", complex=True)
def sinh(op: Op, self: ir.Value) -> ir.Value:
    """aten::sinh(Tensor self) -> Tensor"""
    return join(op, *_sinh(op, op.parts(self)))


@translates("aten::cosh", complex=True)
def cosh(op: Op, self: ir.Value) -> ir.Value:
    """aten::cosh(Tensor self) -> Tensor"""
    return join(op, *_cosh(op, op.parts(self)))


@translates("aten::tanh", complex=True)
def tanh(op: Op, self: ir.Value) -> ir.Value:
    """aten::tanh(Tensor self) -> Tensor"""
    return join(op, *_tanh(op, op.parts(self)))


@translates("aten::asin", complex=True)
def asin(op: Op, self: ir.Value) -> ir.Value:
    """aten::asin(Tensor self) -> Tensor"""
    return join(op, *_asin(op, op.parts(self)))


@translates("aten::acos", complex=True)
def acos(op: Op, self: ir.Value) -> ir.Value:
    """aten::acos(Tensor self) -> Tensor"""
    return join(op, *_acos(op, op.parts(self)))


@translates("aten::atan", complex=True)
def atan(op: Op, self: ir.Value) -> ir.Value:
    """aten::atan(Tensor self) -> Tensor"""
    return join(op, *_over_i(op, _atanh(op, _times_i(op, op.parts(self)))))


@translates("aten::asinh", complex=True)
def asinh(op: Op, self: ir.Value) -> ir.Value:
    """aten::asinh(Tensor self) -> Tensor"""
    return join(op, *_over_i(op, _asin(op, _times_i(op, op.parts(self)))))


@translates("aten::acosh", complex=True)
def acosh(op: Op, self: ir.Value) -> ir.Value:
    """aten::acosh(Tensor self) -> Tensor"""
    return join(op, *_acosh(op, op.parts(self)))


@translates("aten::atanh", complex=True)
def atanh(op: Op, self: ir.Value) -> ir.Value:
    """aten::atanh(Tensor self) -> Tensor"""
    return join(op, *_atanh(op, op.parts(self)))
