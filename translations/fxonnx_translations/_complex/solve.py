"""Linear systems and functions of complex matrices, computed with real matrices of twice the size.

A + iB is represented by the real matrix ``[[A, -B], [B, A]]``: products, sums, inverses and power series agree, and the
conjugate transpose is the transpose. Its first block column ``[A; B]`` determines the matrix.
"""

from __future__ import annotations

import onnx_ir as ir
import torch

from .._aten.indexing.axes import split_at
from .._aten.linalg.factorization import LU, lu_factors, matrix_transpose, rows_and_columns, unit_matrix
from .._aten.linalg.solve import linalg_matrix_exp as real_matrix_exp
from .._aten.linalg.solve import solved_by_lu
from .._aten.linalg.spectral import linalg_matrix_sqrth as real_matrix_sqrth
from .._builder.op import Op
from .._builder.symbolic_dims import Dim
from .._registry import translates
from .parts import Pair, join, pair_of, part_dtype

aten = torch.ops.aten


def _matrix(op: Op, parts: Pair) -> ir.Value:
    """[*, 2n, 2m]"""
    real, imaginary = parts
    upper = op.Concat(real, op.Neg(imaginary), axis=-1)
    return op.Concat(upper, op.Concat(imaginary, real, axis=-1), axis=-2)


def _column(op: Op, parts: Pair) -> ir.Value:
    """[*, 2n, m]"""
    return op.Concat(*parts, axis=-2)


def _parts(op: Op, column: ir.Value, size: Dim) -> Pair:
    """Return the parts of a block column [*, 2n, m]."""
    real, imaginary = split_at(op, column, op.rank_of(column) - 2, [size, size])
    return real, imaginary


def _pair(op: Op, value: ir.Value) -> Pair:
    """Return both parts in full shape: the imaginary part of a real operand is zeros."""
    real, imaginary = pair_of(op, value, part_dtype(op))
    return real, op.expand(imaginary, op.dims(real))


def _transposed(op: Op, parts: Pair) -> Pair:
    real, imaginary = parts
    return matrix_transpose(op, real), matrix_transpose(op, imaginary)


def solved(op: Op, matrix: Pair, right: Pair, *, left: bool = True) -> tuple[Pair, LU]:
    """Solve matrix X = right, or X matrix = right; also return the LU factors of the real matrix."""
    if not left:
        turned, lu = solved(op, _transposed(op, matrix), _transposed(op, right))
        return _transposed(op, turned), lu
    lu = lu_factors(op, _matrix(op, matrix))
    column = solved_by_lu(op, lu.factors, lu.order, _column(op, right))
    return _parts(op, column, op.dims(matrix[0])[-1]), lu


def _info(op: Op, lu: LU, matrix: Pair) -> ir.Value:
    """Return LAPACK's info for the complex matrix: the 1-based row of the zero pivot, or 0."""
    size = op.scalar(op.dims(matrix[0])[-1])
    return op.cast(op.Min(op.cast(lu.info, ir.DataType.INT64), size), op.dtype_of(lu.info))


@translates("aten::linalg_inv_ex", complex=True)
def linalg_inv_ex(op: Op, A: ir.Value, *, check_errors: bool = False) -> tuple[ir.Value, ir.Value]:
    """aten::linalg_inv_ex(Tensor A, *, bool check_errors=False) -> (Tensor inverse, Tensor info)"""
    matrix = _pair(op, A)
    *batch, size, _ = op.dims(matrix[0])
    one = unit_matrix(op, batch, size, size, op.dtype_of(matrix[0]))
    inverse, lu = solved(op, matrix, (one, op.Sub(one, one)))
    return join(op, *inverse), _info(op, lu, matrix)


@translates("aten::_linalg_solve_ex", complex=True)
def linalg_solve_ex(
    op: Op, A: ir.Value, B: ir.Value, *, left: bool = True, check_errors: bool = False
) -> list[ir.Value | None]:
    """aten::_linalg_solve_ex(Tensor A, Tensor B, *, bool left=True, bool check_errors=False) -> (Tensor result, Tensor LU, Tensor pivots, Tensor info)"""
    matrix, right = _pair(op, A), _pair(op, B)
    dims, wanted = op.dims(matrix[0]), op.dims(right[0])
    # torch treats B as a batch of vectors if it has the shape of A without the last axis.
    is_vector = len(wanted) == 1 or wanted == dims[:-1]
    if is_vector:
        right = (op.Unsqueeze(right[0], [-1]), op.Unsqueeze(right[1], [-1]))
    (real, imaginary), lu = solved(op, matrix, right, left=left or is_vector)
    if is_vector:
        real, imaginary = op.Squeeze(real, [-1]), op.Squeeze(imaginary, [-1])
    # The real matrix of twice the size has the same factors.
    return [join(op, real, imaginary), None, None, _info(op, lu, matrix)]


def _triangle(op: Op, parts: Pair, *, upper: bool, unit: bool) -> Pair:
    """Return the triangle that torch uses of a triangular matrix."""
    real, imaginary = (op.Trilu(part, upper=int(upper)) for part in parts)
    if unit:
        rows, columns = rows_and_columns(op, real)
        diagonal = op.Equal(rows, columns)
        dtype = op.dtype_of(real)
        real = op.Where(diagonal, op.const(1.0, dtype), real)
        imaginary = op.Where(diagonal, op.const(0.0, dtype), imaginary)
    return real, imaginary


@translates("aten::linalg_solve_triangular", complex=True)
def linalg_solve_triangular(
    op: Op, self: ir.Value, B: ir.Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> ir.Value:
    """aten::linalg_solve_triangular(Tensor self, Tensor B, *, bool upper, bool left=True, bool unitriangular=False) -> Tensor"""
    factor = _triangle(op, _pair(op, self), upper=upper, unit=unitriangular)
    return join(op, *solved(op, factor, _pair(op, B), left=left)[0])


@translates("aten::triangular_solve", complex=True)
def triangular_solve(
    op: Op, self: ir.Value, A: ir.Value, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[ir.Value, ir.Value]:
    """aten::triangular_solve(Tensor self, Tensor A, bool upper=True, bool transpose=False, bool unitriangular=False) -> (Tensor solution, Tensor cloned_coefficient)"""
    factor = _triangle(op, _pair(op, A), upper=upper, unit=unitriangular)
    solution, _ = solved(op, _transposed(op, factor) if transpose else factor, _pair(op, self))
    real, imaginary = (op.expand(part, op.results[1].shape) for part in _pair(op, A))
    return join(op, *solution), op.join(real, imaginary)


@translates("aten::cholesky_solve", complex=True)
def cholesky_solve(op: Op, self: ir.Value, input2: ir.Value, upper: bool = False) -> ir.Value:
    """aten::cholesky_solve(Tensor self, Tensor input2, bool upper=False) -> Tensor"""
    return join(op, *_by_cholesky(op, _pair(op, self), input2, upper))


@translates("aten::cholesky_inverse", complex=True)
def cholesky_inverse(op: Op, self: ir.Value, upper: bool = False) -> ir.Value:
    """aten::cholesky_inverse(Tensor self, bool upper=False) -> Tensor"""
    *batch, size, _ = op.dims(op.parts(self)[0])
    one = unit_matrix(op, batch, size, size, part_dtype(op))
    return join(op, *_by_cholesky(op, (one, op.Sub(one, one)), self, upper))


def _by_cholesky(op: Op, right: Pair, factor: ir.Value, upper: bool) -> Pair:
    lower = _matrix(op, _triangle(op, _pair(op, factor), upper=upper, unit=False))
    if upper:
        lower = matrix_transpose(op, lower)
    lu = lu_factors(op, op.MatMul(lower, matrix_transpose(op, lower)))
    return _parts(op, solved_by_lu(op, lu.factors, lu.order, _column(op, right)), op.dims(right[0])[-2])


@translates("aten::linalg_matrix_exp", complex=True)
def linalg_matrix_exp(op: Op, self: ir.Value) -> ir.Value:
    """aten::linalg_matrix_exp(Tensor self) -> Tensor"""
    parts = op.parts(self)
    size, power = op.dims(parts[0])[-1], real_matrix_exp(op, _matrix(op, parts))
    first, _ = split_at(op, power, op.rank_of(power) - 1, [size, size])
    return join(op, *_parts(op, first, size))


@translates("aten::linalg_matrix_sqrth", complex=True)
def linalg_matrix_sqrth(op: Op, self: ir.Value) -> ir.Value:
    """aten::linalg_matrix_sqrth(Tensor self) -> Tensor"""
    real, imaginary = op.parts(self)
    # torch uses the lower triangle and the real part of the diagonal; the real translation takes care of the real part.
    lower = op.Trilu(imaginary, op.const(-1), upper=0)
    imaginary = op.Sub(lower, matrix_transpose(op, lower))
    size, root = op.dims(real)[-1], real_matrix_sqrth(op, _matrix(op, (real, imaginary)))
    first, _ = split_at(op, root, op.rank_of(root) - 1, [size, size])
    return join(op, *_parts(op, first, size))
