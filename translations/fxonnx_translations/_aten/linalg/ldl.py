"""The factorization L D L^T of symmetric matrices with diagonal pivoting (Bunch-Kaufman), and its solver.

D has blocks of one and two columns. A Loop goes over the columns; the second column of a block is done in the iteration of
the first one, which may be another iteration for each matrix of a batch. Order of operations and pivots are LAPACK's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..._builder.dtypes import INT32, INT64
from ..._builder.loops import arange, loop
from ..._builder.op import Op
from ..._registry import translates
from .factorization import first_failure, matrix_transpose, rows_and_columns, zeros
from .solve import batch_of

_ALPHA = (1 + math.sqrt(17)) / 8
"""The ratio of pivot and column above which a column is a block alone."""


@dataclass(frozen=True)
class _Block:
    """The block of D at column k; all are [*, 1, 1].

    Attributes:
        k: Its column.
        other: The other column of a pair; the last column where there is none.
        is_pair: Whether it has two columns.
        is_done: Whether column k is the second one of the block before.
        pivot: The row, from 0, with which the last row of the block is exchanged.
    """

    k: ir.Value
    other: ir.Value
    is_pair: ir.Value
    is_done: ir.Value
    pivot: ir.Value


@dataclass(frozen=True)
class _Indices:
    """The rows [n, 1] and columns [1, n] of a matrix, and the last of them, [1]."""

    rows: ir.Value
    columns: ir.Value
    last: ir.Value


def _indices(op: Op, matrix: ir.Value) -> _Indices:
    last = op.Sub(op.size(op.dims(matrix)[-1]), op.const([1]))
    return _Indices(*rows_and_columns(op, matrix), last)


def _exchange(op: Op, rows: ir.Value, block: _Block) -> ir.Value:
    """Return the row permutation [*, n, 1] of a block."""
    last = op.Where(block.is_pair, block.other, block.k)
    exchanged = op.Where(op.Equal(rows, last), block.pivot, rows)
    return op.Where(op.Equal(rows, block.pivot), last, exchanged)


def _entry(op: Op, column: ir.Value, k: ir.Value) -> ir.Value:
    return op.Gather(column, k, axis=-2)


def _block(op: Op, rest: ir.Value, indices: _Indices, k: ir.Value, is_done: ir.Value) -> tuple[_Block, ir.Value]:
    """Return the block at column k of a symmetric matrix of which columns from k on remain, and whether it is 0."""
    rows, columns = indices.rows, indices.columns
    zero, alpha = op.const(0, op.dtype_of(rest)), op.const(_ALPHA, op.dtype_of(rest))
    size = op.Abs(op.Gather(rest, k, axis=-1))
    own = _entry(op, size, k)
    below = op.Where(op.Greater(rows, k), size, zero)
    largest, place = op.ReduceMax(below, [-2], keepdims=1), op.ArgMax(below, axis=-2, keepdims=1)
    row = op.Abs(op.ReduceSum(op.Where(op.Equal(rows, place), rest, zero), [-2], keepdims=1))
    is_other = op.And(op.GreaterOrEqual(columns, k), op.Not(op.Equal(columns, place)))
    largest_of_row = op.ReduceMax(op.Where(is_other, row, zero), [-1], keepdims=1)
    diagonal = op.ReduceSum(op.Where(op.Equal(columns, place), row, zero), [-1], keepdims=1)
    limit = op.Mul(alpha, largest)
    stays = op.Or(op.GreaterOrEqual(own, limit), op.GreaterOrEqual(own, op.Mul(limit, op.Div(largest, largest_of_row))))
    stays = op.Or(stays, is_done)
    is_pair = op.Not(op.Or(stays, op.GreaterOrEqual(diagonal, op.Mul(alpha, largest_of_row))))
    other = op.Min(op.Add(k, op.const([1])), indices.last)
    is_zero = op.And(op.Equal(op.Max(own, largest), zero), op.Not(is_done))
    return _Block(k, other, is_pair, is_done, op.Where(stays, k, place)), is_zero


def _eliminated(
    op: Op, rest: ir.Value, factors: ir.Value, indices: _Indices, block: _Block, is_zero: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Return the rest of a matrix after a block, whose rows are exchanged, and the factors with its columns."""
    rows, columns = indices.rows, indices.columns
    zero, one = op.const(0, op.dtype_of(rest)), op.const(1, op.dtype_of(rest))
    k, other = block.k, block.other
    first, second = op.Gather(rest, k, axis=-1), op.Gather(rest, other, axis=-1)
    alone = op.Where(op.Greater(rows, k), op.Where(is_zero, first, op.Div(first, _entry(op, first, k))), zero)
    corner = _entry(op, first, other)
    lower, upper = op.Div(_entry(op, second, other), corner), op.Div(_entry(op, first, k), corner)
    scale = op.Div(op.Div(one, op.Sub(op.Mul(lower, upper), one)), corner)
    below = op.Greater(rows, other)
    pair_first = op.Where(below, op.Mul(scale, op.Sub(op.Mul(lower, first), second)), zero)
    pair_second = op.Where(below, op.Mul(scale, op.Sub(op.Mul(upper, second), first)), zero)
    rank_one = op.MatMul(alone, matrix_transpose(op, first))
    rank_two = op.Add(
        op.MatMul(pair_first, matrix_transpose(op, first)), op.MatMul(pair_second, matrix_transpose(op, second))
    )
    updated = op.Sub(rest, op.Where(block.is_pair, rank_two, rank_one))
    in_block = op.Or(op.Equal(rows, k), op.And(block.is_pair, op.Equal(rows, other)))
    column = op.Where(in_block, first, op.Where(block.is_pair, pair_first, alone))
    chosen = op.And(op.Equal(columns, k), op.Not(block.is_done))
    factors = op.Where(chosen, column, factors)
    column = op.Where(op.Equal(rows, other), second, pair_second)
    factors = op.Where(op.And(op.Equal(columns, other), block.is_pair), column, factors)
    return op.Where(block.is_done, rest, updated), factors


@translates("aten::linalg_ldl_factor_ex")
def linalg_ldl_factor_ex(
    op: Op, self: ir.Value, *, hermitian: bool = False, check_errors: bool = False
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """aten::linalg_ldl_factor_ex(Tensor self, *, bool hermitian=False, bool check_errors=False) -> (Tensor LD, Tensor pivots, Tensor info)"""
    *batch, size, _ = dims = op.dims(self)
    indices = _indices(op, self)
    positions, shape = arange(op, size), op.sizes(dims)
    matrix = op.Where(op.GreaterOrEqual(indices.rows, indices.columns), self, matrix_transpose(op, self))

    def step(body: Op, k: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        rest, factors, pivots, info, is_done = states
        block, is_zero = _block(body, rest, indices, k, is_done)
        order = _exchange(body, indices.rows, block)
        rest = body.GatherElements(rest, body.Expand(order, shape), axis=-2)
        rest = body.GatherElements(rest, body.Expand(matrix_transpose(body, order), shape), axis=-1)
        rest, factors = _eliminated(body, rest, factors, indices, block, is_zero)
        number = body.Add(block.pivot, body.const([1]))
        number = body.cast(body.Where(block.is_pair, body.Neg(number), number), INT32)
        number, is_pair, was_done = (body.Squeeze(one, [-1]) for one in (number, block.is_pair, is_done))
        is_own = body.And(body.Equal(positions, k), body.Not(was_done))
        is_own = body.Or(is_own, body.And(body.Equal(positions, block.other), is_pair))
        pivots = body.Where(is_own, number, pivots)
        return rest, factors, pivots, first_failure(body, info, is_zero, k), block.is_pair

    dtype = op.dtype_of(self)
    states = [
        matrix,
        zeros(op, dims, dtype),
        zeros(op, (*batch, size), INT32),
        zeros(op, (*batch, 1, 1), INT32),
        op.expand(op.const(False), (*batch, 1, 1)),
    ]
    _, factors, pivots, info, _ = loop(op, size, states, step)
    return factors, pivots, op.Squeeze(info, [-2, -1])


def _block_of(op: Op, pivots: ir.Value, k: ir.Value, other: ir.Value, is_done: ir.Value) -> _Block:
    """Return the block at column k by the pivots [*, 1, n] of a factorization."""
    number = op.Gather(pivots, k, axis=-1)
    is_pair = op.And(op.Less(number, op.const(0)), op.Not(is_done))
    pivot = op.Where(is_done, k, op.Sub(op.Abs(number), op.const(1)))
    return _Block(k, other, is_pair, is_done, pivot)


def _forward(op: Op, factors: ir.Value, right: ir.Value, rows: ir.Value, block: _Block) -> ir.Value:
    """Eliminate the rows of a block, which are exchanged, from those below, and divide them by the block of D."""
    zero, one = op.const(0, op.dtype_of(right)), op.const(1, op.dtype_of(right))
    k, other = block.k, block.other
    first, second = op.Gather(factors, k, axis=-1), op.Gather(factors, other, axis=-1)
    top, bottom = op.Gather(right, k, axis=-2), op.Gather(right, other, axis=-2)
    last = op.Where(block.is_pair, other, k)
    below = op.Greater(rows, last)
    removed = op.MatMul(op.Where(below, first, zero), top)
    removed_second = op.MatMul(op.Where(op.And(below, block.is_pair), second, zero), bottom)
    rest = op.Sub(right, op.Add(removed, removed_second))
    corner = _entry(op, first, other)
    lower, upper = op.Div(_entry(op, second, other), corner), op.Div(_entry(op, first, k), corner)
    divisor = op.Sub(op.Mul(lower, upper), one)
    scaled_top, scaled_bottom = op.Div(top, corner), op.Div(bottom, corner)
    pair_top = op.Div(op.Sub(op.Mul(lower, scaled_top), scaled_bottom), divisor)
    pair_bottom = op.Div(op.Sub(op.Mul(upper, scaled_bottom), scaled_top), divisor)
    own = op.Where(block.is_pair, pair_top, op.Div(top, _entry(op, first, k)))
    rest = op.Where(op.Equal(rows, k), own, rest)
    rest = op.Where(op.And(op.Equal(rows, other), block.is_pair), pair_bottom, rest)
    return op.Where(block.is_done, right, rest)


def _backward(op: Op, factors: ir.Value, right: ir.Value, rows: ir.Value, block: _Block) -> ir.Value:
    """Subtract the products with the rows below a block, whose columns are ``other``, if it is a pair, and k."""
    zero = op.const(0, op.dtype_of(right))
    below = op.Greater(rows, block.k)
    for column, is_own in ((block.k, op.Not(block.is_done)), (block.other, block.is_pair)):
        values = op.Where(below, op.Gather(factors, column, axis=-1), zero)
        product = op.MatMul(matrix_transpose(op, values), right)
        right = op.Where(op.And(op.Equal(rows, column), is_own), op.Sub(right, product), right)
    return right


@translates("aten::linalg_ldl_solve")
def linalg_ldl_solve(op: Op, LD: ir.Value, pivots: ir.Value, B: ir.Value, *, hermitian: bool = False) -> ir.Value:
    """aten::linalg_ldl_solve(Tensor LD, Tensor pivots, Tensor B, *, bool hermitian=False) -> Tensor"""
    size = op.dims(LD)[-1]
    batch = batch_of(op.dims(LD)[:-2], op.dims(B)[:-2])
    factors = op.expand(LD, (*batch, size, size))
    dims = (*batch, size, op.dims(B)[-1])
    if 0 in dims:
        return op.expand(op.const(0, op.dtype_of(B)), dims)
    numbers = op.expand(op.Unsqueeze(op.cast(pivots, INT64), [-2]), (*batch, 1, size))
    indices = _indices(op, LD)
    rows, last = indices.rows, indices.last
    shape, one = op.sizes(dims), op.const([1])
    states = [op.expand(B, dims), op.expand(op.const(False), (*batch, 1, 1))]

    def down(body: Op, k: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        block = _block_of(body, numbers, k, body.Min(body.Add(k, one), last), states[1])
        order = body.Expand(_exchange(body, rows, block), shape)
        return _forward(body, factors, body.GatherElements(states[0], order, axis=-2), rows, block), block.is_pair

    def up(body: Op, i: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        k = body.Sub(last, i)
        block = _block_of(body, numbers, k, body.Max(body.Sub(k, one), body.const([0])), states[1])
        right = _backward(body, factors, states[0], rows, block)
        # The last row of a block is exchanged, which is row k here.
        exchanged = _Block(k, k, block.is_pair, block.is_done, block.pivot)
        order = body.Expand(_exchange(body, rows, exchanged), shape)
        return body.GatherElements(right, order, axis=-2), block.is_pair

    half, _ = loop(op, size, states, down)
    return loop(op, size, [half, states[1]], up)[0]
