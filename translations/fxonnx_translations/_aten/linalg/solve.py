"""Linear systems: triangular, by LU and by Cholesky factors; inverse, determinant, matrix exponential."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
import torch

from ..._builder.dtypes import INT64
from ..._builder.loops import loop
from ..._builder.op import Op
from ..._builder.symbolic_dims import Dim
from ..._registry import OpCall, translates
from ..indexing.slicing import is_contiguous
from .factorization import LU, lu_factors, matrix_transpose, order_of_pivots, rows_and_columns, unit_matrix


def _broadcast(op: Op, matrix: ir.Value, batch: Sequence[Dim]) -> ir.Value:
    return op.expand(matrix, (*batch, *op.dims(matrix)[-2:]))


def batch_of(one: Sequence[Dim], other: Sequence[Dim]) -> tuple[Dim, ...]:
    """Return the broadcast shape of two batches."""
    length = max(len(one), len(other))
    padded = ((1,) * (length - len(one)) + tuple(one), (1,) * (length - len(other)) + tuple(other))
    return tuple(b if a == 1 else a for a, b in zip(*padded, strict=True))


def _solve_by_substitution(op: Op, factor: ir.Value, right: ir.Value, *, upper: bool, unit: bool) -> ir.Value:
    """Solve factor X = right by substitution, for triangular [*, n, n] and right [*, n, m] of the broadcast batch."""
    size = op.dims(factor)[-1]
    rows, _ = rows_and_columns(op, factor)
    last = op.Sub(op.size(size), op.const([1])) if upper else None

    def step(body: Op, i: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        k = i if last is None else body.Sub(last, i)
        column = body.Gather(factor, k, axis=-1)
        row = body.Gather(states[0], k, axis=-2)
        if not unit:
            row = body.Div(row, body.Gather(column, k, axis=-2))
        later = body.Less(rows, k) if upper else body.Greater(rows, k)
        rest = body.Where(later, body.Sub(states[0], body.MatMul(column, row)), states[0])
        return [body.Where(body.Equal(rows, k), row, rest)]

    return loop(op, size, [right], step)[0]


def _triangular(op: Op, factor: ir.Value, right: ir.Value, *, upper: bool, left: bool, unit: bool) -> ir.Value:
    batch = batch_of(op.dims(factor)[:-2], op.dims(right)[:-2])
    if left:
        return _solve_by_substitution(op, factor, _broadcast(op, right, batch), upper=upper, unit=unit)
    turned = matrix_transpose(op, _broadcast(op, right, batch))
    return matrix_transpose(
        op, _solve_by_substitution(op, matrix_transpose(op, factor), turned, upper=not upper, unit=unit)
    )


@translates("aten::linalg_solve_triangular")
def linalg_solve_triangular(
    op: Op, self: ir.Value, B: ir.Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> ir.Value:
    """aten::linalg_solve_triangular(Tensor self, Tensor B, *, bool upper, bool left=True, bool unitriangular=False) -> Tensor"""
    return _triangular(op, self, B, upper=upper, left=left, unit=unitriangular)


@translates("aten::triangular_solve")
def triangular_solve(
    op: Op, self: ir.Value, A: ir.Value, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[ir.Value, ir.Value]:
    """aten::triangular_solve(Tensor self, Tensor A, bool upper=True, bool transpose=False, bool unitriangular=False) -> (Tensor solution, Tensor cloned_coefficient)"""
    factor = matrix_transpose(op, A) if transpose else A
    solution = _triangular(op, factor, self, upper=upper != transpose, left=True, unit=unitriangular)
    return solution, op.expand(A, op.results[1].shape)


@translates("aten::cholesky_solve")
def cholesky_solve(op: Op, self: ir.Value, input2: ir.Value, upper: bool = False) -> ir.Value:
    """aten::cholesky_solve(Tensor self, Tensor input2, bool upper=False) -> Tensor"""
    lower, transposed = (matrix_transpose(op, input2), input2) if upper else (input2, matrix_transpose(op, input2))
    half = _triangular(op, lower, self, upper=False, left=True, unit=False)
    return _triangular(op, transposed, half, upper=True, left=True, unit=False)


@translates("aten::cholesky_inverse")
def cholesky_inverse(op: Op, self: ir.Value, upper: bool = False) -> ir.Value:
    """aten::cholesky_inverse(Tensor self, bool upper=False) -> Tensor"""
    *batch, size, _ = op.dims(self)
    return cholesky_solve(op, unit_matrix(op, batch, size, size, op.dtype_of(self)), self, upper)


# ---- by LU


def solved_by_lu(op: Op, factors: ir.Value, order: ir.Value, right: ir.Value, *, transposed: bool = False) -> ir.Value:
    """Solve A X = right, or with A transposed, by the LU factors of A and their row permutation [*, n, 1]."""
    batch = batch_of(op.dims(factors)[:-2], op.dims(right)[:-2])
    right = _broadcast(op, right, batch)
    order = _broadcast(op, order, batch)
    dims = op.dims(right)
    if 0 in dims:
        return right
    if not transposed:
        ordered = op.GatherElements(right, op.expand(order, dims), axis=-2)
        half = _solve_by_substitution(op, factors, ordered, upper=False, unit=True)
        return _solve_by_substitution(op, factors, half, upper=True, unit=False)
    turned = matrix_transpose(op, factors)
    half = _solve_by_substitution(op, turned, right, upper=False, unit=False)
    solved = _solve_by_substitution(op, turned, half, upper=True, unit=True)
    return op.ScatterElements(solved, op.expand(order, dims), solved, axis=-2)


def _solved_from(
    op: Op, factors: ir.Value, order: ir.Value, right: ir.Value, *, left: bool, transposed: bool = False
) -> ir.Value:
    if left:
        return solved_by_lu(op, factors, order, right, transposed=transposed)
    return matrix_transpose(
        op, solved_by_lu(op, factors, order, matrix_transpose(op, right), transposed=not transposed)
    )


@translates("aten::linalg_lu_solve")
def linalg_lu_solve(
    op: Op, LU: ir.Value, pivots: ir.Value, B: ir.Value, *, left: bool = True, adjoint: bool = False
) -> ir.Value:
    """aten::linalg_lu_solve(Tensor LU, Tensor pivots, Tensor B, *, bool left=True, bool adjoint=False) -> Tensor"""
    order = order_of_pivots(op, pivots, op.dims(LU)[-1])
    return _solved_from(op, LU, order, B, left=left, transposed=adjoint)


@translates("aten::_linalg_solve_ex")
def _linalg_solve_ex(
    op: Op, A: ir.Value, B: ir.Value, *, left: bool = True, check_errors: bool = False
) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
    """aten::_linalg_solve_ex(Tensor A, Tensor B, *, bool left=True, bool check_errors=False) -> (Tensor result, Tensor LU, Tensor pivots, Tensor info)"""
    lu = lu_factors(op, A)
    # torch treats B as a batch of vectors if it has the shape of A without the last axis.
    is_vector = op.rank_of(B) == 1 or (op.rank_of(B) == op.rank_of(A) - 1 and op.dims(B) == op.dims(A)[:-1])
    right = op.Unsqueeze(B, [-1]) if is_vector else B
    result = _solved_from(op, lu.factors, lu.order, right, left=left or is_vector)
    return (op.Squeeze(result, [-1]) if is_vector else result), lu.factors, lu.pivots, lu.info


@translates("aten::linalg_inv_ex")
def linalg_inv_ex(op: Op, A: ir.Value, *, check_errors: bool = False) -> tuple[ir.Value, ir.Value]:
    """aten::linalg_inv_ex(Tensor A, *, bool check_errors=False) -> (Tensor inverse, Tensor info)"""
    lu = lu_factors(op, A)
    *batch, size, _ = op.dims(A)
    return solved_by_lu(op, lu.factors, lu.order, unit_matrix(op, batch, size, size, op.dtype_of(A))), lu.info


# ---- determinants


def _diagonal(op: Op, matrix: ir.Value) -> ir.Value:
    """[*, n]"""
    rows, columns = rows_and_columns(op, matrix)
    kept = op.Where(op.Equal(rows, columns), matrix, op.const(0, op.dtype_of(matrix)))
    return op.ReduceSum(kept, [-1], keepdims=0)


def parity(op: Op, lu: LU, dtype: ir.DataType) -> ir.Value:
    """Return [*]: 1 for an even number of row exchanges, -1 for an odd one."""
    _, columns = rows_and_columns(op, lu.factors)
    own = op.Add(op.Squeeze(columns, [0]), op.const(1))
    exchanged = op.cast(op.Not(op.Equal(op.cast(lu.pivots, INT64), own)), INT64)
    odd = op.Mod(op.ReduceSum(exchanged, [-1], keepdims=0), op.const(2))
    return op.cast(op.Sub(op.const(1), op.Mul(odd, op.const(2))), dtype)


_DET_SINCE = 11
_SMALLEST_NORM = 1e-37
_LARGEST_SCALED = 6
"""The largest matrix whose determinant, after its rows and columns are scaled, cannot underflow unless it is singular."""


def _require_det(call: OpCall) -> str | None:
    """Reject the calls without Det: they are decomposed into a product of pivots."""
    (matrix,) = call.arguments.values()
    if call.opset < _DET_SINCE:
        return f"Det is of opset {_DET_SINCE}"
    return None if matrix.dtype == torch.float32 else f"ONNX Runtime has no kernel of Det for {matrix.dtype}"


@translates("aten::linalg_det", accepts=_require_det)
def linalg_det(op: Op, A: ir.Value) -> ir.Value:
    """aten::linalg_det(Tensor A) -> Tensor"""
    return op.Det(A)


@translates("aten::det", accepts=_require_det)
def det(op: Op, self: ir.Value) -> ir.Value:
    """aten::det(Tensor self) -> Tensor"""
    return op.Det(self)


def _require_small_det(call: OpCall) -> str | None:
    (matrix,) = call.arguments.values()
    size = matrix.shape[-1]
    if not isinstance(size, int) or not 0 < size <= _LARGEST_SCALED:
        return f"the determinant may overflow for more than {_LARGEST_SCALED} rows"
    return _require_det(call)


def _scaled_determinant(op: Op, matrix: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
    """Return the determinant of a small matrix with rows and columns of norm 1, and the logarithms of their norms."""
    # A row of zeros stays one.
    smallest = op.const(_SMALLEST_NORM, op.dtype_of(matrix))
    logarithms = []
    for axis in (-1, -2):
        norm = op.Max(op.ReduceL1(matrix, [axis], keepdims=1), smallest)
        matrix = op.Div(matrix, norm)
        logarithms.append(op.ReduceSum(op.Log(norm), [-2, -1], keepdims=0))
    return op.Det(matrix), logarithms


@translates("aten::logdet", accepts=_require_small_det)
def logdet(op: Op, self: ir.Value) -> ir.Value:
    """aten::logdet(Tensor self) -> Tensor"""
    determinant, logarithms = _scaled_determinant(op, self)
    return op.Sum(op.Log(determinant), *logarithms)


@translates("aten::linalg_slogdet", accepts=_require_small_det)
def linalg_slogdet(op: Op, A: ir.Value) -> tuple[ir.Value, ir.Value]:
    """aten::linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet)"""
    determinant, logarithms = _scaled_determinant(op, A)
    return op.Sign(determinant), op.Sum(op.Log(op.Abs(determinant)), *logarithms)


@translates("aten::slogdet", accepts=_require_small_det)
def slogdet(op: Op, self: ir.Value) -> tuple[ir.Value, ir.Value]:
    """aten::slogdet(Tensor self) -> (Tensor sign, Tensor logabsdet)"""
    return linalg_slogdet(op, self)


def _reject_columns(call: OpCall) -> str | None:
    """Reject matrices that are not in row-major order, of which torch returns the factors, not of the transpose."""
    return None if is_contiguous(call.arguments["A"]) else "a matrix that is not in row-major order"


@translates("aten::_linalg_det", accepts=_reject_columns)
def _linalg_det_of_rows(op: Op, A: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """aten::_linalg_det(Tensor A) -> (Tensor result, Tensor LU, Tensor pivots)"""
    return _linalg_det(op, matrix_transpose(op, A))


@translates("aten::_linalg_det")
def _linalg_det(op: Op, A: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """aten::_linalg_det(Tensor A) -> (Tensor result, Tensor LU, Tensor pivots)"""
    lu = lu_factors(op, A)
    if 0 in op.dims(A):
        return op.expand(op.const(1, op.dtype_of(A)), op.dims(A)[:-2]), lu.factors, lu.pivots
    diagonal = op.ReduceProd(_diagonal(op, lu.factors), [-1], keepdims=0)
    return op.Mul(parity(op, lu, op.dtype_of(A)), diagonal), lu.factors, lu.pivots


@translates("aten::_linalg_slogdet", accepts=_reject_columns)
def _linalg_slogdet_of_rows(op: Op, A: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
    """aten::_linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet, Tensor LU, Tensor pivots)"""
    return _linalg_slogdet(op, matrix_transpose(op, A))


@translates("aten::_linalg_slogdet")
def _linalg_slogdet(op: Op, A: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
    """aten::_linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet, Tensor LU, Tensor pivots)"""
    lu = lu_factors(op, A)
    if 0 in op.dims(A):
        one, zero = (op.expand(op.const(fill, op.dtype_of(A)), op.dims(A)[:-2]) for fill in (1, 0))
        return one, zero, lu.factors, lu.pivots
    diagonal = _diagonal(op, lu.factors)
    sign = op.Mul(parity(op, lu, op.dtype_of(A)), op.ReduceProd(op.Sign(diagonal), [-1], keepdims=0))
    logarithm = op.ReduceSum(op.Log(op.Abs(diagonal)), [-1], keepdims=0)
    return sign, logarithm, lu.factors, lu.pivots


# ---- matrix exponential

# Of the Taylor polynomial: its remainder is below float64's rounding for a norm of 1, float32's for a norm of 3.
_TERMS = 18


@translates("aten::linalg_matrix_exp")
def linalg_matrix_exp(op: Op, self: ir.Value) -> ir.Value:
    """aten::linalg_matrix_exp(Tensor self) -> Tensor

    Scaling and squaring: a matrix is divided by the power of two that makes its 1-norm small; the Taylor polynomial of
    the exponential is squared once per halving.
    """
    dtype = op.dtype_of(self)
    if dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        return op.cast(linalg_matrix_exp(op, op.cast(self, ir.DataType.FLOAT)), dtype)
    *batch, size, _ = op.dims(self)
    one = op.const(1, dtype)
    identity = unit_matrix(op, batch, size, size, dtype)
    sums = op.ReduceSum(op.Abs(self), [-2], keepdims=1)
    # An additional column of zeros: the maximum over no columns is undefined.
    norm = op.ReduceMax(op.Concat(sums, op.expand(op.const(0, dtype), (*batch, 1, 1)), axis=-1), [-1], keepdims=1)
    largest = 1.0 if dtype == ir.DataType.DOUBLE else 3.0
    excess = op.Max(op.Div(norm, op.const(largest, dtype)), one)
    doublings = op.Ceil(op.Div(op.Log(excess), op.const(math.log(2), dtype)))
    scaled = op.Div(self, op.Pow(op.const(2, dtype), doublings))

    def term(body: Op, i: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        factor = body.Div(one, body.cast(body.Sub(body.const([_TERMS]), i), dtype))
        return [body.Add(identity, body.MatMul(body.Mul(scaled, factor), states[0]))]

    def square(body: Op, i: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        wanted = body.Less(body.cast(i, dtype), doublings)
        return [body.Where(wanted, body.MatMul(states[0], states[0]), states[0])]

    polynomial = loop(op, _TERMS, [identity], term)[0]
    flat = op.Concat(op.Reshape(doublings, [-1]), op.const([0], dtype), axis=0)
    most = op.cast(op.ReduceMax(flat, [0], keepdims=0), INT64)
    return loop(op, most, [polynomial], square)[0]
