"""Factorizations of complex matrices: LU with partial pivoting, Cholesky; determinants.

As for real matrices, each is a Loop over the columns with the order of operations of LAPACK. The parts of a matrix are two
states of the Loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch

from .._aten.linalg.factorization import (
    LU,
    matrix_transpose,
    order_of_pivots,
    permutation,
    rows_and_columns,
    smaller,
)
from .._aten.linalg.solve import parity
from .._builder.dtypes import INT32
from .._builder.loops import arange, loop
from .._builder.op import Op
from .._builder.symbolic_dims import Dim
from .._registry import translates
from .arithmetic import divide, multiply
from .parts import Pair, choose, join
from .solve import solved

# ---- helpers


def _each(op: Op, operator: str, pair: Pair, *arguments: ir.Value | list[int], **attributes: int) -> Pair:
    """Apply an operator to both parts."""
    real, imaginary = (getattr(op, operator)(part, *arguments, **attributes) for part in pair)
    return real, imaginary


def product(op: Op, left: Pair, right: Pair) -> Pair:
    """The product of two matrices."""
    (a, b), (c, d) = left, right
    return op.Sub(op.MatMul(a, c), op.MatMul(b, d)), op.Add(op.MatMul(a, d), op.MatMul(b, c))


def _difference(op: Op, left: Pair, right: Pair) -> Pair:
    return op.Sub(left[0], right[0]), op.Sub(left[1], right[1])


def conjugate_transpose(op: Op, matrix: Pair) -> Pair:
    """The conjugate transpose of the last two axes."""
    return matrix_transpose(op, matrix[0]), op.Neg(matrix_transpose(op, matrix[1]))


def _numbers(op: Op, like: Pair, number: float) -> Pair:
    dtype = op.dtype_of(like[0])
    return op.const(number, dtype), op.const(0.0, dtype)


def _join(op: Op, pair: Pair) -> ir.Value:
    return op.join(*pair)


# ---- LU


def lu_factors(op: Op, matrix: Pair, *, pivot: bool = True) -> tuple[Pair, LU]:
    """Factorize matrices [*, m, n]; return the factors' parts, and the rest as for real matrices."""
    dims, dtype = op.dims(matrix[0]), op.dtype_of(matrix[0])
    count = smaller(*dims[-2:])
    rows, columns = rows_and_columns(op, matrix[0])
    positions, shape = arange(op, count), op.sizes(dims)
    zero, below_all = op.const(0, dtype), op.const(-1, dtype)

    def step(body: Op, k: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        rest: Pair = (states[0], states[1])
        order, pivots, info = states[2:]
        if pivot:
            column = _each(body, "Gather", rest, k, axis=-1)
            # LAPACK compares |re| + |im|.
            sizes = body.Add(body.Abs(column[0]), body.Abs(column[1]))
            candidates = body.Where(body.Less(rows, k), below_all, sizes)
            chosen = body.ArgMax(candidates, axis=-2, keepdims=1)
            exchange = body.Where(body.Equal(rows, chosen), k, rows)
            exchange = body.Where(body.Equal(rows, k), chosen, exchange)
            rest = _each(body, "GatherElements", rest, body.Expand(exchange, shape), axis=-2)
            order = body.GatherElements(order, exchange, axis=-2)
            number = body.cast(body.Add(body.Squeeze(chosen, [-1]), body.const([1])), INT32)
            pivots = body.Where(body.Equal(positions, k), number, pivots)
        row, column = _each(body, "Gather", rest, k, axis=-2), _each(body, "Gather", rest, k, axis=-1)
        value = _each(body, "Gather", row, k, axis=-1)
        is_zero = body.And(body.Equal(value[0], zero), body.Equal(value[1], zero))
        below = body.Greater(rows, k)
        quotient = choose(body, is_zero, column, divide(body, column, value))
        factor = choose(body, below, quotient, _numbers(body, rest, 0.0))
        updated = _difference(body, rest, product(body, factor, row))
        stored = choose(body, body.And(body.Equal(columns, k), below), factor, rest)
        rest = choose(body, body.Greater(columns, k), updated, stored)
        new = body.And(is_zero, body.Equal(info, body.const(0, INT32)))
        info = body.Where(new, body.cast(body.Add(k, body.const([1])), INT32), info)
        return *rest, order, pivots, info

    batch = dims[:-2]
    states = [
        *matrix,
        op.expand(rows, (*batch, dims[-2], 1)),
        op.expand(op.cast(op.Add(positions, op.const([1])), INT32), (*batch, count)),
        op.expand(op.const(0, INT32), (*batch, 1, 1)),
    ]
    real, imaginary, order, pivots, info = loop(op, count, states, step)
    return (real, imaginary), LU(real, order, pivots, op.Squeeze(info, [-2, -1]))


def _unpacked(op: Op, factors: Pair) -> tuple[Pair, Pair]:
    """Return the factors L [*, m, k] and U [*, k, n]."""
    rows, columns = op.dims(factors[0])[-2:]
    count = smaller(rows, columns)
    batch = op.dims(factors[0])[:-2]

    def cropped(axis: int, dims: Sequence[Dim]) -> Pair:
        real, imaginary = (op.shaped(op.Slice(part, [0], op.size(count), [axis]), dims) for part in factors)
        return real, imaginary

    lower = factors if count == columns else cropped(-1, (*batch, rows, count))
    upper = factors if count == rows else cropped(-2, (*batch, count, columns))
    row, column = rows_and_columns(op, lower[0])
    below = choose(op, op.Greater(row, column), lower, _numbers(op, lower, 0.0))
    unit = choose(op, op.Equal(row, column), _numbers(op, lower, 1.0), below)
    return unit, _each(op, "Trilu", upper, upper=1)


@translates("aten::linalg_lu_factor_ex", complex=True)
def linalg_lu_factor_ex(
    op: Op, A: ir.Value, *, pivot: bool = True, check_errors: bool = False
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """aten::linalg_lu_factor_ex(Tensor A, *, bool pivot=True, bool check_errors=False) -> (Tensor LU, Tensor pivots, Tensor info)"""
    factors, lu = lu_factors(op, op.parts(A), pivot=pivot)
    return _join(op, factors), lu.pivots, lu.info


@translates("aten::linalg_lu", complex=True)
def linalg_lu(op: Op, A: ir.Value, *, pivot: bool = True) -> tuple[ir.Value, ir.Value, ir.Value]:
    """aten::linalg_lu(Tensor A, *, bool pivot=True) -> (Tensor P, Tensor L, Tensor U)"""
    factors, lu = lu_factors(op, op.parts(A), pivot=pivot)
    lower, upper = _unpacked(op, factors)
    dtype = op.dtype_of(factors[0])
    if pivot:
        rows = op.dims(factors[0])[-2]
        exchanged = permutation(op, matrix_transpose(op, lu.order), rows, dtype)
    else:
        exchanged = op.const(torch.empty(0, dtype=op.result.torch_dtype.to_real()))
    zeros = op.expand(op.const(0.0, dtype), op.dims(exchanged))
    return op.join(exchanged, zeros), _join(op, lower), _join(op, upper)


@translates("aten::lu_unpack", complex=True)
def lu_unpack(
    op: Op, LU_data: ir.Value, LU_pivots: ir.Value, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """aten::lu_unpack(Tensor LU_data, Tensor LU_pivots, bool unpack_data=True, bool unpack_pivots=True) -> (Tensor P, Tensor L, Tensor U)"""
    factors = op.parts(LU_data)
    dtype = op.dtype_of(factors[0])
    nothing = op.const(torch.empty(0, dtype=op.result.torch_dtype.to_real()))
    empty = op.join(nothing, nothing)
    exchanged, lower, upper = empty, empty, empty
    if unpack_pivots:
        rows = op.dims(factors[0])[-2]
        order = matrix_transpose(op, order_of_pivots(op, LU_pivots, rows))
        real = permutation(op, order, rows, dtype)
        exchanged = op.join(real, op.expand(op.const(0.0, dtype), op.dims(real)))
    if unpack_data:
        lower, upper = (_join(op, factor) for factor in _unpacked(op, factors))
    return exchanged, lower, upper


# ---- determinants


def _diagonal(op: Op, factors: Pair) -> Pair:
    """Return the diagonals [*, n]."""
    rows, columns = rows_and_columns(op, factors[0])
    only = choose(op, op.Equal(rows, columns), factors, _numbers(op, factors, 0.0))
    return _each(op, "ReduceSum", only, [-1], keepdims=0)


def _product_of(op: Op, values: Pair) -> Pair:
    """Multiply the elements of the last axis."""
    dims = op.dims(values[0])
    one = op.expand(op.const(1.0, op.dtype_of(values[0])), (*dims[:-1], 1))
    start = [one, op.expand(op.const(0.0, op.dtype_of(values[0])), (*dims[:-1], 1))]

    def step(body: Op, k: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        return multiply(body, (states[0], states[1]), _each(body, "Gather", values, k, axis=-1))

    real, imaginary = loop(op, dims[-1], start, step)
    return _each(op, "Squeeze", (real, imaginary), [-1])


@translates("aten::_linalg_det", complex=True)
def _linalg_det(op: Op, A: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """aten::_linalg_det(Tensor A) -> (Tensor result, Tensor LU, Tensor pivots)"""
    factors, lu = lu_factors(op, op.parts(A))
    determinant = _product_of(op, _diagonal(op, factors))
    signed = _each(op, "Mul", determinant, parity(op, lu, op.dtype_of(factors[0])))
    return join(op, *signed), _join(op, factors), lu.pivots


@translates("aten::_linalg_slogdet", complex=True)
def _linalg_slogdet(op: Op, A: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
    """aten::_linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet, Tensor LU, Tensor pivots)"""
    factors, lu = lu_factors(op, op.parts(A))
    real, imaginary = _diagonal(op, factors)
    dtype = op.dtype_of(real)
    # Divided by the larger part, so that the squares do not overflow.
    largest = op.Max(op.Max(op.Abs(real), op.Abs(imaginary)), op.const(_TINY[dtype], dtype))
    a, b = op.Div(real, largest), op.Div(imaginary, largest)
    length = op.Sqrt(op.Add(op.Mul(a, a), op.Mul(b, b)))
    is_zero = op.Equal(length, op.const(0.0, dtype))
    divisor = op.Where(is_zero, op.const(1.0, dtype), length)
    units = _product_of(op, (op.Div(a, divisor), op.Div(b, divisor)))
    sign = _each(op, "Mul", units, parity(op, lu, dtype))
    logarithm = op.ReduceSum(op.Add(op.Log(length), op.Log(largest)), [-1], keepdims=0)
    return join(op, *sign), logarithm, _join(op, factors), lu.pivots


_TINY = {ir.DataType.FLOAT: 1e-37, ir.DataType.DOUBLE: 1e-307}
"""Less than any pivot of a regular matrix, and greater than 0."""


# ---- solutions by given factors


@translates("aten::linalg_lu_solve", complex=True)
def linalg_lu_solve(
    op: Op, LU: ir.Value, pivots: ir.Value, B: ir.Value, *, left: bool = True, adjoint: bool = False
) -> ir.Value:
    """aten::linalg_lu_solve(Tensor LU, Tensor pivots, Tensor B, *, bool left=True, bool adjoint=False) -> Tensor"""
    factors = op.parts(LU)
    lower, upper = _unpacked(op, factors)
    rows = op.dims(factors[0])[-2]
    order = matrix_transpose(op, order_of_pivots(op, pivots, rows))
    rearranged = permutation(op, order, rows, op.dtype_of(factors[0]))
    real, imaginary = product(op, lower, upper)
    matrix: Pair = (op.MatMul(rearranged, real), op.MatMul(rearranged, imaginary))
    if adjoint:
        matrix = conjugate_transpose(op, matrix)
    right = op.parts(B)
    dims = op.result.shape if left else None
    if dims is not None:
        right = (op.expand(right[0], dims), op.expand(right[1], dims))
    return join(op, *solved(op, matrix, right, left=left)[0])


# ---- Cholesky


@translates("aten::linalg_cholesky_ex", complex=True)
def linalg_cholesky_ex(
    op: Op, self: ir.Value, *, upper: bool = False, check_errors: bool = False
) -> tuple[ir.Value, ir.Value]:
    """aten::linalg_cholesky_ex(Tensor self, *, bool upper=False, bool check_errors=False) -> (Tensor L, Tensor info)"""
    matrix = op.parts(self)
    if upper:
        matrix = conjugate_transpose(op, matrix)
    dims, dtype = op.dims(matrix[0]), op.dtype_of(matrix[0])
    rows, columns = rows_and_columns(op, matrix[0])
    zero = op.const(0, dtype)

    def step(body: Op, k: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        rest: Pair = (states[0], states[1])
        column = _each(body, "Gather", rest, k, axis=-1)
        # The diagonal is real.
        pivot = body.Gather(column[0], k, axis=-2)
        root = body.Sqrt(pivot)
        here = body.Equal(rows, k)
        scaled = choose(body, here, (root, zero), _each(body, "Div", column, root))
        factor = choose(body, body.Less(rows, k), (zero, zero), scaled)
        updated = _difference(body, rest, product(body, factor, conjugate_transpose(body, factor)))
        later = choose(body, body.Greater(columns, k), updated, rest)
        info = states[2]
        new = body.And(body.Not(body.Greater(pivot, zero)), body.Equal(info, body.const(0, INT32)))
        info = body.Where(new, body.cast(body.Add(k, body.const([1])), INT32), info)
        return *choose(body, body.Equal(columns, k), factor, later), info

    start = op.expand(op.const(0, INT32), (*dims[:-2], 1, 1))
    real, imaginary, info = loop(op, dims[-1], [*matrix, start], step)
    result: Pair = (real, imaginary)
    if upper:
        result = conjugate_transpose(op, result)
    return _join(op, result), op.Squeeze(info, [-2, -1])


@translates("aten::cholesky", complex=True)
def cholesky(op: Op, self: ir.Value, upper: bool = False) -> ir.Value:
    """aten::cholesky(Tensor self, bool upper=False) -> Tensor"""
    return linalg_cholesky_ex(op, self, upper=upper)[0]
