"""Eigenvalues of symmetric matrices and singular values, by Jacobi rotations.

ONNX has no operators for them. A Loop rotates all pairs of one round of a round-robin tournament at once, by one
orthogonal matrix; all rounds are a sweep, and 15 sweeps are more than float64 needs to converge at any practical size.
Signs of vectors, and the basis for equal values, may differ from LAPACK's: they are not unique.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
import torch

from ..._builder import dtypes
from ..._builder.loops import arange, loop
from ..._builder.op import Op, Unsupported
from ..._builder.symbolic_dims import Dim
from ..._registry import translates
from .factorization import (
    householder,
    householder_product,
    matrix_transpose,
    rows_and_columns,
    smaller,
    unit_matrix,
)

_SWEEPS = 15


def _partners(op: Op, turn: ir.Value, size: Dim) -> ir.Value:
    """Return the partner of each index, [1, n], in one round of a round robin; with odd n one index has a bye."""
    positions = arange(op, size)
    players = op.Add(op.size(size), op.Mod(op.size(size), op.const([2])))
    one = op.const([1])
    others = op.Sub(players, one)
    partners = op.Mod(op.Sub(turn, positions), others)
    # The last index is paired with the one that would be paired with itself.
    partners = op.Where(op.Equal(partners, positions), others, partners)
    half = op.Div(players, op.const([2]))
    partners = op.Where(op.Equal(positions, others), op.Mod(op.Mul(turn, half), others), partners)
    return op.Unsqueeze(op.Where(op.Less(partners, op.size(size)), partners, positions), [0])


def _rounds(op: Op, size: Dim) -> ir.Value:
    """Return the number of rounds in all sweeps, INT64 of rank 0."""
    if isinstance(size, int):
        return op.const(_SWEEPS * (size + size % 2 - 1))
    count = op.scalar(size)
    turns = op.Sub(op.Add(count, op.Mod(count, op.const(2))), op.const(1))
    return op.Mul(turns, op.const(_SWEEPS))


def _rotation(op: Op, gram: ir.Value, partners: ir.Value, positions: ir.Value) -> ir.Value:
    """Return the orthogonal matrix that zeroes the entry of each pair of a symmetric matrix [*, n, n]."""
    dtype = op.dtype_of(gram)
    zero, one, two = (op.const(number, dtype) for number in (0, 1, 2))
    columns, rows = positions, op.Transpose(positions, perm=[1, 0])
    chosen = op.Equal(columns, op.Transpose(partners, perm=[1, 0]))
    diagonal = op.ReduceSum(op.Where(op.Equal(rows, columns), gram, zero), [-1], keepdims=1)
    exchange = op.cast(chosen, dtype)
    theirs = op.MatMul(exchange, diagonal)
    alone = op.Equal(rows, op.Transpose(partners, perm=[1, 0]))
    entry = op.ReduceSum(op.Where(chosen, gram, zero), [-1], keepdims=1)
    # Rounding makes the two entries of a pair differ. The matrix is orthogonal only if both rows use the same number:
    # between equal eigenvalues the entries are rounding errors, whose signs decide on the direction of the rotation.
    entry = op.Where(alone, zero, op.Div(op.Add(entry, op.MatMul(exchange, entry)), two))
    gap = op.Sub(theirs, diagonal)
    first = op.Less(rows, op.Transpose(partners, perm=[1, 0]))
    sign = op.Where(op.Equal(gap, zero), op.Where(first, one, op.Neg(one)), op.Sign(gap))
    double = op.Mul(two, entry)
    root = op.Sqrt(op.Add(op.Mul(gap, gap), op.Mul(double, double)))
    length = op.Add(op.Abs(gap), root)
    # The entry is zero, or its square underflows.
    tangent = op.Where(op.Equal(length, zero), zero, op.Div(op.Mul(sign, double), length))
    cosine = op.Div(one, op.Sqrt(op.Add(one, op.Mul(tangent, tangent))))
    sine = op.Mul(tangent, cosine)
    return op.Where(op.Equal(rows, columns), cosine, op.Where(chosen, sine, zero))


def _sort(op: Op, values: ir.Value, *, descending: bool) -> tuple[ir.Value, ir.Value]:
    """Sort values [*, n]; also return their indices."""
    count = op.dims(values)[-1]
    ordered, positions = op.multi("TopK", values, op.size(count), axis=-1, largest=int(descending), outputs=2)
    return ordered, positions


def _columns(op: Op, matrix: ir.Value, positions: ir.Value) -> ir.Value:
    """Permute the columns of a matrix [*, m, n] by indices [*, n]."""
    return op.GatherElements(matrix, op.expand(op.Unsqueeze(positions, [-2]), op.dims(matrix)), axis=-1)


def _first(op: Op, value: ir.Value, count: Dim, axis: int) -> ir.Value:
    """Return the first entries along an axis."""
    dims = list(op.dims(value))
    if dims[axis] == count:
        return value
    dims[axis] = count
    return op.shaped(op.Slice(value, [0], op.size(count), [axis]), dims)


def _eigen(op: Op, matrix: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return ascending eigenvalues [*, n] and eigenvectors [*, n, n] of a symmetric matrix."""
    *batch, size, _ = op.dims(matrix)
    dtype = op.dtype_of(matrix)
    identity = unit_matrix(op, batch, size, size, dtype)
    if 0 in op.dims(matrix):
        return op.expand(op.const(0, dtype), (*batch, size)), identity
    rows, columns = rows_and_columns(op, matrix)

    def step(body: Op, k: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        rotation = _rotation(body, states[0], _partners(body, k, size), columns)
        rotated = body.MatMul(body.MatMul(matrix_transpose(body, rotation), states[0]), rotation)
        return rotated, body.MatMul(states[1], rotation)

    rotated, vectors = loop(op, _rounds(op, size), [matrix, identity], step)
    kept = op.Where(op.Equal(rows, columns), rotated, op.const(0, dtype))
    values, order = _sort(op, op.ReduceSum(kept, [-1], keepdims=0), descending=False)
    return values, _columns(op, vectors, order)


def _symmetric(op: Op, matrix: ir.Value, *, upper: bool) -> ir.Value:
    """Return the symmetric matrix with the given triangle."""
    rows, columns = rows_and_columns(op, matrix)
    own = op.LessOrEqual(rows, columns) if upper else op.GreaterOrEqual(rows, columns)
    return op.Where(own, matrix, matrix_transpose(op, matrix))


@translates("aten::_linalg_eigh")
def _linalg_eigh(op: Op, A: ir.Value, UPLO: str = "L", compute_v: bool = True) -> tuple[ir.Value, ir.Value]:
    """aten::_linalg_eigh(Tensor A, str UPLO="L", bool compute_v=True) -> (Tensor eigenvalues, Tensor eigenvectors)"""
    values, vectors = _eigen(op, _symmetric(op, A, upper=UPLO.upper() == "U"))
    return values, vectors if compute_v else op.const(torch.empty(0, dtype=op.results[1].torch_dtype))


@translates("aten::linalg_matrix_sqrth")
def linalg_matrix_sqrth(op: Op, self: ir.Value) -> ir.Value:
    """aten::linalg_matrix_sqrth(Tensor self) -> Tensor"""
    values, vectors = _eigen(op, _symmetric(op, self, upper=False))
    # torch clamps eigenvalues that rounding made negative.
    roots = op.Sqrt(op.Max(values, op.const(0, op.dtype_of(values))))
    return op.MatMul(op.Mul(vectors, op.Unsqueeze(roots, [-2])), matrix_transpose(op, vectors))


def _singular(op: Op, matrix: ir.Value, *, full: bool, vectors: bool) -> tuple[ir.Value, ...]:
    """Return descending singular values S [*, min(m, n)] of a matrix [*, m, n], and U and V if ``vectors``."""
    *batch, rows, size = op.dims(matrix)
    count, dtype = smaller(rows, size), op.dtype_of(matrix)
    right = unit_matrix(op, batch, size, size, dtype)
    if 0 in op.dims(matrix):
        left = unit_matrix(op, batch, rows, rows, dtype)
        values = op.expand(op.const(0, dtype), (*batch, count))
        return values, left if full else _first(op, left, count, -1), right if full else _first(op, right, count, -1)
    _, positions = rows_and_columns(op, matrix)

    def step(body: Op, k: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        gram = body.MatMul(matrix_transpose(body, states[0]), states[0])
        rotation = _rotation(body, gram, _partners(body, k, size), positions)
        return [body.MatMul(state, rotation) for state in states]

    rotated, *turned = loop(op, _rounds(op, size), [matrix, right] if vectors else [matrix], step)
    lengths = op.Sqrt(op.ReduceSum(op.Mul(rotated, rotated), [-2], keepdims=0))
    values, order = _sort(op, lengths, descending=True)
    values = _first(op, values, count, -1)
    if not vectors:
        return (values,)
    # The columns are orthogonal already: QR completes them, some of which may be zero, to a basis.
    packed, taus = householder(op, _columns(op, rotated, order))
    width = rows if full else count
    left = householder_product(op, packed, taus, unit_matrix(op, batch, rows, width, dtype))
    row, column = rows_and_columns(op, packed)
    negative = op.And(op.Equal(row, column), op.Less(packed, op.const(0, dtype)))
    turns = op.ReduceSum(op.Where(negative, op.const(-2, dtype), op.const(0, dtype)), [-2], keepdims=1)
    signs = _first(op, op.Add(turns, op.const(1, dtype)), count, -1)
    if width != count:
        signs = op.Concat(signs, op.expand(op.const(1, dtype), (*batch, 1, width - count)), axis=-1)
    right = _columns(op, turned[0], order)
    return values, op.Mul(left, signs), right if full else _first(op, right, count, -1)


def _is_wide(op: Op, matrix: ir.Value) -> bool:
    rows, columns = op.dims(matrix)[-2:]
    return isinstance(rows, int) and isinstance(columns, int) and rows < columns


@translates("aten::_linalg_svd")
def _linalg_svd(
    op: Op, A: ir.Value, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """aten::_linalg_svd(Tensor A, bool full_matrices=False, bool compute_uv=True, *, str? driver=None) -> (Tensor U, Tensor S, Tensor Vh)"""
    # Fewer columns take fewer rotations.
    wide = _is_wide(op, A)
    values, *vectors = _singular(op, matrix_transpose(op, A) if wide else A, full=full_matrices, vectors=compute_uv)
    if not compute_uv:
        empty = op.const(torch.empty(0, dtype=op.result.torch_dtype))
        return empty, values, empty
    left, right = reversed(vectors) if wide else vectors
    return left, values, matrix_transpose(op, right)


@translates("aten::linalg_polar")
def linalg_polar(op: Op, A: ir.Value) -> tuple[ir.Value, ir.Value]:
    """aten::linalg_polar(Tensor A) -> (Tensor U, Tensor H)"""
    # torch requires at least as many rows as columns.
    values, left, right = _singular(op, A, full=False, vectors=True)
    adjoint = matrix_transpose(op, right)
    return op.MatMul(left, adjoint), op.MatMul(op.Mul(right, op.Unsqueeze(values, [-2])), adjoint)


@translates("aten::linalg_pinv.atol_rtol_tensor")
def linalg_pinv(
    op: Op,
    self: ir.Value,
    *,
    atol: ir.Value | None = None,
    rtol: ir.Value | None = None,
    hermitian: bool = False,
) -> ir.Value:
    """aten::linalg_pinv.atol_rtol_tensor(Tensor self, *, Tensor? atol=None, Tensor? rtol=None, bool hermitian=False) -> Tensor"""
    dtype = op.dtype_of(self)
    *batch, rows, columns = op.dims(self)
    if 0 in op.dims(self):
        return op.expand(op.const(0, dtype), (*batch, columns, rows))
    zero, one = op.const(0, dtype), op.const(1, dtype)
    if _is_wide(op, self):
        turned = linalg_pinv(op, matrix_transpose(op, self), atol=atol, rtol=rtol, hermitian=hermitian)
        return matrix_transpose(op, turned)
    if hermitian:
        values, left = _eigen(op, _symmetric(op, self, upper=False))
        right, sizes = left, op.Abs(values)
    else:
        values, left, right = _singular(op, self, full=False, vectors=True)
        sizes = values
    absolute = zero if atol is None else op.Unsqueeze(op.cast(atol, dtype), [-1])
    if rtol is None:
        longest = op.cast(op.Max(op.size(rows), op.size(columns)), dtype)
        relative = op.Mul(longest, op.const(torch.finfo(dtypes.to_torch_dtype(dtype)).eps, dtype))
        # In torch the relative tolerance is 0 if only an absolute one is given.
        relative = relative if atol is None else op.Where(op.Greater(absolute, zero), zero, relative)
    else:
        relative = op.Unsqueeze(op.cast(rtol, dtype), [-1])
    cutoff = op.Max(absolute, op.Mul(relative, op.ReduceMax(sizes, [-1], keepdims=1)))
    kept = op.Greater(sizes, cutoff)
    inverse = op.Where(kept, op.Div(one, op.Where(kept, values, one)), zero)
    return op.MatMul(op.Mul(right, op.Unsqueeze(inverse, [-2])), matrix_transpose(op, left))


@translates("aten::linalg_lstsq")
def linalg_lstsq(
    op: Op, self: ir.Value, b: ir.Value, rcond: float | None = None, *, driver: str | None = None
) -> list[ir.Value | None]:
    """aten::linalg_lstsq(Tensor self, Tensor b, float? rcond=None, *, str? driver=None) -> (Tensor solution, Tensor residuals, Tensor rank, Tensor singular_values)

    The solution of least norm, by the singular values, whichever the driver.
    """
    dtype = op.dtype_of(self)
    *batch, rows, columns = op.dims(self)
    if 0 in op.dims(self) or not isinstance(rows, int) or not isinstance(columns, int):
        raise Unsupported("least squares of a matrix of symbolic size, or without elements")
    is_vector = op.dims(b) == (*batch, rows)
    if not is_vector and op.dims(b)[:-1] != (*batch, rows):
        raise Unsupported("least squares of a broadcast batch")
    right = op.Unsqueeze(b, [-1]) if is_vector else b
    wide = _is_wide(op, self)
    values, *vectors = _singular(op, matrix_transpose(op, self) if wide else self, full=False, vectors=True)
    left, turned = reversed(vectors) if wide else vectors
    zero, one = op.const(0, dtype), op.const(1, dtype)
    relative = max(rows, columns) * torch.finfo(dtypes.to_torch_dtype(dtype)).eps if rcond is None else float(rcond)
    kept = op.Greater(values, op.Mul(op.ReduceMax(values, [-1], keepdims=1), op.const(relative, dtype)))
    inverse = op.Unsqueeze(op.Where(kept, op.Div(one, op.Where(kept, values, one)), zero), [-1])
    solution = op.MatMul(turned, op.Mul(inverse, op.MatMul(matrix_transpose(op, left), right)))
    ranks = op.ReduceSum(op.cast(kept, ir.DataType.INT64), [-1], keepdims=0)
    residuals = None
    if rows > columns and driver in ("gels", "gelsd", "gelss"):
        difference = op.Sub(right, op.MatMul(self, solution))
        residuals = op.ReduceSumSquare(difference, [-2], keepdims=0)
        if driver != "gels":
            # torch returns none unless all ranks are full.
            is_full = op.Equal(op.ReduceMin(ranks, keepdims=0), op.const(columns))
            residuals = op.Where(is_full, residuals, op.const(math.nan, dtype))
    empty = [op.const(torch.empty(0, dtype=result.torch_dtype)) for result in op.results]
    return [
        op.Squeeze(solution, [-1]) if is_vector else solution,
        empty[1] if residuals is None else residuals,
        empty[2] if driver == "gels" else ranks,
        values if driver in ("gelsd", "gelss") else empty[3],
    ]
