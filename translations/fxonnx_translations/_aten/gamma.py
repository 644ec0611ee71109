"""Incomplete gamma functions in float64: a series, a continued fraction, and an expansion for large parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from .._builder.loops import loop
from .._builder.numerics import erfc, in_double, log_one_plus, polynomial
from .._builder.op import Op
from .._registry import translates
from .special import log_gamma_positive

_DOUBLE = ir.DataType.DOUBLE
_EPSILON = 2.0**-53
# Near x = a series and fraction need about sqrt(2 a log(1 / epsilon)) terms; above, there is an asymptotic expansion.
_LARGE, _MOST_TERMS = 1e4, 5000

# DLMF 8.12.10: the coefficients of a^0, a^-1 and a^-2, as power series in eta.
_UNIFORM = (
    (
        -0.3333333333333333,
        0.08333333333333333,
        -0.014814814814814815,
        0.0011574074074074073,
        0.0003527336860670194,
        -0.0001787551440329218,
        3.919263178522438e-05,
        -2.1854485106799924e-06,
        -1.85406221071516e-06,
        8.296711340953087e-07,
        -1.7665952736826078e-07,
        6.707853543401498e-09,
        1.0261809784240309e-08,
        -4.382036018453353e-09,
    ),
    (
        -0.001851851851851852,
        -0.003472222222222222,
        0.0026455026455026454,
        -0.0009902263374485596,
        0.00020576131687242798,
        -4.018775720164609e-07,
        -1.8098550334489977e-05,
        7.64916091608111e-06,
        -1.6120900894563446e-06,
        4.647127802807434e-09,
    ),
    (
        0.004133597883597883,
        -0.0026813271604938273,
        0.0007716049382716049,
        2.0093878600823047e-06,
        -0.00010736653226365161,
        5.2923448829120125e-05,
    ),
)


def _number(op: Op, number: float) -> ir.Value:
    return op.const(number, _DOUBLE)


def _any(op: Op, condition: ir.Value) -> ir.Value:
    flags = op.Concat(op.Reshape(op.cast(condition, ir.DataType.INT64), [-1]), op.const([0]), axis=0)
    return op.cast(op.ReduceMax(flags, [0], keepdims=0), ir.DataType.BOOL)


def _series(op: Op, a: ir.Value, x: ir.Value) -> ir.Value:
    """1/a (1 + x/(a+1) + x^2/((a+1)(a+2)) + ...), for x below a + 1."""

    def step(body: Op, k: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        total, term, place = states
        place = body.Add(place, _number(body, 1.0))
        term = body.Mul(term, body.Div(x, place))
        return body.Add(total, term), term, place

    def proceed(body: Op, states: Sequence[ir.Value]) -> ir.Value:
        total, term, _ = states
        return _any(body, body.Greater(term, body.Mul(total, _number(body, _EPSILON))))

    first = op.Reciprocal(a)
    return loop(op, _MOST_TERMS, [first, first, a], step, proceed)[0]


def _fraction(op: Op, a: ir.Value, x: ir.Value) -> ir.Value:
    """1/(x+1-a - 1(1-a)/(x+3-a - 2(2-a)/(x+5-a - ...))), for x from a + 1, by the method of Lentz."""
    one, two = _number(op, 1.0), _number(op, 2.0)
    place = op.Add(op.Sub(x, a), one)

    def step(body: Op, k: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        value, upper, lower, place, _ = states
        i = body.Add(body.cast(body.Squeeze(k, [0]), _DOUBLE), one)
        numerator = body.Mul(i, body.Sub(a, i))
        place = body.Add(place, two)
        # The denominators are positive here, so that none has to be kept from 0.
        lower = body.Reciprocal(body.Add(body.Mul(numerator, lower), place))
        upper = body.Add(place, body.Div(numerator, upper))
        factor = body.Mul(upper, lower)
        return body.Mul(value, factor), upper, lower, place, factor

    def proceed(body: Op, states: Sequence[ir.Value]) -> ir.Value:
        change = body.Abs(body.Sub(states[-1], one))
        return _any(body, body.Greater(change, _number(body, 4 * _EPSILON)))

    first = op.Reciprocal(place)
    # 1/0 of the fraction's beginning; the quotients take it for what it is.
    infinite = op.Add(op.Mul(place, _number(op, 0.0)), _number(op, math.inf))
    return loop(op, _MOST_TERMS, [first, infinite, first, place, first], step, proceed)[0]


def _uniform(op: Op, a: ir.Value, x: ir.Value, sign: float) -> ir.Value:
    """DLMF 8.12.3 and 8.12.4, Temme's expansion for large a: the upper function (sign 1) or the lower one (-1)."""
    half = _number(op, 0.5)
    difference = op.Div(op.Sub(x, a), a)
    square = op.Max(op.Sub(difference, log_one_plus(op, difference)), _number(op, 0.0))
    eta = op.Mul(op.Sign(difference), op.Sqrt(op.Add(square, square)))
    normal = op.Mul(erfc(op, op.Mul(op.Mul(eta, op.Sqrt(op.Mul(a, half))), _number(op, sign))), half)
    # Beyond 1 the exponential is 0 for every a this large.
    near = op.Clip(eta, _number(op, -1.0), _number(op, 1.0))
    total = polynomial(op, near, _UNIFORM[2])
    for coefficients in (_UNIFORM[1], _UNIFORM[0]):
        total = op.Add(op.Div(total, a), polynomial(op, near, coefficients))
    density = op.Div(op.Exp(op.Neg(op.Mul(a, square))), op.Sqrt(op.Mul(a, _number(op, 2 * math.pi))))
    return op.Add(normal, op.Mul(op.Mul(density, total), _number(op, sign)))


def _incomplete(op: Op, a: ir.Value, x: ir.Value, *, upper: bool) -> ir.Value:
    zero, one, two = (_number(op, number) for number in (0.0, 1.0, 2.0))
    usual = op.And(op.Greater(a, zero), op.Greater(x, zero))
    usual = op.And(usual, op.Not(op.Or(op.IsInf(a), op.IsInf(x))))
    large = op.And(usual, op.Greater(a, _number(op, _LARGE)))
    summed = op.And(usual, op.Not(large))
    inside, place = op.Where(summed, a, one), op.Where(summed, x, one)
    by_series = op.Less(place, op.Add(inside, one))
    logarithm = op.Sub(op.Sub(op.Mul(inside, op.Log(place)), place), log_gamma_positive(op, inside))
    factor = op.Exp(logarithm)
    # Each loop gets harmless numbers where the other one is right.
    low = _series(op, op.Where(by_series, inside, one), op.Where(by_series, place, one))
    high = _fraction(op, op.Where(by_series, one, inside), op.Where(by_series, two, place))
    low, high = op.Mul(factor, low), op.Mul(factor, high)
    pair = (op.Sub(one, low), high) if upper else (low, op.Sub(one, high))
    value = op.Where(by_series, *pair)
    uniform = _uniform(op, op.Where(large, a, one), op.Where(large, x, one), 1.0 if upper else -1.0)
    value = op.Where(large, uniform, value)
    # All of the mass lies below x for a = 0 or infinite x, and above it for x = 0 or infinite a.
    below, above = (zero, one) if upper else (one, zero)
    value = op.Where(usual, value, op.Where(op.Or(op.Equal(a, zero), op.IsInf(x)), below, above))
    undefined = op.Or(op.And(op.Equal(a, zero), op.Equal(x, zero)), op.And(op.IsInf(a), op.IsInf(x)))
    undefined = op.Or(undefined, op.Or(op.Less(a, zero), op.Less(x, zero)))
    # At the ends of one argument torch does not look at the other one.
    end = op.Or(op.Equal(x, zero), op.IsInf(x))
    undefined = op.Or(undefined, op.And(op.IsNaN(a), op.Not(end)))
    undefined = op.Or(undefined, op.And(op.IsNaN(x), op.Not(op.IsInf(a))))
    return op.Where(undefined, _number(op, math.nan), value)


@translates("aten::igamma", "aten::special_gammainc")
def igamma(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::igamma(Tensor self, Tensor other) -> Tensor
    aten::special_gammainc(Tensor self, Tensor other) -> Tensor
    """
    return in_double(op, lambda op, a, x: _incomplete(op, a, x, upper=False), self, other)


@translates("aten::igammac", "aten::special_gammaincc")
def igammac(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::igammac(Tensor self, Tensor other) -> Tensor
    aten::special_gammaincc(Tensor self, Tensor other) -> Tensor
    """
    return in_double(op, lambda op, a, x: _incomplete(op, a, x, upper=True), self, other)
