"""Factorizations of matrices: Cholesky, LU with partial pivoting, QR by Householder reflections.

ONNX has no operators for them. Each is a Loop over the columns with a rank-one update of the whole matrix, so that the
size of the graph does not depend on the matrix. Order of operations and conventions are those of LAPACK's unblocked
routines: the first of equal pivots, signs, a zero pivot leaves its column unchanged. Where LAPACK reports a failure and
torch raises, the ONNX result is not finite.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch

from ..._builder.dtypes import INT32, INT64
from ..._builder.loops import arange, loop
from ..._builder.op import Op
from ..._builder.symbolic_dims import Dim
from ..._registry import translates
from ..._torch_compat import Min

__all__ = [
    "LU",
    "first_failure",
    "householder",
    "householder_product",
    "lu_factors",
    "matrix_transpose",
    "order_of_pivots",
    "permutation",
    "rows_and_columns",
    "smaller",
    "unit_matrix",
    "zeros",
]


def matrix_transpose(op: Op, matrix: ir.Value) -> ir.Value:
    """Transpose the last two axes."""
    rank = op.rank_of(matrix)
    return op.Transpose(matrix, perm=[*range(rank - 2), rank - 1, rank - 2])


def rows_and_columns(op: Op, matrix: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the row indices [m, 1] and the column indices [1, n], INT64."""
    rows, columns = op.dims(matrix)[-2:]
    return op.Unsqueeze(arange(op, rows), [1]), op.Unsqueeze(arange(op, columns), [0])


def smaller(one: Dim, other: Dim) -> Dim:
    """The smaller of two sizes."""
    if isinstance(one, int) and isinstance(other, int):
        return min(one, other)
    return one if one == other else Min(one, other)


def zeros(op: Op, dims: Sequence[Dim], dtype: ir.DataType) -> ir.Value:
    return op.expand(op.const(0, dtype), dims)


def first_failure(op: Op, info: ir.Value, failed: ir.Value, k: ir.Value) -> ir.Value:
    """Return LAPACK's info: the 1-based index of the first pivot that failed, or 0."""
    new = op.And(failed, op.Equal(info, op.const(0, INT32)))
    return op.Where(new, op.cast(op.Add(k, op.const([1])), INT32), info)


# ---- Cholesky


def _cholesky(op: Op, matrix: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the lower Cholesky factor, computed from the lower triangle, and info [*]."""
    dims, dtype = op.dims(matrix), op.dtype_of(matrix)
    rows, columns = rows_and_columns(op, matrix)
    zero = op.const(0, dtype)

    def step(body: Op, k: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        rest, info = states
        column = body.Gather(rest, k, axis=-1)
        pivot = body.Gather(column, k, axis=-2)
        root = body.Sqrt(pivot)
        scaled = body.Where(body.Equal(rows, k), root, body.Div(column, root))
        factor = body.Where(body.Less(rows, k), zero, scaled)
        updated = body.Sub(rest, body.MatMul(factor, matrix_transpose(body, factor)))
        later = body.Where(body.Greater(columns, k), updated, rest)
        failed = body.Not(body.Greater(pivot, zero))
        return body.Where(body.Equal(columns, k), factor, later), first_failure(body, info, failed, k)

    info = zeros(op, (*dims[:-2], 1, 1), INT32)
    factor, info = loop(op, dims[-1], [matrix, info], step)
    return factor, op.Squeeze(info, [-2, -1])


@translates("aten::linalg_cholesky_ex")
def linalg_cholesky_ex(
    op: Op, self: ir.Value, *, upper: bool = False, check_errors: bool = False
) -> tuple[ir.Value, ir.Value]:
    """aten::linalg_cholesky_ex(Tensor self, *, bool upper=False, bool check_errors=False) -> (Tensor L, Tensor info)"""
    factor, info = _cholesky(op, matrix_transpose(op, self) if upper else self)
    return (matrix_transpose(op, factor) if upper else factor), info


@translates("aten::cholesky")
def cholesky(op: Op, self: ir.Value, upper: bool = False) -> ir.Value:
    """aten::cholesky(Tensor self, bool upper=False) -> Tensor"""
    return linalg_cholesky_ex(op, self, upper=upper)[0]


# ---- LU


class LU:
    """The LU factorization P L U.

    Args:
        factors: [*, m, n]: U, and below its diagonal L, whose diagonal is 1.
        order: [*, m, 1] INT64 row permutation: row i of L U is row ``order[i]`` of the matrix.
        pivots: [*, min(m, n)] INT32: the row, from 1, that each row was exchanged with.
        info: [*] INT32: the first pivot, from 1, that is zero, or 0.
    """

    def __init__(self, factors: ir.Value, order: ir.Value, pivots: ir.Value, info: ir.Value) -> None:
        self.factors = factors
        self.order = order
        self.pivots = pivots
        self.info = info


def lu_factors(op: Op, matrix: ir.Value, *, pivot: bool = True) -> LU:
    """Factorize matrices [*, m, n]."""
    dims, dtype = op.dims(matrix), op.dtype_of(matrix)
    count = smaller(*dims[-2:])
    rows, columns = rows_and_columns(op, matrix)
    positions = arange(op, count)
    zero, below_all = op.const(0, dtype), op.const(-1, dtype)
    shape = op.sizes(dims)

    def step(body: Op, k: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        rest, order, pivots, info = states
        if pivot:
            column = body.Gather(rest, k, axis=-1)
            candidates = body.Where(body.Less(rows, k), below_all, body.Abs(column))
            chosen = body.ArgMax(candidates, axis=-2, keepdims=1)
            exchange = body.Where(body.Equal(rows, chosen), k, rows)
            exchange = body.Where(body.Equal(rows, k), chosen, exchange)
            rest = body.GatherElements(rest, body.Expand(exchange, shape), axis=-2)
            order = body.GatherElements(order, exchange, axis=-2)
            number = body.cast(body.Add(body.Squeeze(chosen, [-1]), body.const([1])), INT32)
            pivots = body.Where(body.Equal(positions, k), number, pivots)
        row, column = body.Gather(rest, k, axis=-2), body.Gather(rest, k, axis=-1)
        value = body.Gather(row, k, axis=-1)
        is_zero = body.Equal(value, zero)
        below = body.Greater(rows, k)
        factor = body.Where(below, body.Where(is_zero, column, body.Div(column, value)), zero)
        updated = body.Sub(rest, body.MatMul(factor, row))
        stored = body.Where(body.And(body.Equal(columns, k), below), factor, rest)
        rest = body.Where(body.Greater(columns, k), updated, stored)
        return rest, order, pivots, first_failure(body, info, is_zero, k)

    batch = dims[:-2]
    states = [
        matrix,
        op.expand(rows, (*batch, dims[-2], 1)),
        op.expand(op.cast(op.Add(positions, op.const([1])), INT32), (*batch, count)),
        zeros(op, (*batch, 1, 1), INT32),
    ]
    factors, order, pivots, info = loop(op, count, states, step)
    return LU(factors, order, pivots, op.Squeeze(info, [-2, -1]))


def _order_of(op: Op, pivots: ir.Value, rows: Dim) -> ir.Value:
    """Return the row permutation, [*, rows] INT64, of the pivots' row exchanges."""
    dims = op.dims(pivots)
    numbers = arange(op, rows)
    zero_based = op.Sub(op.cast(pivots, INT64), op.const(1))

    def step(body: Op, k: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        chosen = body.Gather(zero_based, k, axis=-1)
        exchange = body.Where(body.Equal(numbers, chosen), k, numbers)
        exchange = body.Where(body.Equal(numbers, k), chosen, exchange)
        return [body.GatherElements(states[0], exchange, axis=-1)]

    return loop(op, dims[-1], [op.expand(numbers, (*dims[:-1], rows))], step)[0]


def permutation(op: Op, order: ir.Value, rows: Dim, dtype: ir.DataType) -> ir.Value:
    """Return P [*, rows, rows] with 1 at row ``order[i]`` of column i; ``order`` is [*, 1, rows]."""
    return op.cast(op.Equal(op.Unsqueeze(arange(op, rows), [1]), order), dtype)


def _unpacked(op: Op, factors: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the factors L [*, m, k] and U [*, k, n]."""
    rows, columns = op.dims(factors)[-2:]
    count = smaller(rows, columns)
    lower, upper = factors, factors
    batch = op.dims(factors)[:-2]
    if count != columns:
        lower = op.shaped(op.Slice(factors, [0], op.size(count), [-1]), (*batch, rows, count))
    if count != rows:
        upper = op.shaped(op.Slice(factors, [0], op.size(count), [-2]), (*batch, count, columns))
    row, column = rows_and_columns(op, lower)
    one, zero = op.const(1, op.dtype_of(factors)), op.const(0, op.dtype_of(factors))
    unit = op.Where(op.Equal(row, column), one, op.Where(op.Greater(row, column), lower, zero))
    return unit, op.Trilu(upper, upper=1)


@translates("aten::linalg_lu_factor_ex")
def linalg_lu_factor_ex(
    op: Op, A: ir.Value, *, pivot: bool = True, check_errors: bool = False
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """aten::linalg_lu_factor_ex(Tensor A, *, bool pivot=True, bool check_errors=False) -> (Tensor LU, Tensor pivots, Tensor info)"""
    lu = lu_factors(op, A, pivot=pivot)
    return lu.factors, lu.pivots, lu.info


@translates("aten::linalg_lu")
def linalg_lu(op: Op, A: ir.Value, *, pivot: bool = True) -> tuple[ir.Value, ir.Value, ir.Value]:
    """aten::linalg_lu(Tensor A, *, bool pivot=True) -> (Tensor P, Tensor L, Tensor U)"""
    lu = lu_factors(op, A, pivot=pivot)
    lower, upper = _unpacked(op, lu.factors)
    if not pivot:
        return op.const(torch.empty(0, dtype=op.result.torch_dtype)), lower, upper
    order = matrix_transpose(op, lu.order)
    return permutation(op, order, op.dims(A)[-2], op.dtype_of(A)), lower, upper


@translates("aten::lu_unpack")
def lu_unpack(
    op: Op, LU_data: ir.Value, LU_pivots: ir.Value, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """aten::lu_unpack(Tensor LU_data, Tensor LU_pivots, bool unpack_data=True, bool unpack_pivots=True) -> (Tensor P, Tensor L, Tensor U)"""
    empty = op.const(torch.empty(0, dtype=op.result.torch_dtype))
    exchanges, lower, upper = empty, empty, empty
    if unpack_pivots:
        rows = op.dims(LU_data)[-2]
        order = op.Unsqueeze(_order_of(op, LU_pivots, rows), [-2])
        exchanges = permutation(op, order, rows, op.dtype_of(LU_data))
    if unpack_data:
        lower, upper = _unpacked(op, LU_data)
    return exchanges, lower, upper


def order_of_pivots(op: Op, pivots: ir.Value, rows: Dim) -> ir.Value:
    """Return the row permutation, [*, rows, 1] INT64, of LAPACK's pivots."""
    return op.Unsqueeze(_order_of(op, pivots, rows), [-1])


# ---- QR


def _reflector(op: Op, packed: ir.Value, rows: ir.Value, k: ir.Value) -> ir.Value:
    """Return the vector [*, m, 1] of Householder reflection k: 0 above entry k, 1 at it, the stored entries below."""
    dtype = op.dtype_of(packed)
    stored = op.Gather(packed, k, axis=-1)
    below = op.Where(op.Greater(rows, k), stored, op.const(0, dtype))
    return op.Where(op.Equal(rows, k), op.const(1, dtype), below)


def _reflected(op: Op, matrix: ir.Value, vector: ir.Value, tau: ir.Value) -> ir.Value:
    """Apply a Householder reflection: (I - tau v v^T) matrix."""
    product = op.MatMul(matrix_transpose(op, vector), matrix)
    return op.Sub(matrix, op.MatMul(op.Mul(tau, vector), product))


def householder(op: Op, matrix: ir.Value) -> tuple[ir.Value, ir.Value]:
    """LAPACK's geqrf: return R with the reflectors below its diagonal [*, m, n], and tau [*, min(m, n)]."""
    dims, dtype = op.dims(matrix), op.dtype_of(matrix)
    count = smaller(*dims[-2:])
    rows, columns = rows_and_columns(op, matrix)
    positions = arange(op, count)
    zero = op.const(0, dtype)

    def step(body: Op, k: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        rest, taus = states
        column = body.Gather(rest, k, axis=-1)
        below = body.Greater(rows, k)
        tail = body.Where(below, column, zero)
        head = body.Gather(column, k, axis=-2)
        squares = body.ReduceSum(body.Mul(tail, tail), [-2], keepdims=1)
        norm = body.Sqrt(body.Add(body.Mul(head, head), squares))
        done = body.Equal(squares, zero)
        beta = body.Where(done, head, body.Where(body.Less(head, zero), norm, body.Neg(norm)))
        tau = body.Where(done, zero, body.Div(body.Sub(beta, head), beta))
        vector = body.Where(done, tail, body.Div(tail, body.Sub(head, beta)))
        whole = body.Where(body.Equal(rows, k), body.const(1, dtype), vector)
        updated = _reflected(body, rest, whole, tau)
        stored = body.Where(body.Equal(rows, k), beta, body.Where(below, vector, column))
        rest = body.Where(body.Greater(columns, k), updated, rest)
        taus = body.Where(body.Equal(positions, k), body.Squeeze(tau, [-1]), taus)
        return body.Where(body.Equal(columns, k), stored, rest), taus

    packed, taus = loop(op, count, [matrix, zeros(op, (*dims[:-2], count), dtype)], step)
    return packed, taus


def householder_product(
    op: Op, packed: ir.Value, taus: ir.Value, matrix: ir.Value, *, transpose: bool = False
) -> ir.Value:
    """Multiply Q = H_0 H_1 ... or its transpose by a matrix [*, m, p]"""
    rows, _ = rows_and_columns(op, packed)
    count = op.dims(taus)[-1]
    last = None if transpose else op.Sub(op.size(count), op.const([1]))

    def step(body: Op, i: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        k = i if last is None else body.Sub(last, i)
        tau = body.Unsqueeze(body.Gather(taus, k, axis=-1), [-1])
        return [_reflected(body, states[0], _reflector(body, packed, rows, k), tau)]

    return loop(op, count, [matrix], step)[0]


def unit_matrix(op: Op, batch: Sequence[Dim], rows: Dim, columns: Dim, dtype: ir.DataType) -> ir.Value:
    """Return [*batch, rows, columns] with ones on the diagonal."""
    equal = op.Equal(op.Unsqueeze(arange(op, rows), [1]), op.Unsqueeze(arange(op, columns), [0]))
    return op.expand(op.cast(equal, dtype), (*batch, rows, columns))


@translates("aten::geqrf")
def geqrf(op: Op, self: ir.Value) -> tuple[ir.Value, ir.Value]:
    """aten::geqrf(Tensor self) -> (Tensor a, Tensor tau)"""
    return householder(op, self)


@translates("aten::linalg_householder_product")
def linalg_householder_product(op: Op, input: ir.Value, tau: ir.Value) -> ir.Value:
    """aten::linalg_householder_product(Tensor input, Tensor tau) -> Tensor"""
    *batch, rows, columns = op.dims(input)
    return householder_product(op, input, tau, unit_matrix(op, batch, rows, columns, op.dtype_of(input)))


@translates("aten::ormqr")
def ormqr(
    op: Op, self: ir.Value, input2: ir.Value, input3: ir.Value, left: bool = True, transpose: bool = False
) -> ir.Value:
    """aten::ormqr(Tensor self, Tensor input2, Tensor input3, bool left=True, bool transpose=False) -> Tensor"""
    if left:
        return householder_product(op, self, input2, input3, transpose=transpose)
    product = householder_product(op, self, input2, matrix_transpose(op, input3), transpose=not transpose)
    return matrix_transpose(op, product)


@translates("aten::linalg_qr")
def linalg_qr(op: Op, A: ir.Value, mode: str = "reduced") -> tuple[ir.Value, ir.Value]:
    """aten::linalg_qr(Tensor A, str mode="reduced") -> (Tensor Q, Tensor R)"""
    *batch, rows, columns = op.dims(A)
    packed, taus = householder(op, A)
    count = smaller(rows, columns)
    upper = packed
    if mode != "complete" and count != rows:
        upper = op.shaped(op.Slice(packed, [0], op.size(count), [-2]), (*batch, count, columns))
    upper = op.Trilu(upper, upper=1)
    if mode == "r":
        return op.const(torch.empty(0, dtype=op.result.torch_dtype)), upper
    width = rows if mode == "complete" else count
    return householder_product(op, packed, taus, unit_matrix(op, batch, rows, width, op.dtype_of(A))), upper
