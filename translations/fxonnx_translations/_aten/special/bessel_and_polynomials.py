"""Bessel functions, the Airy function, and orthogonal polynomials.

Bessel functions are the polynomial approximations of Abramowitz and Stegun, 9.4 and 9.8. Their errors are below 3e-7:
sufficient for float32, not for float64. Orthogonal polynomials, whose degree is a tensor, are computed by their
three-term recurrences: a Loop runs up to the largest degree, and elements of a smaller degree keep their value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import onnx_ir as ir

from ..._builder.dtypes import INT64
from ..._builder.loops import loop
from ..._builder.numerics import in_double, in_float, polynomial, rational
from ..._builder.op import Op, Operand, Unsupported
from ..._registry import Translation, translates

# ---- Bessel functions

# 9.8.1 to 9.8.4: I0 and I1 below and above 3.75.
_I0 = (1.0, 3.5156229, 3.0899424, 1.2067492, 0.2659732, 0.0360768, 0.0045813)
_I0_TAIL = (
    0.39894228,
    0.01328592,
    0.00225319,
    -0.00157565,
    0.00916281,
    -0.02057706,
    0.02635537,
    -0.01647633,
    0.00392377,
)
_I1 = (0.5, 0.87890594, 0.51498869, 0.15084934, 0.02658733, 0.00301532, 0.00032411)
_I1_TAIL = (
    0.39894228,
    -0.03988024,
    -0.00362018,
    0.00163801,
    -0.01031555,
    0.02282967,
    -0.02895312,
    0.01787654,
    -0.00420059,
)
# 9.8.5 to 9.8.8: K0 and K1 below and above 2.
_K0 = (-0.57721566, 0.42278420, 0.23069756, 0.03488590, 0.00262698, 0.00010750, 0.00000740)
_K0_TAIL = (1.25331414, -0.07832358, 0.02189568, -0.01062446, 0.00587872, -0.00251540, 0.00053208)
_K1 = (1.0, 0.15443144, -0.67278579, -0.18156897, -0.01919402, -0.00110404, -0.00004686)
_K1_TAIL = (1.25331414, 0.23498619, -0.03655620, 0.01504268, -0.00780353, 0.00325614, -0.00068245)
# 9.4.1 to 9.4.6: J and Y below 3, modulus and phase above.
_J0 = (1.0, -2.2499997, 1.2656208, -0.3163866, 0.0444479, -0.0039444, 0.0002100)
_Y0 = (0.36746691, 0.60559366, -0.74350384, 0.25300117, -0.04261214, 0.00427916, -0.00024846)
_MODULUS_0 = (0.79788456, -0.00000077, -0.00552740, -0.00009512, 0.00137237, -0.00072805, 0.00014476)
_PHASE_0 = (-0.78539816, -0.04166397, -0.00003954, 0.00262573, -0.00054125, -0.00029333, 0.00013558)
_J1 = (0.5, -0.56249985, 0.21093573, -0.03954289, 0.00443319, -0.00031761, 0.00001109)
_Y1 = (-0.6366198, 0.2212091, 2.1682709, -1.3164827, 0.3123951, -0.0400976, 0.0027873)
_MODULUS_1 = (0.79788456, 0.00000156, 0.01659667, 0.00017105, -0.00249511, 0.00113653, -0.00020033)
_PHASE_1 = (-2.35619449, 0.12499612, 0.00005650, -0.00637879, 0.00074348, 0.00079824, -0.00029166)


def _squared(op: Op, x: ir.Value, scale: float) -> ir.Value:
    ratio = op.Div(x, op.const(scale, op.dtype_of(x)))
    return op.Mul(ratio, ratio)


def _modified_first(op: Op, x: ir.Value, *, order: int, scaled: bool) -> ir.Value:
    """I0 or I1, times exp(-|x|) if scaled."""
    dtype = op.dtype_of(x)
    size = op.Abs(x)
    series = polynomial(op, _squared(op, x, 3.75), _I1 if order else _I0)
    if order:
        series = op.Mul(series, size)
    tail = polynomial(op, op.Div(op.const(3.75, dtype), size), _I1_TAIL if order else _I0_TAIL)
    tail = op.Div(tail, op.Sqrt(size))
    if scaled:
        series = op.Mul(series, op.Exp(op.Neg(size)))
    else:
        # In two factors: exp(|x|) overflows before the quotient does.
        half = op.Exp(op.Mul(size, op.const(0.5, dtype)))
        tail = op.Mul(op.Mul(tail, half), half)
    value = op.Where(op.Less(size, op.const(3.75, dtype)), series, tail)
    return op.Where(op.Less(x, op.const(0.0, dtype)), op.Neg(value), value) if order else value


def _modified_second(op: Op, x: ir.Value, *, order: int, scaled: bool) -> ir.Value:
    """K0 or K1, times exp(x) if scaled."""
    dtype = op.dtype_of(x)
    zero, two = op.const(0.0, dtype), op.const(2.0, dtype)
    half = op.Div(x, two)
    first = _modified_first(op, x, order=order, scaled=False)
    series = polynomial(op, op.Mul(half, half), _K1 if order else _K0)
    if order:
        series = op.Add(op.Mul(op.Log(half), first), op.Div(series, x))
    else:
        series = op.Sub(series, op.Mul(op.Log(half), first))
    tail = op.Div(polynomial(op, op.Div(two, x), _K1_TAIL if order else _K0_TAIL), op.Sqrt(x))
    if scaled:
        series = op.Mul(series, op.Exp(x))
    else:
        tail = op.Mul(tail, op.Exp(op.Neg(x)))
    value = op.Where(op.LessOrEqual(x, two), series, tail)
    value = op.Where(op.Equal(x, zero), op.const(math.inf, dtype), value)
    return op.Where(op.Less(x, zero), op.const(math.nan, dtype), value)


def _oscillating(op: Op, x: ir.Value, *, order: int, second: bool) -> ir.Value:
    """J0 or J1, Y0 or Y1."""
    dtype = op.dtype_of(x)
    size = op.Abs(x)
    square = _squared(op, x, 3.0)
    series = polynomial(op, square, _J1 if order else _J0)
    if order:
        series = op.Mul(series, size)
    if second:
        logarithm = op.Mul(op.const(2 / math.pi, dtype), op.Log(op.Div(x, op.const(2.0, dtype))))
        rest = polynomial(op, square, _Y1 if order else _Y0)
        series = op.Add(op.Mul(logarithm, series), op.Div(rest, x) if order else rest)
    inverse = op.Div(op.const(3.0, dtype), size)
    modulus = op.Div(polynomial(op, inverse, _MODULUS_1 if order else _MODULUS_0), op.Sqrt(size))
    phase = op.Add(size, polynomial(op, inverse, _PHASE_1 if order else _PHASE_0))
    tail = op.Mul(modulus, op.Sin(phase) if second else op.Cos(phase))
    value = op.Where(op.LessOrEqual(size, op.const(3.0, dtype)), series, tail)
    zero = op.const(0.0, dtype)
    if second:
        value = op.Where(op.Equal(x, zero), op.const(-math.inf, dtype), value)
        return op.Where(op.Less(x, zero), op.const(math.nan, dtype), value)
    return op.Where(op.Less(x, zero), op.Neg(value), value) if order else value


def _spherical(op: Op, x: ir.Value) -> ir.Value:
    """sin(x) / x, by its series near 0."""
    dtype = op.dtype_of(x)
    square = op.Mul(x, x)
    series = polynomial(op, square, [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(6)])
    value = op.Where(op.Less(op.Abs(x), op.const(0.5, dtype)), series, op.Div(op.Sin(x), x))
    return op.Where(op.IsInf(x), op.const(0.0, dtype), value)


# Cephes, airy.c: beyond 2.09 in 1/zeta, below -2.09 in 1/zeta^2, where zeta = 2/3 |x|^(3/2).
_AIRY_RIGHT = (
    (
        1.0,
        14.026469116338967,
        70.53609068404442,
        159.75639135016442,
        168.08922493463058,
        76.27960536152345,
        12.007595273964581,
        0.346538101525629,
    ),
    (
        1.0,
        14.095913560783403,
        71.47784008255756,
        164.2346928715297,
        177.31808814540045,
        84.51389701414746,
        14.75625625848472,
        0.5675945326387702,
    ),
)
_AIRY_SINE = (
    (
        -1.6778769848911465e-08,
        -2.776491081552329e-06,
        -0.0001592764962392621,
        -0.004062659235948854,
        -0.04919001326095003,
        -0.2797799815451191,
        -0.6931580360369335,
        -0.6264565444319123,
        -0.1316963234183318,
    ),
    (
        4.5185009297058035e-07,
        7.547203482874142e-05,
        0.004402916416152112,
        0.11568717379518804,
        1.4752914677166642,
        9.187074029072596,
        26.736704094149957,
        32.682503279522464,
        13.356042070655324,
    ),
)
_AIRY_COSINE = (
    (
        3.415517847659236e-10,
        8.117892395543892e-08,
        6.98793669997261e-06,
        0.000282851600836737,
        0.005858041130483885,
        0.06338889196289255,
        0.35146565610554764,
        0.9391692298166502,
        1.0657989759959559,
        0.39110302961568827,
        0.01973399320916857,
    ),
    (
        4.9183457006293e-09,
        1.1716673321441352e-06,
        0.00010125908511650914,
        0.004126565238242226,
        0.08645808263523921,
        0.9542936116189619,
        5.476860694229755,
        15.564662893286462,
        19.835292871831214,
        9.30892908077442,
    ),
)
_AIRY_BORDER = 2.09
_AIRY_AT_0, _AIRY_SLOPE_AT_0 = 0.355028053887817239260, -0.258819403792806798405


def _airy_series() -> tuple[list[float], list[float]]:
    """The coefficients of Ai's Taylor series in x^3, and of its odd part, which is x times another one."""
    even, odd = [_AIRY_AT_0], [_AIRY_SLOPE_AT_0]
    for k in range(1, 16):
        even.append(even[-1] / ((3 * k - 1) * (3 * k)))
        odd.append(odd[-1] / ((3 * k) * (3 * k + 1)))
    return even, odd


def _airy(op: Op, x: ir.Value) -> ir.Value:
    dtype = op.dtype_of(x)
    even, odd = _airy_series()
    cube = op.Mul(op.Mul(x, x), x)
    middle = op.Add(polynomial(op, cube, even), op.Mul(x, polynomial(op, cube, odd)))
    border = op.const(_AIRY_BORDER, dtype)
    size = op.Max(op.Abs(x), border)
    root = op.Sqrt(size)
    zeta = op.Mul(op.Mul(size, root), op.const(2 / 3, dtype))
    inverse, scale = op.Reciprocal(zeta), op.Div(op.const(1 / math.sqrt(math.pi), dtype), op.Sqrt(root))
    decay = op.Mul(op.Exp(op.Neg(zeta)), op.const(0.5, dtype))
    right = op.Mul(op.Mul(scale, decay), rational(op, inverse, _AIRY_RIGHT))
    square = op.Mul(inverse, inverse)
    angle = op.Add(zeta, op.const(math.pi / 4, dtype))
    sine = op.Add(op.Mul(square, rational(op, square, _AIRY_SINE)), op.const(1.0, dtype))
    cosine = op.Mul(inverse, rational(op, square, _AIRY_COSINE))
    left = op.Mul(scale, op.Sub(op.Mul(op.Sin(angle), sine), op.Mul(op.Cos(angle), cosine)))
    value = op.Where(op.Greater(x, border), right, op.Where(op.Less(x, op.Neg(border)), left, middle))
    # torch's result for infinities is NaN, not the limit.
    return op.Where(op.IsInf(x), op.const(math.nan, dtype), value)


@translates("aten::special_airy_ai")
def special_airy_ai(op: Op, x: ir.Value) -> ir.Value:
    """aten::special_airy_ai(Tensor x) -> Tensor

    Computed in float64: the phase on the negative side is large.
    """
    return in_double(op, _airy, x)


def _bessel(op: Op, *, formula: Callable[[Op, ir.Value], ir.Value], **arguments: ir.Value) -> ir.Value:
    """Apply a formula to the operator's argument, which is called self or x."""
    if op.result.dtype == ir.DataType.DOUBLE:
        raise Unsupported("Bessel functions are available in float32 precision only")
    (value,) = arguments.values()
    return in_float(op, formula, value)


_FORMULAS: Mapping[str, Callable[[Op, ir.Value], ir.Value]] = {
    "aten::i0": partial(_modified_first, order=0, scaled=False),
    "aten::special_i0": partial(_modified_first, order=0, scaled=False),
    "aten::special_i0e": partial(_modified_first, order=0, scaled=True),
    "aten::special_i1": partial(_modified_first, order=1, scaled=False),
    "aten::special_i1e": partial(_modified_first, order=1, scaled=True),
    "aten::special_modified_bessel_i0": partial(_modified_first, order=0, scaled=False),
    "aten::special_modified_bessel_i1": partial(_modified_first, order=1, scaled=False),
    "aten::special_modified_bessel_k0": partial(_modified_second, order=0, scaled=False),
    "aten::special_modified_bessel_k1": partial(_modified_second, order=1, scaled=False),
    "aten::special_scaled_modified_bessel_k0": partial(_modified_second, order=0, scaled=True),
    "aten::special_scaled_modified_bessel_k1": partial(_modified_second, order=1, scaled=True),
    "aten::special_bessel_j0": partial(_oscillating, order=0, second=False),
    "aten::special_bessel_j1": partial(_oscillating, order=1, second=False),
    "aten::special_bessel_y0": partial(_oscillating, order=0, second=True),
    "aten::special_bessel_y1": partial(_oscillating, order=1, second=True),
    "aten::special_spherical_bessel_j0": _spherical,
}

BESSEL_FUNCTIONS = tuple(
    Translation(partial(_bessel, formula=formula), (target,)) for target, formula in _FORMULAS.items()
)

# ---- orthogonal polynomials

First = Callable[[Op, ir.Value], ir.Value]
"""Emits the polynomial of degree 1."""
Next = Callable[[Op, ir.Value, ir.Value, ir.Value, ir.Value], ir.Value]
"""``next(op, x, k, q, p)`` emits the polynomial of degree k + 1 from the ones of degrees k and k - 1; k is a 0-dim float."""


def _line(slope: float, offset: float, op: Op, x: ir.Value) -> ir.Value:
    dtype = op.dtype_of(x)
    value = x if slope == 1 else op.Mul(x, op.const(slope, dtype))
    return op.Add(value, op.const(offset, dtype)) if offset else value


def _chebyshev(slope: float, offset: float, op: Op, x: ir.Value, k: ir.Value, q: ir.Value, p: ir.Value) -> ir.Value:
    return op.Sub(op.Mul(_line(slope, offset, op, x), q), p)


def _hermite(scale: float, op: Op, x: ir.Value, k: ir.Value, q: ir.Value, p: ir.Value) -> ir.Value:
    step = op.Sub(op.Mul(x, q), op.Mul(k, p))
    return step if scale == 1 else op.Mul(step, op.const(scale, op.dtype_of(x)))


def _laguerre(op: Op, x: ir.Value, k: ir.Value, q: ir.Value, p: ir.Value) -> ir.Value:
    one = op.const(1.0, op.dtype_of(x))
    factor = op.Sub(op.Add(op.Add(k, k), one), x)
    return op.Div(op.Sub(op.Mul(factor, q), op.Mul(k, p)), op.Add(k, one))


def _legendre(op: Op, x: ir.Value, k: ir.Value, q: ir.Value, p: ir.Value) -> ir.Value:
    one = op.const(1.0, op.dtype_of(x))
    factor = op.Mul(op.Add(op.Add(k, k), one), x)
    return op.Div(op.Sub(op.Mul(factor, q), op.Mul(k, p)), op.Add(k, one))


def _evaluated(op: Op, x: ir.Value, n: ir.Value, *, first: First, following: Next) -> ir.Value:
    dtype = op.dtype_of(x)
    degree = op.cast(n, INT64)
    zero, one = op.const(0.0, dtype), op.const(1.0, dtype)
    shape = op.Add(op.Mul(x, zero), op.cast(op.Mul(degree, op.const(0)), dtype))
    q = op.Add(first(op, x), shape)
    p = op.Add(shape, one)
    largest = op.ReduceMax(op.Concat(op.Reshape(degree, [-1]), op.const([1]), axis=0), [0], keepdims=0)

    def step(body: Op, i: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        higher, lower = states
        # Of rank 0, so that the polynomial of a 0-dim tensor is 0-dim.
        k = body.Squeeze(body.Add(i, body.const([1])), [0])
        value = following(body, x, body.cast(k, dtype), higher, lower)
        wanted = body.Greater(degree, k)
        return body.Where(wanted, value, higher), body.Where(wanted, higher, lower)

    value, _ = loop(op, op.Sub(largest, op.const(1)), [q, p], step)
    value = op.Where(op.Equal(degree, op.const(0)), p, value)
    return op.Where(op.Less(degree, op.const(0)), shape, value)


def _polynomial(op: Op, x: Operand, n: Operand, *, first: First, following: Next) -> ir.Value:
    dtype = op.result.dtype
    formula = partial(_evaluated, first=first, following=following)
    return in_float(op, formula, op.operand(x, dtype), op.operand(n, dtype))


# Name to the polynomial of degree 1 and the recurrence.
_FAMILIES: dict[str, tuple[First, Next]] = {
    "chebyshev_polynomial_t": (partial(_line, 1.0, 0.0), partial(_chebyshev, 2.0, 0.0)),
    "chebyshev_polynomial_u": (partial(_line, 2.0, 0.0), partial(_chebyshev, 2.0, 0.0)),
    "chebyshev_polynomial_v": (partial(_line, 2.0, -1.0), partial(_chebyshev, 2.0, 0.0)),
    "chebyshev_polynomial_w": (partial(_line, 2.0, 1.0), partial(_chebyshev, 2.0, 0.0)),
    "shifted_chebyshev_polynomial_t": (partial(_line, 2.0, -1.0), partial(_chebyshev, 4.0, -2.0)),
    "shifted_chebyshev_polynomial_u": (partial(_line, 4.0, -2.0), partial(_chebyshev, 4.0, -2.0)),
    "shifted_chebyshev_polynomial_v": (partial(_line, 4.0, -3.0), partial(_chebyshev, 4.0, -2.0)),
    "shifted_chebyshev_polynomial_w": (partial(_line, 4.0, -1.0), partial(_chebyshev, 4.0, -2.0)),
    "hermite_polynomial_h": (partial(_line, 2.0, 0.0), partial(_hermite, 2.0)),
    "hermite_polynomial_he": (partial(_line, 1.0, 0.0), partial(_hermite, 1.0)),
    "laguerre_polynomial_l": (partial(_line, -1.0, 1.0), _laguerre),
    "legendre_polynomial_p": (partial(_line, 1.0, 0.0), _legendre),
}

ORTHOGONAL_POLYNOMIALS = tuple(
    Translation(
        partial(_polynomial, first=first, following=following),
        (f"aten::special_{name}", f"aten::special_{name}.x_scalar", f"aten::special_{name}.n_scalar"),
    )
    for name, (first, following) in _FAMILIES.items()
)

TRANSLATIONS = (*BESSEL_FUNCTIONS, *ORTHOGONAL_POLYNOMIALS)
