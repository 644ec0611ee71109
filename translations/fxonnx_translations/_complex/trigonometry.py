"""Circular and hyperbolic functions of complex tensors, and their inverses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import onnx_ir as ir

from .._builder.numerics import log_one_plus
from .._builder.op import Op
from .._registry import Translation
from .functions import sqrt_of
from .parts import Pair, join
from .polar import angle_of

_Formula = Callable[[Op, Pair], Pair]
"""Emits a function of a complex number, given and returned as its two parts."""


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


def _turned(formula: _Formula) -> _Formula:
    """The circular function of a hyperbolic one, or the reverse: ``formula(i * value) / i``."""
    return lambda op, value: _over_i(op, formula(op, _times_i(op, value)))


_FORMULAS: Mapping[str, _Formula] = {
    "aten::sin": _turned(_sinh),
    "aten::cos": lambda op, value: _cosh(op, _times_i(op, value)),
    "aten::tan": _turned(_tanh),
    "aten::sinh": _sinh,
    "aten::cosh": _cosh,
    "aten::tanh": _tanh,
    "aten::asin": _asin,
    "aten::acos": _acos,
    "aten::atan": _turned(_atanh),
    "aten::asinh": _turned(_asin),
    "aten::acosh": _acosh,
    "aten::atanh": _atanh,
}


def _joined(op: Op, self: ir.Value, *, formula: _Formula) -> ir.Value:
    return join(op, *formula(op, op.parts(self)))


TRANSLATIONS = tuple(
    Translation(partial(_joined, formula=formula), (target,), complex=True) for target, formula in _FORMULAS.items()
)
