"""Error functions, their inverses, products with logarithms, gamma functions, incomplete gamma functions and zeta."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import onnx_ir as ir
import torch

from ..._builder import numerics
from ..._builder.dtypes import DOUBLE
from ..._builder.loops import loop
from ..._builder.numerics import in_double, in_float, log_one_plus, polynomial, rational
from ..._builder.op import Op, Operand
from ..._registry import OpCall, translates
from ..elementwise import log1p

__all__ = [
    "log_gamma_positive",
]


# ---- error functions


_LOG_SQRT_2_PI = 0.5 * math.log(2 * math.pi)


@translates("aten::erfc", "aten::special_erfc")
def erfc(op: Op, self: ir.Value) -> ir.Value:
    """aten::erfc(Tensor self) -> Tensor
    aten::special_erfc(Tensor self) -> Tensor
    """
    return in_float(op, numerics.erfc, self)


def _erfcx(op: Op, x: ir.Value) -> ir.Value:
    dtype = op.dtype_of(x)
    if dtype == ir.DataType.FLOAT:
        return numerics.scaled_erfc(op, x)
    one = op.const(1.0, dtype)
    size = op.Abs(x)
    power = numerics.exp_of_square(op, size, 1.0)
    near = op.Mul(power, op.Sub(one, op.Erf(x)))
    tail = numerics.scaled_erfc_tail(op, size)
    mirrored = op.Sub(op.Add(power, power), tail)
    far = op.Where(op.Less(x, op.const(0.0, dtype)), mirrored, tail)
    return op.Where(op.Less(size, one), near, far)


@translates("aten::special_erfcx")
def special_erfcx(op: Op, self: ir.Value) -> ir.Value:
    """aten::special_erfcx(Tensor self) -> Tensor"""
    return in_float(op, _erfcx, self)


# Rational starting values (as in MATLAB's erfinv): for |y| <= 0.7 in y^2, beyond in sqrt(-log((1 - |y|) / 2)).
_CENTRAL = (
    (0.886226899, -1.645349621, 0.914624893, -0.140543331),
    (1.0, -2.118377725, 1.442710462, -0.329097515, 0.012229801),
)
_TAIL = ((-1.970840454, -1.624906493, 3.429567803, 1.641345311), (1.0, 3.543889200, 1.637067800))


def _erfinv(op: Op, y: ir.Value) -> ir.Value:
    dtype = op.dtype_of(y)
    one = op.const(1.0, dtype)
    size = op.Abs(y)
    square = op.Mul(y, y)
    central = op.Mul(y, rational(op, square, _CENTRAL))
    root = op.Sqrt(op.Neg(op.Log(op.Mul(op.Sub(one, size), op.const(0.5, dtype)))))
    tail = op.Mul(op.Sign(y), rational(op, root, _TAIL))
    x = op.Where(op.LessOrEqual(size, op.const(0.7, dtype)), central, tail)
    for _ in range(2):
        slope = op.Mul(op.const(2 / math.sqrt(math.pi), dtype), op.Exp(op.Neg(op.Mul(x, x))))
        x = op.Sub(x, op.Div(op.Sub(op.Erf(x), y), slope))
    infinite = op.Mul(y, op.const(math.inf, dtype))
    return op.Where(op.Equal(size, one), infinite, x)


@translates("aten::erfinv", "aten::special_erfinv")
def erfinv(op: Op, self: ir.Value) -> ir.Value:
    """aten::erfinv(Tensor self) -> Tensor
    aten::special_erfinv(Tensor self) -> Tensor

    A rational approximation, refined by two steps of Newton's method.
    """
    return in_float(op, _erfinv, self)


# Cephes, ndtri.c: in (y - 1/2)^2 in the middle, in 1 / sqrt(-2 log y) below exp(-2) and below exp(-32).
_NDTRI_MIDDLE = (
    (
        -1.2391658386738125,
        13.931260938727968,
        -56.67628574690703,
        98.00107541859997,
        -59.96335010141079,
    ),
    (
        -1.1833162112133,
        15.90562251262117,
        -82.03722561683334,
        200.26021238006066,
        -225.46268785411937,
        86.36024213908905,
        4.676279128988815,
        1.9544885833814176,
        1.0,
    ),
)
_NDTRI_TAIL = (
    (
        -0.0008574567851546854,
        -0.03504246268278482,
        -0.1402560791713545,
        2.1866330685079025,
        14.684956192885803,
        44.08050738932008,
        57.16281922464213,
        31.525109459989388,
        4.0554489230596245,
    ),
    (
        -0.0009332594808954574,
        -0.03808064076915783,
        -0.14218292285478779,
        2.504649462083094,
        15.04253856929075,
        41.3172038254672,
        45.39076351288792,
        15.779988325646675,
        1.0,
    ),
)
_NDTRI_FAR_TAIL = (
    (
        6.239745391849833e-09,
        2.6580697468673755e-06,
        0.00030158155350823543,
        0.012371663481782003,
        0.20148538954917908,
        1.3330346081580755,
        3.9388102529247444,
        6.915228890689842,
        3.2377489177694603,
    ),
    (
        6.790194080099813e-09,
        2.8924786474538068e-06,
        0.00032801446468212774,
        0.013420400608854318,
        0.21623699359449663,
        1.3770209948908132,
        3.6798356385616087,
        6.02427039364742,
        1.0,
    ),
)


def _ndtri(op: Op, p: ir.Value) -> ir.Value:
    dtype = op.dtype_of(p)
    zero, half, one = (op.const(number, dtype) for number in (0.0, 0.5, 1.0))
    mirrored = op.Greater(p, op.const(1 - math.exp(-2), dtype))
    y = op.Where(mirrored, op.Sub(one, p), p)
    offset = op.Sub(y, half)
    square = op.Mul(offset, offset)
    middle = op.Add(offset, op.Mul(op.Mul(offset, square), rational(op, square, _NDTRI_MIDDLE)))
    middle = op.Mul(middle, op.const(math.sqrt(2 * math.pi), dtype))
    root = op.Sqrt(op.Mul(op.Log(y), op.const(-2.0, dtype)))
    inverse = op.Reciprocal(root)
    near, far = (rational(op, inverse, table) for table in (_NDTRI_TAIL, _NDTRI_FAR_TAIL))
    correction = op.Mul(inverse, op.Where(op.Less(root, op.const(8.0, dtype)), near, far))
    tail = op.Sub(op.Sub(root, op.Div(op.Log(root), root)), correction)
    tail = op.Where(mirrored, tail, op.Neg(tail))
    value = op.Where(op.Greater(y, op.const(math.exp(-2), dtype)), middle, tail)
    # At 0 and 1 the logarithms are infinite, and their quotient is NaN.
    value = op.Where(op.Equal(p, zero), op.const(-math.inf, dtype), value)
    return op.Where(op.Equal(p, one), op.const(math.inf, dtype), value)


@translates("aten::special_ndtri")
def special_ndtri(op: Op, self: ir.Value) -> ir.Value:
    """aten::special_ndtri(Tensor self) -> Tensor"""
    return in_double(op, _ndtri, self)


# ---- products with logarithms


def _mixed_half(call: OpCall) -> str | None:
    """Accept a half tensor with a number or a 0-dim tensor of another type, which torch rounds to the half type."""
    types = {value.dtype if isinstance(value, torch.Tensor) else None for value in call.arguments.values()}
    is_half = not types.isdisjoint((torch.float16, torch.bfloat16))
    return None if is_half and len(types) > 1 else "torch's decomposition rounds as torch does"


def _times_logarithm(op: Op, factor: ir.Value, argument: ir.Value, logarithm: ir.Value) -> ir.Value:
    """Return 0 for a factor of 0, unless the argument of the logarithm is NaN."""
    is_nothing = op.And(op.Equal(factor, op.const(0.0, op.result.dtype)), op.Not(op.IsNaN(argument)))
    return op.Where(is_nothing, op.const(0.0, op.result.dtype), op.Mul(factor, logarithm))


@translates("aten::xlogy.Tensor", "aten::xlogy.Scalar_Self", "aten::xlogy.Scalar_Other", accepts=_mixed_half)
def xlogy(op: Op, self: Operand, other: Operand) -> ir.Value:
    """aten::xlogy.Tensor(Tensor self, Tensor other) -> Tensor
    aten::xlogy.Scalar_Self(Scalar self, Tensor other) -> Tensor
    aten::xlogy.Scalar_Other(Tensor self, Scalar other) -> Tensor
    """
    factor, argument = (op.operand(value, op.result.dtype) for value in (self, other))
    return _times_logarithm(op, factor, argument, op.Log(argument))


@translates(
    *("aten::special_xlog1py", "aten::special_xlog1py.self_scalar", "aten::special_xlog1py.other_scalar"),
    accepts=_mixed_half,
)
def special_xlog1py(op: Op, self: Operand, other: Operand) -> ir.Value:
    """aten::special_xlog1py(Tensor self, Tensor other) -> Tensor
    aten::special_xlog1py.self_scalar(Scalar self, Tensor other) -> Tensor
    aten::special_xlog1py.other_scalar(Tensor self, Scalar other) -> Tensor
    """
    factor, argument = (op.operand(value, op.result.dtype) for value in (self, other))
    return _times_logarithm(op, factor, argument, log1p(op, argument))


# ---- gamma functions

_SHIFT = 8
_STIRLING = tuple(
    bernoulli / (2 * k * (2 * k - 1))
    for k, bernoulli in enumerate((1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730), start=1)
)
_DIGAMMA = tuple(
    -bernoulli / (2 * k) for k, bernoulli in enumerate((1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730), start=1)
)


def _distance_to_integer(op: Op, x: ir.Value) -> ir.Value:
    return op.Sub(x, op.Round(x))


def log_gamma_positive(op: Op, x: ir.Value) -> ir.Value:
    """log(gamma(x)) for x > 0: Stirling's series at x; for small x at x + 8, with the recurrence."""
    dtype = op.dtype_of(x)
    small = op.Less(x, op.const(float(_SHIFT), dtype))
    product = x
    for step in range(1, _SHIFT):
        product = op.Mul(product, op.Add(x, op.const(float(step), dtype)))
    shifted = op.Where(small, op.Add(x, op.const(float(_SHIFT), dtype)), x)
    inverse = op.Reciprocal(shifted)
    series = op.Mul(inverse, polynomial(op, op.Mul(inverse, inverse), _STIRLING))
    leading = op.Sub(op.Mul(op.Sub(shifted, op.const(0.5, dtype)), op.Log(shifted)), shifted)
    value = op.Add(op.Add(leading, op.const(_LOG_SQRT_2_PI, dtype)), series)
    return op.Where(small, op.Sub(value, op.Log(product)), value)


def _lgamma(op: Op, x: ir.Value) -> ir.Value:
    dtype = op.dtype_of(x)
    half, one, pi = op.const(0.5, dtype), op.const(1.0, dtype), op.const(math.pi, dtype)
    mirrored = op.Less(x, half)
    value = log_gamma_positive(op, op.Where(mirrored, op.Sub(one, x), x))
    sine = op.Abs(op.Sin(op.Mul(pi, _distance_to_integer(op, x))))
    value = op.Where(mirrored, op.Sub(op.Log(op.Div(pi, sine)), value), value)
    return op.Where(op.IsInf(x), op.const(math.inf, dtype), value)


@translates("aten::lgamma", "aten::special_gammaln")
def lgamma(op: Op, self: ir.Value) -> ir.Value:
    """aten::lgamma(Tensor self) -> Tensor
    aten::special_gammaln(Tensor self) -> Tensor
    """
    return in_double(op, _lgamma, self)


def _digamma(op: Op, x: ir.Value) -> ir.Value:
    dtype = op.dtype_of(x)
    zero, half, one, pi = (op.const(number, dtype) for number in (0.0, 0.5, 1.0, math.pi))
    mirrored = op.Less(x, zero)
    positive = op.Where(mirrored, op.Sub(one, x), x)
    small = op.Less(positive, op.const(float(_SHIFT), dtype))
    total = op.Reciprocal(positive)
    for step in range(1, _SHIFT):
        total = op.Add(total, op.Reciprocal(op.Add(positive, op.const(float(step), dtype))))
    shifted = op.Where(small, op.Add(positive, op.const(float(_SHIFT), dtype)), positive)
    inverse = op.Reciprocal(shifted)
    square = op.Mul(inverse, inverse)
    series = op.Sub(op.Mul(square, polynomial(op, square, _DIGAMMA)), op.Mul(half, inverse))
    value = op.Add(op.Log(shifted), series)
    value = op.Where(small, op.Sub(value, total), value)
    angle = op.Mul(pi, _distance_to_integer(op, x))
    value = op.Where(mirrored, op.Sub(value, op.Div(pi, op.Div(op.Sin(angle), op.Cos(angle)))), value)
    whole = op.And(mirrored, op.Equal(x, op.Round(x)))
    value = op.Where(whole, op.const(math.nan, dtype), value)
    # The poles at 0.0 and -0.0 have opposite signs.
    return op.Where(op.Equal(x, zero), op.Neg(op.Reciprocal(x)), value)


@translates("aten::digamma", "aten::special_digamma", "aten::special_psi")
def digamma(op: Op, self: ir.Value) -> ir.Value:
    """aten::digamma(Tensor self) -> Tensor
    aten::special_digamma(Tensor self) -> Tensor
    aten::special_psi(Tensor self) -> Tensor
    """
    return in_double(op, _digamma, self)


# ---- zeta

_FROM = 9.0  # from this argument on the Euler-Maclaurin formula replaces the sum
_MOST_TERMS = 100_000.0  # float32 numbers of larger magnitude have no fractional digits

# B(2j) / (2j)! of the Euler-Maclaurin formula.
_EULER_MACLAURIN = tuple(
    bernoulli / math.factorial(2 * j)
    for j, bernoulli in enumerate((1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730), start=1)
)


def _partial_sum(op: Op, s: ir.Value, q: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the sum of (q + k)^-s while q + k is small, and the first q + k that is not."""
    dtype = op.dtype_of(s)
    one, limit = op.const(1.0, dtype), op.const(_FROM, dtype)
    power = op.Neg(s)
    start = op.Add(q, op.Mul(s, op.const(0.0, dtype)))
    distances = op.Reshape(op.Sub(limit, q), [-1])
    distances = op.Concat(op.Where(op.IsNaN(distances), limit, distances), op.const([_FROM], dtype), axis=0)
    most = op.Min(op.ReduceMax(distances, [0], keepdims=0), op.const(_MOST_TERMS, dtype))
    trips = op.Add(op.cast(op.Ceil(most), ir.DataType.INT64), op.const(1))

    def step(body: Op, k: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        total, argument = states
        small = body.LessOrEqual(argument, limit)
        total = body.Where(small, body.Add(total, body.Pow(argument, power)), total)
        return total, body.Where(small, body.Add(argument, one), argument)

    total, argument = loop(op, trips, [op.Mul(start, op.const(0.0, dtype)), start], step)
    return total, argument


def _zeta(op: Op, s: ir.Value, q: ir.Value) -> ir.Value:
    dtype = op.dtype_of(s)
    one, half = op.const(1.0, dtype), op.const(0.5, dtype)
    total, end = _partial_sum(op, s, q)
    term = op.Pow(end, op.Neg(s))
    total = op.Add(total, op.Add(op.Div(op.Mul(term, end), op.Sub(s, one)), op.Mul(half, term)))
    factor = s
    term = op.Div(term, end)
    for j, coefficient in enumerate(_EULER_MACLAURIN, start=1):
        total = op.Add(total, op.Mul(op.const(coefficient, dtype), op.Mul(factor, term)))
        low, high = op.const(2.0 * j - 1, dtype), op.const(2.0 * j, dtype)
        factor = op.Mul(factor, op.Mul(op.Add(s, low), op.Add(s, high)))
        term = op.Div(term, op.Mul(end, end))
    infinite = op.Or(op.Equal(s, one), op.And(op.Equal(q, op.Floor(q)), op.LessOrEqual(q, op.const(0.0, dtype))))
    value = op.Where(infinite, op.const(math.inf, dtype), total)
    undefined = op.And(op.Less(q, op.const(0.0, dtype)), op.Not(op.Equal(s, op.Floor(s))))
    undefined = op.Or(op.Less(s, one), op.And(undefined, op.Not(infinite)))
    return op.Where(undefined, op.const(math.nan, dtype), value)


@translates("aten::special_zeta", "aten::special_zeta.self_scalar", "aten::special_zeta.other_scalar")
def special_zeta(op: Op, self: Operand, other: Operand) -> ir.Value:
    """aten::special_zeta(Tensor self, Tensor other) -> Tensor
    aten::special_zeta.self_scalar(Scalar self, Tensor other) -> Tensor
    aten::special_zeta.other_scalar(Tensor self, Scalar other) -> Tensor
    """
    dtype = op.result.dtype
    return in_double(op, _zeta, op.operand(self, dtype), op.operand(other, dtype))


_PI_PARTS = (52707178.0 * 2.0**-24, math.pi - 52707178.0 * 2.0**-24, 1.2246467991473532e-16)
"""Parts whose sum is pi to 107 bits; their products with integers are exact, or small."""


def _trigamma(op: Op, x: ir.Value, angle: ir.Value) -> ir.Value:
    """The derivative of digamma; ``angle`` is pi times ``x``, rounded as torch rounds it."""
    dtype = op.dtype_of(x)
    mirrored = op.Less(x, op.const(0.5, dtype))
    value = _zeta(op, op.const(2.0, dtype), op.Where(mirrored, op.Sub(op.const(1.0, dtype), x), x))
    pi = op.const(math.pi, dtype)
    # At a pole torch's result is large, but finite, since its rounded angle is not a multiple of pi: this is the error.
    rest = angle
    for part in _PI_PARTS:
        rest = op.Sub(rest, op.Mul(x, op.const(part, dtype)))
    rest = op.Where(op.Equal(x, op.Round(x)), rest, op.Mul(pi, _distance_to_integer(op, x)))
    ratio = op.Div(pi, op.Sin(rest))
    value = op.Where(mirrored, op.Sub(op.Mul(ratio, ratio), value), value)
    infinity = op.const(math.inf, dtype)
    return op.Where(op.Equal(x, infinity), op.const(0.0, dtype), value)


def _polygamma(op: Op, x: ir.Value, *, n: int) -> ir.Value:
    dtype = op.dtype_of(x)
    sign = 1.0 if n % 2 else -1.0
    return op.Mul(op.const(sign * math.factorial(n), dtype), _zeta(op, op.const(n + 1.0, dtype), x))


@translates("aten::polygamma", "aten::special_polygamma")
def polygamma(op: Op, n: int, self: ir.Value) -> ir.Value:
    """aten::polygamma(int n, Tensor self) -> Tensor
    aten::special_polygamma(int n, Tensor self) -> Tensor
    """
    if n == 0:
        return digamma(op, self)
    if n > 1:
        return in_double(op, partial(_polygamma, n=n), self)
    carrier = ir.DataType.DOUBLE if op.result.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    angle = op.Mul(op.cast(self, carrier), op.const(math.pi, carrier))
    return in_double(op, _trigamma, self, angle)


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
    return op.const(number, DOUBLE)


def _any(op: Op, condition: ir.Value) -> ir.Value:
    flags = op.Concat(op.Reshape(op.cast(condition, ir.DataType.INT64), [-1]), op.const([0]), axis=0)
    return op.cast(op.ReduceMax(flags, [0], keepdims=0), ir.DataType.BOOL)


def _series(op: Op, a: ir.Value, x: ir.Value) -> ir.Value:
    """1/a (1 + x/(a+1) + x^2/((a+1)(a+2)) + ...), for x below a + 1."""

    def step(body: Op, k: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        total, term, position = states
        position = body.Add(position, _number(body, 1.0))
        term = body.Mul(term, body.Div(x, position))
        return body.Add(total, term), term, position

    def proceed(body: Op, states: Sequence[ir.Value]) -> ir.Value:
        total, term, _ = states
        return _any(body, body.Greater(term, body.Mul(total, _number(body, _EPSILON))))

    first = op.Reciprocal(a)
    return loop(op, _MOST_TERMS, [first, first, a], step, proceed)[0]


def _fraction(op: Op, a: ir.Value, x: ir.Value) -> ir.Value:
    """1/(x+1-a - 1(1-a)/(x+3-a - 2(2-a)/(x+5-a - ...))), for x from a + 1, by the method of Lentz."""
    one, two = _number(op, 1.0), _number(op, 2.0)
    position = op.Add(op.Sub(x, a), one)

    def step(body: Op, k: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        value, upper, lower, position, _ = states
        i = body.Add(body.cast(body.Squeeze(k, [0]), DOUBLE), one)
        numerator = body.Mul(i, body.Sub(a, i))
        position = body.Add(position, two)
        # The denominators are positive here, and need no protection from 0.
        lower = body.Reciprocal(body.Add(body.Mul(numerator, lower), position))
        upper = body.Add(position, body.Div(numerator, upper))
        factor = body.Mul(upper, lower)
        return body.Mul(value, factor), upper, lower, position, factor

    def proceed(body: Op, states: Sequence[ir.Value]) -> ir.Value:
        change = body.Abs(body.Sub(states[-1], one))
        return _any(body, body.Greater(change, _number(body, 4 * _EPSILON)))

    first = op.Reciprocal(position)
    # 1/0 at the beginning of the fraction; the quotients of this infinity are right.
    infinite = op.Add(op.Mul(position, _number(op, 0.0)), _number(op, math.inf))
    return loop(op, _MOST_TERMS, [first, infinite, first, position, first], step, proceed)[0]


def _uniform(op: Op, a: ir.Value, x: ir.Value, sign: float) -> ir.Value:
    """DLMF 8.12.3 and 8.12.4, Temme's expansion for large a: the upper function (sign 1) or the lower one (-1)."""
    half = _number(op, 0.5)
    difference = op.Div(op.Sub(x, a), a)
    square = op.Max(op.Sub(difference, log_one_plus(op, difference)), _number(op, 0.0))
    eta = op.Mul(op.Sign(difference), op.Sqrt(op.Add(square, square)))
    normal = op.Mul(numerics.erfc(op, op.Mul(op.Mul(eta, op.Sqrt(op.Mul(a, half))), _number(op, sign))), half)
    # For |eta| > 1 the exponential is 0 for every a in this branch.
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
    inside, position = op.Where(summed, a, one), op.Where(summed, x, one)
    by_series = op.Less(position, op.Add(inside, one))
    logarithm = op.Sub(op.Sub(op.Mul(inside, op.Log(position)), position), log_gamma_positive(op, inside))
    factor = op.Exp(logarithm)
    # Each loop gets harmless arguments where the other one is selected.
    low = _series(op, op.Where(by_series, inside, one), op.Where(by_series, position, one))
    high = _fraction(op, op.Where(by_series, one, inside), op.Where(by_series, two, position))
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
    if op.exact_numerics:
        # At the limits of one argument torch ignores the other one.
        end = op.Or(op.Equal(x, zero), op.IsInf(x))
        undefined = op.Or(undefined, op.And(op.IsNaN(a), op.Not(end)))
        undefined = op.Or(undefined, op.And(op.IsNaN(x), op.Not(op.IsInf(a))))
    return op.Where(undefined, _number(op, math.nan), value)


@translates("aten::igamma", "aten::special_gammainc", exact="NaN propagates")
def igamma(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::igamma(Tensor self, Tensor other) -> Tensor
    aten::special_gammainc(Tensor self, Tensor other) -> Tensor
    """
    return in_double(op, lambda op, a, x: _incomplete(op, a, x, upper=False), self, other)


@translates("aten::igammac", "aten::special_gammaincc", exact="NaN propagates")
def igammac(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::igammac(Tensor self, Tensor other) -> Tensor
    aten::special_gammaincc(Tensor self, Tensor other) -> Tensor
    """
    return in_double(op, lambda op, a, x: _incomplete(op, a, x, upper=True), self, other)
