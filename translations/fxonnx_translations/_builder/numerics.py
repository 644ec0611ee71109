"""Building blocks of numeric formulas: polynomials, accurate logarithms, signs of zeros."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir
import torch

from .dtypes import HALF_FLOATS, to_torch_dtype
from .op import Op

__all__ = [
    "erf",
    "erfc",
    "exp_minus_one",
    "exp_of_square",
    "in_double",
    "in_float",
    "log_of_sum_of_exponentials",
    "log_one_plus",
    "polynomial",
    "rational",
    "scaled_erfc",
    "scaled_erfc_tail",
    "sign_bit",
    "truncated",
]


def in_float(op: Op, formula: Callable[..., ir.Value], *values: ir.Value) -> ir.Value:
    """Evaluate a formula in the result's type, in subgraphs in that of the values; half types in float32, rounded at the end."""
    dtype = op.result.dtype if op.results else op.dtype_of(values[0])
    wide = ir.DataType.FLOAT if dtype in HALF_FLOATS else dtype
    return op.cast(formula(op, *(op.cast(value, wide) for value in values)), dtype)


def in_double(op: Op, formula: Callable[..., ir.Value], *values: ir.Value) -> ir.Value:
    """Evaluate a formula with cancellation in float64, and round once to the result's type."""
    return op.cast(formula(op, *(op.cast(value, ir.DataType.DOUBLE) for value in values)), op.result.dtype)


def polynomial(op: Op, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """c0 + c1 x + c2 x^2 + ... by Horner's rule."""
    dtype = op.dtype_of(x)
    value = op.const(coefficients[-1], dtype)
    for coefficient in reversed(coefficients[:-1]):
        value = op.Add(op.Mul(value, x), op.const(coefficient, dtype))
    return value


def sign_bit(op: Op, x: ir.Value) -> ir.Value:
    """Whether the sign bit of a float is set, as it is for -0.0; BOOL."""
    zero = op.const(0.0, op.dtype_of(x))
    return op.Less(op.Where(op.Equal(x, zero), op.Reciprocal(x), x), zero)


def truncated(op: Op, x: ir.Value) -> ir.Value:
    """The value rounded towards zero. ONNX has no Trunc: take the floor of the magnitude; exact zeros keep -0.0."""
    if op.exact_zeros:
        return op.Where(op.Greater(x, op.const(0.0, op.dtype_of(x))), op.Floor(x), op.Ceil(x))
    return op.Mul(op.Sign(x), op.Floor(op.Abs(x)))


def log_one_plus(op: Op, x: ir.Value) -> ir.Value:
    """log(1 + x) without the cancellation near 0: the rounding error of 1 + x is divided out (Kahan)."""
    dtype = op.dtype_of(x)
    one = op.const(1.0, dtype)
    sum_ = op.Add(x, one)
    logarithm = op.Log(sum_)
    # Between 1/2 and 2, but 0 or NaN if 1 + x is rounded to 1 or is infinite: then the result is x, or log(-inf).
    kept = op.Div(op.Sub(sum_, one), x)
    is_usual = op.Greater(kept, op.const(0.0, dtype))
    return op.Where(is_usual, op.Div(logarithm, kept), op.Add(logarithm, x))


def exp_minus_one(op: Op, x: ir.Value) -> ir.Value:
    """exp(x) - 1 without the cancellation near 0, as tanh(x/2) (exp(x) + 1)."""
    dtype = op.dtype_of(x)
    half = op.Tanh(op.Mul(x, op.const(0.5, dtype)))
    return op.Mul(half, op.Add(op.Exp(x), op.const(1.0, dtype)))


def log_of_sum_of_exponentials(op: Op, a: ir.Value, b: ir.Value, base: float = math.e) -> ir.Value:
    """log(exp(a) + exp(b)) as the larger one plus softplus of the negative distance; also right for equal infinities."""
    dtype = op.dtype_of(a)
    largest, scale = float(torch.finfo(to_torch_dtype(dtype)).max), math.log(base)
    larger = op.Max(a, b)
    # The limits keep the difference of equal infinities from being NaN.
    distance = op.Sub(op.Min(a, b, op.const(largest, dtype)), op.Max(larger, op.const(-largest, dtype)))
    smooth = op.Softplus(op.Mul(distance, op.const(scale, dtype)))
    return op.Add(larger, op.Mul(smooth, op.const(1 / scale, dtype)))


# Cephes, ndtr.c: erf below 1 in x^2, and exp(x^2) erfc(x) from 1 to 8 in x and beyond, in 1/x.
_ERF = (
    (
        5.55923013010394962768e4,
        7.00332514112805075473e3,
        2.23200534594684319226e3,
        9.00260197203842689217e1,
        9.60497373987051638749e0,
    ),
    (
        4.92673942608635921086e4,
        2.26290000613890934246e4,
        4.59432382970980127987e3,
        5.21357949780152679795e2,
        3.35617141647503099647e1,
        1.0,
    ),
)
_ERFC_MIDDLE = (
    (
        5.57535335369399327526e2,
        1.02755188689515710272e3,
        9.34528527171957607540e2,
        5.26445194995477358631e2,
        1.96520832956077098242e2,
        4.86371970985681366614e1,
        7.46321056442269912687e0,
        5.64189564831068821977e-1,
        2.46196981473530512524e-10,
    ),
    (
        5.57535340817727675546e2,
        1.65666309194161350182e3,
        2.24633760818710981792e3,
        1.82390916687909736289e3,
        9.75708501743205489753e2,
        3.54937778887819891062e2,
        8.67072140885989742329e1,
        1.32281951154744992508e1,
        1.0,
    ),
)
_ERFC_FAR = (
    (
        5.64189583547755073984e-1,
        1.27536670759978104416e0,
        5.01905042251180477414e0,
        6.16021097993053585195e0,
        7.40974269950448939160e0,
        2.97886665372100240670e0,
    ),
    (
        1.0,
        2.26052863220117276590e0,
        9.39603524938001434673e0,
        1.20489539808096656605e1,
        1.70814450747565897222e1,
        9.60896809063285878198e0,
        3.36907645100081516050e0,
    ),
)


def rational(op: Op, x: ir.Value, coefficients: tuple[Sequence[float], Sequence[float]]) -> ir.Value:
    """The quotient of two polynomials."""
    return op.Div(polynomial(op, x, coefficients[0]), polynomial(op, x, coefficients[1]))


def exp_of_square(op: Op, x: ir.Value, sign: float) -> ir.Value:
    """exp(sign x^2) as the product of the exponentials of an exact square and of the remainder."""
    dtype = op.dtype_of(x)
    # Beyond 40 exp(x^2) overflows in float64 anyway; without the clip the second factor would overflow.
    x = op.Clip(x, op.const(-40.0, dtype), op.const(40.0, dtype))
    # Few enough bits for an exact square.
    grid = op.const(16.0, dtype)
    whole = op.Div(op.Round(op.Mul(x, grid)), grid)
    rest = op.Mul(op.Sub(x, whole), op.Add(x, whole))
    factor = op.const(sign, dtype)
    return op.Mul(op.Exp(op.Mul(op.Mul(whole, whole), factor)), op.Exp(op.Mul(rest, factor)))


def _erf_near(op: Op, x: ir.Value) -> ir.Value:
    return op.Mul(x, rational(op, op.Mul(x, x), _ERF))


def scaled_erfc_tail(op: Op, x: ir.Value) -> ir.Value:
    """exp(x^2) erfc(x) for x >= 1."""
    dtype = op.dtype_of(x)
    border = op.const(8.0, dtype)
    inverse = op.Reciprocal(op.Max(x, border))
    far = op.Mul(inverse, rational(op, inverse, _ERFC_FAR))
    return op.Where(op.Less(x, border), rational(op, op.Min(x, border), _ERFC_MIDDLE), far)


# exp(x^2) erfc(x) for float32, as y P(y) with y = 1 / (x + shift): the shift and P. Least relative errors, 3.4e-8 from 1 to
# 10.2, where erfc underflows, and 2.7e-8 for all x >= 0.
_ERFC_FLOAT = (
    2.5,
    (
        0.5640635499651901,
        1.4169858253080623,
        3.1034840349376585,
        8.34264997302266,
        0.7162080376732776,
        59.682728627891166,
        -71.1541904918904,
    ),
)
_ERFCX_FLOAT = (
    2.8,
    (
        0.5641895872976945,
        1.579736759361638,
        4.140213573621045,
        10.063227845067816,
        20.67056040579263,
        56.78099641489289,
        -64.69826374737615,
        638.7599920689687,
        -1624.8490366737874,
        1161.8109379784346,
    ),
)


def _in_reciprocal(op: Op, x: ir.Value, form: tuple[float, Sequence[float]]) -> ir.Value:
    shift, coefficients = form
    y = op.Reciprocal(op.Add(x, op.const(shift, op.dtype_of(x))))
    return op.Mul(y, polynomial(op, y, coefficients))


def _exp_of_double(op: Op, x: ir.Value, sign: float) -> ir.Value:
    square = op.Mul(x, x)
    return op.Exp(square if sign > 0 else op.Neg(square))


def scaled_erfc(op: Op, x: ir.Value) -> ir.Value:
    """exp(x^2) erfc(x) of float32, computed in float64."""
    wide = op.cast(x, ir.DataType.DOUBLE)
    tail = _in_reciprocal(op, op.Abs(wide), _ERFCX_FLOAT)
    power = op.Mul(_exp_of_double(op, wide, 1.0), op.const(2.0, ir.DataType.DOUBLE))
    is_negative = op.Less(x, op.const(0.0, op.dtype_of(x)))
    return op.cast(op.Where(is_negative, op.Sub(power, tail), tail), op.dtype_of(x))


def erf(op: Op, x: ir.Value) -> ir.Value:
    """Erf for the element types without a kernel in ONNX Runtime."""
    dtype = op.dtype_of(x)
    one = op.const(1.0, dtype)
    size = op.Abs(x)
    tail = op.Sub(one, op.Mul(exp_of_square(op, size, -1.0), scaled_erfc_tail(op, size)))
    tail = op.Where(op.Less(x, op.const(0.0, dtype)), op.Neg(tail), tail)
    return op.Where(op.Less(size, one), _erf_near(op, x), tail)


def erfc(op: Op, x: ir.Value) -> ir.Value:
    """1 - erf(x), without the cancellation of the subtraction in the tail."""
    dtype = op.dtype_of(x)
    one = op.const(1.0, dtype)
    if dtype == ir.DataType.FLOAT:
        wide = op.cast(x, ir.DataType.DOUBLE)
        tail = op.Mul(_exp_of_double(op, wide, -1.0), _in_reciprocal(op, wide, _ERFC_FLOAT))
        tail = op.cast(tail, dtype)
    else:
        tail = op.Mul(exp_of_square(op, x, -1.0), scaled_erfc_tail(op, x))
    return op.Where(op.Less(x, one), op.Sub(one, op.Erf(x)), tail)
