"""Orthogonal polynomials whose degree is a tensor, by their three-term recurrences.

A Loop runs up to the largest degree; elements of a smaller degree keep their value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import onnx_ir as ir

from ..._builder.dtypes import INT64
from ..._builder.loops import loop
from ..._builder.numerics import in_float
from ..._builder.op import Op, Operand
from ..._registry import Translation

First = Callable[[Op, ir.Value], ir.Value]
"""Emits the polynomial of degree 1."""
Next = Callable[[Op, ir.Value, ir.Value, ir.Value, ir.Value], ir.Value]
"""``next(op, x, k, q, p)`` emits the polynomial of degree k + 1 from those of degrees k and k - 1; k is a 0-dim float."""


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

TRANSLATIONS = tuple(
    Translation(
        partial(_polynomial, first=first, following=following),
        (f"aten::special_{name}", f"aten::special_{name}.x_scalar", f"aten::special_{name}.n_scalar"),
    )
    for name, (first, following) in _FAMILIES.items()
)
