"""Decompositions of operators without a float64 kernel in ONNX Runtime's CPU execution provider.

A wider type to compute in does not exist, so the formulas have the precision of float64 themselves. Each function has the
signature of its ONNX operator; the table is ONNX Runtime 1.31's (``python -m benchmarks.kernel_probe``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from .._builder.numerics import erf, exp_minus_one, log_one_plus, rational
from .._builder.op import Op

__all__ = ["FLOAT64_KERNELS"]


def _number(op: Op, number: float) -> ir.Value:
    return op.const(number, ir.DataType.DOUBLE)


def _odd(op: Op, x: ir.Value, of_size: ir.Value) -> ir.Value:
    """An odd function of x, from its value at |x|."""
    return op.Where(op.Less(x, _number(op, 0.0)), op.Neg(of_size), of_size)


# Cephes, atan.c: a rational function of x^2 for |x| <= 0.66.
_ATAN = (
    (
        -6.485021904942025371773e1,
        -1.228866684490136173410e2,
        -7.500855792314704667340e1,
        -1.615753718733365076637e1,
        -8.750608600031904122785e-1,
    ),
    (
        1.945506571482613964425e2,
        4.853903996359136964868e2,
        4.328810604912902668951e2,
        1.650270098316988542046e2,
        2.485846490142306297962e1,
        1.0,
    ),
)


def atan(op: Op, x: ir.Value) -> ir.Value:
    """Atan, by atan(x) = pi/2 - atan(1/x) and atan(x) = pi/4 + atan((x - 1) / (x + 1)) for |x|."""
    size, one = op.Abs(x), _number(op, 1.0)
    steep = op.Greater(size, _number(op, 1 + math.sqrt(2)))
    middle = op.Greater(size, _number(op, 0.66))
    ratio = op.Where(middle, op.Div(op.Sub(size, one), op.Add(size, one)), size)
    reduced = op.Where(steep, op.Neg(op.Reciprocal(size)), ratio)
    base = op.Where(middle, _number(op, math.pi / 4), _number(op, 0.0))
    base = op.Where(steep, _number(op, math.pi / 2), base)
    square = op.Mul(reduced, reduced)
    correction = op.Mul(op.Mul(reduced, square), rational(op, square, _ATAN))
    return _odd(op, x, op.Add(base, op.Add(reduced, correction)))


def asin(op: Op, x: ir.Value) -> ir.Value:
    """Asin."""
    one = _number(op, 1.0)
    cosine = op.Sqrt(op.Mul(op.Sub(one, x), op.Add(one, x)))
    return op.Mul(atan(op, op.Div(x, op.Add(one, cosine))), _number(op, 2.0))


def acos(op: Op, x: ir.Value) -> ir.Value:
    """Acos."""
    one = _number(op, 1.0)
    return op.Mul(atan(op, op.Sqrt(op.Div(op.Sub(one, x), op.Add(one, x)))), _number(op, 2.0))


def tan(op: Op, x: ir.Value) -> ir.Value:
    """Tan."""
    return op.Div(op.Sin(x), op.Cos(x))


def sinh(op: Op, x: ir.Value) -> ir.Value:
    """Sinh; for large numbers as a product, because exp(|x|) overflows before exp(|x|) / 2."""
    size = op.Abs(x)
    rest, half = exp_minus_one(op, size), op.Exp(op.Mul(size, _number(op, 0.5)))
    small = op.Mul(op.Add(rest, op.Div(rest, op.Add(rest, _number(op, 1.0)))), _number(op, 0.5))
    large = op.Mul(op.Mul(half, _number(op, 0.5)), half)
    return _odd(op, x, op.Where(op.Greater(size, _number(op, 30.0)), large, small))


def cosh(op: Op, x: ir.Value) -> ir.Value:
    """Cosh, as a product for the same reason."""
    root = op.Exp(op.Mul(op.Abs(x), _number(op, 0.5)))
    half = _number(op, 0.5)
    return op.Add(op.Mul(op.Mul(root, half), root), op.Div(op.Div(half, root), root))


# From this number on x^2 + 1 is rounded to x^2.
_HUGE = 1e9


def asinh(op: Op, x: ir.Value) -> ir.Value:
    """Asinh."""
    size, one = op.Abs(x), _number(op, 1.0)
    square = op.Mul(size, size)
    near = op.Add(size, op.Div(square, op.Add(one, op.Sqrt(op.Add(square, one)))))
    huge = op.Greater(size, _number(op, _HUGE))
    far = op.Add(op.Log(size), _number(op, math.log(2)))
    return _odd(op, x, op.Where(huge, far, log_one_plus(op, near)))


def acosh(op: Op, x: ir.Value) -> ir.Value:
    """Acosh."""
    above = op.Sub(x, _number(op, 1.0))
    root = op.Mul(op.Sqrt(above), op.Sqrt(op.Add(x, _number(op, 1.0))))
    far = op.Add(op.Log(x), _number(op, math.log(2)))
    return op.Where(op.Greater(x, _number(op, _HUGE)), far, log_one_plus(op, op.Add(above, root)))


def atanh(op: Op, x: ir.Value) -> ir.Value:
    """Atanh."""
    size = op.Abs(x)
    ratio = op.Div(op.Add(size, size), op.Sub(_number(op, 1.0), size))
    return _odd(op, x, op.Mul(log_one_plus(op, ratio), _number(op, 0.5)))


def softplus(op: Op, x: ir.Value) -> ir.Value:
    """Softplus."""
    rest = log_one_plus(op, op.Exp(op.Neg(op.Abs(x))))
    return op.Add(op.Max(x, _number(op, 0.0)), rest)


def elu(op: Op, x: ir.Value, alpha: float = 1.0) -> ir.Value:
    """Elu."""
    zero = _number(op, 0.0)
    negative = op.Mul(exp_minus_one(op, x), _number(op, alpha))
    return op.Where(op.Less(x, zero), negative, x)


def selu(op: Op, x: ir.Value, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323) -> ir.Value:
    """Selu."""
    return op.Mul(elu(op, x, alpha), _number(op, gamma))


def celu(op: Op, x: ir.Value, alpha: float = 1.0) -> ir.Value:
    """Celu."""
    return op.Mul(elu(op, op.Div(x, _number(op, alpha))), _number(op, alpha))


def leaky_relu(op: Op, x: ir.Value, alpha: float = 0.01) -> ir.Value:
    """LeakyRelu."""
    return op.Where(op.Less(x, _number(op, 0.0)), op.Mul(x, _number(op, alpha)), x)


def prelu(op: Op, x: ir.Value, slope: ir.Value) -> ir.Value:
    """PRelu."""
    return op.Where(op.Less(x, _number(op, 0.0)), op.Mul(x, slope), x)


def hard_sigmoid(op: Op, x: ir.Value, alpha: float = 0.2, beta: float = 0.5) -> ir.Value:
    """HardSigmoid."""
    line = op.Add(op.Mul(x, _number(op, alpha)), _number(op, beta))
    return op.Clip(line, _number(op, 0.0), _number(op, 1.0))


def hard_swish(op: Op, x: ir.Value) -> ir.Value:
    """HardSwish."""
    return op.Mul(x, hard_sigmoid(op, x, 1 / 6))


def mish(op: Op, x: ir.Value) -> ir.Value:
    """Mish."""
    return op.Mul(x, op.Tanh(softplus(op, x)))


def softsign(op: Op, x: ir.Value) -> ir.Value:
    """Softsign."""
    return op.Div(x, op.Add(op.Abs(x), _number(op, 1.0)))


def gelu(op: Op, x: ir.Value, approximate: str = "none") -> ir.Value:
    """Gelu."""
    one, half = _number(op, 1.0), _number(op, 0.5)
    if approximate == "tanh":
        cubic = op.Mul(op.Mul(op.Mul(x, x), x), _number(op, 0.044715))
        inner = op.Mul(op.Add(x, cubic), _number(op, math.sqrt(2 / math.pi)))
        return op.Mul(op.Mul(x, half), op.Add(op.Tanh(inner), one))
    return op.Mul(op.Mul(x, half), op.Add(erf(op, op.Mul(x, _number(op, math.sqrt(0.5)))), one))


FLOAT64_KERNELS: Mapping[str, Callable[..., ir.Value]] = MappingProxyType(
    {
        "Acos": acos,
        "Acosh": acosh,
        "Asin": asin,
        "Asinh": asinh,
        "Atan": atan,
        "Atanh": atanh,
        "Celu": celu,
        "Cosh": cosh,
        "Elu": elu,
        "Erf": erf,
        "Gelu": gelu,
        "HardSigmoid": hard_sigmoid,
        "HardSwish": hard_swish,
        "LeakyRelu": leaky_relu,
        "Mish": mish,
        "PRelu": prelu,
        "Selu": selu,
        "Sinh": sinh,
        "Softplus": softplus,
        "Softsign": softsign,
        "Tan": tan,
    }
)
"""ONNX operator to its decomposition."""
