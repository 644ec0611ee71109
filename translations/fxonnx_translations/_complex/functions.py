"""Elementary functions of complex tensors: exponentials, logarithms, roots and powers."""

from __future__ import annotations

import math

import onnx_ir as ir

from .._builder.numerics import exp_minus_one, log_one_plus, sign_bit
from .._builder.op import Op, Operand
from .._registry import translates
from .arithmetic import divide, multiply
from .parts import Pair, join, pair_of, part_dtype
from .polar import angle_of, magnitude_of


def exp_of(op: Op, value: Pair) -> Pair:
    """Return the exponential."""
    a, b = value
    zero = op.const(0.0, op.dtype_of(a))
    size = op.Exp(a)
    # A zero angle gives a zero imaginary part, not infinity times zero.
    return op.Mul(size, op.Cos(b)), op.Where(op.Equal(b, zero), b, op.Mul(size, op.Sin(b)))


def _log_of_magnitude(op: Op, value: Pair) -> ir.Value:
    """Return log |z| without overflow, and without cancellation where |z| is about 1."""
    a, b = op.Abs(value[0]), op.Abs(value[1])
    dtype = op.dtype_of(a)
    one, half = op.const(1.0, dtype), op.const(0.5, dtype)
    larger, smaller = op.Max(a, b), op.Min(a, b)
    # |z|^2 - 1, for magnitudes near 1.
    excess = op.Add(op.Mul(op.Sub(larger, one), op.Add(larger, one)), op.Mul(smaller, smaller))
    near = op.And(op.Less(larger, op.const(2.0, dtype)), op.Greater(larger, half))
    safe = op.Where(near, excess, op.const(0.0, dtype))
    return op.Where(near, op.Mul(half, log_one_plus(op, safe)), op.Log(magnitude_of(op, (a, b))))


def log_of(op: Op, value: Pair) -> Pair:
    """Return the principal logarithm."""
    return _log_of_magnitude(op, value), angle_of(op, value)


def sqrt_of(op: Op, value: Pair) -> Pair:
    """Return the principal square root, without overflow."""
    a, b = value
    dtype = op.dtype_of(a)
    zero, half = op.const(0.0, dtype), op.const(0.5, dtype)
    infinite = op.IsInf(b)
    root = op.Sqrt(op.Add(op.Mul(op.Abs(a), half), op.Mul(magnitude_of(op, (a, b)), half)))
    divisor = op.Where(op.Equal(root, zero), op.const(1.0, dtype), op.Add(root, root))
    other = op.Where(op.Or(infinite, op.IsInf(a)), op.Where(infinite, op.Abs(b), zero), op.Div(op.Abs(b), divisor))
    positive = op.GreaterOrEqual(a, zero)
    size = op.Where(positive, other, root)
    # The branch cut is the negative axis: the imaginary part has the sign of b, also for -0.0.
    imaginary = op.Where(sign_bit(op, b), op.Neg(size), size)
    not_number = op.Or(op.IsNaN(a), op.IsNaN(b))
    nan = op.const(math.nan, dtype)
    real = op.Where(positive, root, other)
    return op.Where(not_number, nan, real), op.Where(not_number, nan, imaginary)


@translates("aten::exp", complex=True)
def exp(op: Op, self: ir.Value) -> ir.Value:
    """aten::exp(Tensor self) -> Tensor"""
    return join(op, *exp_of(op, op.parts(self)))


@translates("aten::exp2", complex=True)
def exp2(op: Op, self: ir.Value) -> ir.Value:
    """aten::exp2(Tensor self) -> Tensor"""
    a, b = op.parts(self)
    factor = op.const(math.log(2), op.dtype_of(a))
    return join(op, *exp_of(op, (op.Mul(a, factor), op.Mul(b, factor))))


@translates("aten::expm1", "aten::special_expm1", complex=True)
def expm1(op: Op, self: ir.Value) -> ir.Value:
    """aten::expm1(Tensor self) -> Tensor
    aten::special_expm1(Tensor self) -> Tensor
    """
    a, b = op.parts(self)
    half_sine = op.Sin(op.Mul(b, op.const(0.5, op.dtype_of(b))))
    size = op.Exp(a)
    # e^a cos b - 1 = (e^a - 1) cos b - 2 sin^2(b/2)
    real = op.Sub(
        op.Mul(exp_minus_one(op, a), op.Cos(b)), op.Mul(op.const(2.0, op.dtype_of(b)), op.Mul(half_sine, half_sine))
    )
    return join(op, real, op.Mul(size, op.Sin(b)))


@translates("aten::log", complex=True)
def log(op: Op, self: ir.Value) -> ir.Value:
    """aten::log(Tensor self) -> Tensor"""
    return join(op, *log_of(op, op.parts(self)))


def _log_to_base(op: Op, self: ir.Value, base: float) -> ir.Value:
    real, imaginary = log_of(op, op.parts(self))
    factor = op.const(1.0 / math.log(base), op.dtype_of(real))
    return join(op, op.Mul(real, factor), op.Mul(imaginary, factor))


@translates("aten::log2", complex=True)
def log2(op: Op, self: ir.Value) -> ir.Value:
    """aten::log2(Tensor self) -> Tensor"""
    return _log_to_base(op, self, 2.0)


@translates("aten::log10", complex=True)
def log10(op: Op, self: ir.Value) -> ir.Value:
    """aten::log10(Tensor self) -> Tensor"""
    return _log_to_base(op, self, 10.0)


def log1p_of(op: Op, value: Pair) -> Pair:
    """Return the principal logarithm of 1 + z."""
    a, b = value
    dtype = op.dtype_of(a)
    one, half = op.const(1.0, dtype), op.const(0.5, dtype)
    shifted = op.Add(a, one)
    # For small numbers |1 + z|^2 - 1 keeps the digits that 1 + a loses.
    near = op.And(op.Less(op.Abs(a), half), op.Less(op.Abs(b), half))
    excess = op.Add(op.Mul(a, op.Add(a, op.const(2.0, dtype))), op.Mul(b, b))
    small = op.Mul(half, log_one_plus(op, op.Where(near, excess, op.const(0.0, dtype))))
    return op.Where(near, small, _log_of_magnitude(op, (shifted, b))), angle_of(op, (shifted, b))


@translates("aten::log1p", "aten::special_log1p", complex=True)
def log1p(op: Op, self: ir.Value) -> ir.Value:
    """aten::log1p(Tensor self) -> Tensor
    aten::special_log1p(Tensor self) -> Tensor
    """
    return join(op, *log1p_of(op, op.parts(self)))


@translates("aten::sqrt", complex=True)
def sqrt(op: Op, self: ir.Value) -> ir.Value:
    """aten::sqrt(Tensor self) -> Tensor"""
    return join(op, *sqrt_of(op, op.parts(self)))


@translates("aten::rsqrt", complex=True)
def rsqrt(op: Op, self: ir.Value) -> ir.Value:
    """aten::rsqrt(Tensor self) -> Tensor"""
    one = pair_of(op, 1.0, part_dtype(op))
    return join(op, *divide(op, one, sqrt_of(op, op.parts(self))))


@translates("aten::sigmoid", "aten::special_expit", complex=True)
def sigmoid(op: Op, self: ir.Value) -> ir.Value:
    """aten::sigmoid(Tensor self) -> Tensor
    aten::special_expit(Tensor self) -> Tensor
    """
    return join(op, *_sigmoid_of(op, op.parts(self)))


def _sigmoid_of(op: Op, value: Pair) -> Pair:
    one = pair_of(op, 1.0, op.dtype_of(value[0]))
    real, imaginary = exp_of(op, (op.Neg(value[0]), op.Neg(value[1])))
    return divide(op, one, (op.Add(one[0], real), imaginary))


@translates("aten::silu", complex=True)
def silu(op: Op, self: ir.Value) -> ir.Value:
    """aten::silu(Tensor self) -> Tensor"""
    value = op.parts(self)
    return join(op, *multiply(op, value, _sigmoid_of(op, value)))


def _power(op: Op, base: Pair, exponent: Pair) -> Pair:
    """Return exp(w log z), and torch's results for powers of zero, which has no logarithm."""
    if op.dtype_of(base[0]) != ir.DataType.DOUBLE:
        # In DOUBLE: the exponent and the power amplify the rounding error of the logarithm.
        dtype = op.dtype_of(base[0])
        wide = [(op.cast(a, ir.DataType.DOUBLE), op.cast(b, ir.DataType.DOUBLE)) for a, b in (base, exponent)]
        real, imaginary = _power(op, *wide)
        return op.cast(real, dtype), op.cast(imaginary, dtype)
    (a, b), (c, _) = base, exponent
    dtype = op.dtype_of(a)
    zero = op.const(0.0, dtype)
    real, imaginary = exp_of(op, multiply(op, exponent, log_of(op, base)))
    is_zero = op.And(op.Equal(a, zero), op.Equal(b, zero))
    nan = op.const(math.nan, dtype)
    negative = op.Where(op.Less(c, zero), op.const(math.inf, dtype), nan)
    shrinks = op.Greater(c, zero)
    return (
        op.Where(is_zero, op.Where(shrinks, zero, negative), real),
        op.Where(is_zero, op.Where(shrinks, zero, nan), imaginary),
    )


def _constant_power(op: Op, base: Pair, exponent: complex) -> Pair | None:
    """Return a power that torch computes without a logarithm, or None."""
    dtype = op.dtype_of(base[0])
    one = pair_of(op, 1.0, dtype)
    if exponent == 0:
        return one
    if exponent == 1:
        return base
    if exponent in (2, 3):
        squared = multiply(op, base, base)
        return squared if exponent == 2 else multiply(op, squared, base)
    if exponent == 0.5:
        return sqrt_of(op, base)
    if exponent in (-0.5, -1, -2):
        root = sqrt_of(op, base) if exponent == -0.5 else base if exponent == -1 else multiply(op, base, base)
        return divide(op, one, root)
    return None


@translates("aten::pow.Tensor_Tensor", "aten::pow.Scalar", complex=True)
def pow(op: Op, self: Operand, exponent: Operand) -> ir.Value:
    """aten::pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor
    aten::pow.Scalar(Scalar self, Tensor exponent) -> Tensor
    """
    dtype = part_dtype(op)
    return join(op, *_power(op, pair_of(op, self, dtype), pair_of(op, exponent, dtype)))


@translates("aten::pow.Tensor_Scalar", complex=True)
def pow_by_number(op: Op, self: ir.Value, exponent: Operand | complex) -> ir.Value:
    """aten::pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor"""
    dtype = part_dtype(op)
    base = pair_of(op, self, dtype)
    known = _constant_power(op, base, exponent) if isinstance(exponent, (int, float, complex)) else None
    return join(op, *(known or _power(op, base, pair_of(op, exponent, dtype))))
