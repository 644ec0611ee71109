"""Building blocks of numeric formulas: polynomials, accurate logarithms, signs of zeros."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from .op import Op

__all__ = ["erfc_tail", "exp_minus_one", "in_float", "log_one_plus", "polynomial", "sign_bit"]

_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def in_float(op: Op, formula: Callable[..., ir.Value], *values: ir.Value) -> ir.Value:
    """A formula of several steps in the result's type, for half types in float32 with one rounding at the end."""
    dtype = op.result.dtype
    wide = ir.DataType.FLOAT if dtype in _HALF else dtype
    return op.cast(formula(op, *(op.cast(value, wide) for value in values)), dtype)


def polynomial(op: Op, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """c0 + c1 x + c2 x^2 + ... by Horner's rule."""
    dtype = op.dtype_of(x)
    value = op.const(coefficients[-1], dtype)
    for coefficient in reversed(coefficients[:-1]):
        value = op.Add(op.Mul(value, x), op.const(coefficient, dtype))
    return value


def sign_bit(op: Op, x: ir.Value) -> ir.Value:
    """BOOL: whether a float is negative; of the zeros, -0.0 is."""
    zero = op.const(0.0, op.dtype_of(x))
    return op.Less(op.Where(op.Equal(x, zero), op.Reciprocal(x), x), zero)


def log_one_plus(op: Op, x: ir.Value) -> ir.Value:
    """log(1 + x) without the cancellation near 0: the rounding of 1 + x is divided out again (Kahan)."""
    dtype = op.dtype_of(x)
    one = op.const(1.0, dtype)
    sum_ = op.Add(x, one)
    logarithm = op.Log(sum_)
    corrected = op.Mul(logarithm, op.Div(x, op.Sub(sum_, one)))
    small = op.Where(op.Equal(sum_, one), x, corrected)
    return op.Where(op.Less(op.Abs(x), op.const(0.5, dtype)), small, logarithm)


def exp_minus_one(op: Op, x: ir.Value) -> ir.Value:
    """exp(x) - 1 without the cancellation near 0 (Kahan)."""
    dtype = op.dtype_of(x)
    one = op.const(1.0, dtype)
    power = op.Exp(x)
    rest = op.Sub(power, one)
    corrected = op.Mul(rest, op.Div(x, op.Log(power)))
    small = op.Where(op.Equal(power, one), x, corrected)
    return op.Where(op.Less(op.Abs(x), op.const(0.5, dtype)), small, rest)


# Numerical Recipes, erfc by a Chebyshev fit: relative error below 1.2e-7 for x >= 0.
_ERFC = (
    -1.26551223,
    1.00002368,
    0.37409196,
    0.09678418,
    -0.18628806,
    0.27886807,
    -1.13520398,
    1.48851587,
    -0.82215223,
    0.17087277,
)


def erfc_tail(op: Op, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """t and p with erfc(x) = t exp(p - x^2) for x >= 0, to float32's precision."""
    dtype = op.dtype_of(x)
    t = op.Reciprocal(op.Add(op.Mul(x, op.const(0.5, dtype)), op.const(1.0, dtype)))
    return t, polynomial(op, t, _ERFC)
