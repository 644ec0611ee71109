"""Pairwise distances."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import onnx_ir as ir
import torch

from ..._builder.op import Op, Unsupported
from ..._registry import translates
from ..view import swapped


def _norm(op: Op, differences: ir.Value, p: float) -> ir.Value:
    """Return the p-norm over the last axis."""
    dtype = op.dtype_of(differences)
    if p == 0:
        nonzero = op.cast(op.Not(op.Equal(differences, op.const(0.0, dtype))), dtype)
        return op.ReduceSum(nonzero, [-1], keepdims=0)
    if p in (1, 2):
        return op.ReduceL1(differences, [-1], keepdims=0) if p == 1 else op.ReduceL2(differences, [-1], keepdims=0)
    sizes = op.Abs(differences)
    if math.isinf(p):
        return op.ReduceMax(sizes, [-1], keepdims=0)
    powers = op.ReduceSum(op.Pow(sizes, op.const(p, dtype)), [-1], keepdims=0)
    return op.Pow(powers, op.const(1 / p, dtype))


_MOST_EXACT_ROWS = 25
"""The rows up to which torch subtracts them: squares of distances between more rows are computed by a product."""


@translates("aten::_cdist_forward", "aten::cdist")
def cdist(op: Op, x1: ir.Value, x2: ir.Value, p: float = 2.0, compute_mode: int | None = None) -> ir.Value:
    """aten::_cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor
    aten::cdist(Tensor x1, Tensor x2, float p=2., int? compute_mode=None) -> Tensor
    """
    dims, dtype = op.result.shape, op.result.dtype
    if 0 in dims or op.dims(x1)[-1] == 0:
        return op.expand(op.const(0.0, dtype), dims)
    rows = [op.dims(x1)[-2], op.dims(x2)[-2]]
    static = [size for size in rows if isinstance(size, int)]
    if p != 2 or compute_mode == 2 or (compute_mode != 1 and len(static) == 2 and max(static) <= _MOST_EXACT_ROWS):
        return _distances(op, x1, x2, p)
    if compute_mode == 1 or (static and max(static) > _MOST_EXACT_ROWS):
        return _distances_by_product(op, x1, x2)
    branches: dict[str, Any] = {}
    for name, distances in (("then", _distances_by_product), ("else", partial(_distances, p=p))):
        body = op.body(name, [])
        branches[f"{name}_branch"] = body.finish([(distances(body, x1, x2), dims)])
    largest = op.Max(*(op.scalar(size) for size in rows))
    (found,) = op.multi("If", op.Greater(largest, op.const(_MOST_EXACT_ROWS)), outputs=1, **branches)
    found.type = ir.TensorType(dtype)
    return op.shaped(found, dims)


def _distances(op: Op, x1: ir.Value, x2: ir.Value, p: float) -> ir.Value:
    """Distances of all pairs of rows, by the norms of their differences."""
    return _norm(op, op.Sub(op.Unsqueeze(x1, [-2]), op.Unsqueeze(x2, [-3])), p)


def _distances_by_product(op: Op, x1: ir.Value, x2: ir.Value) -> ir.Value:
    """Euclidean distances of all pairs of rows by one product, without a tensor of all differences."""
    dtype = op.dtype_of(x1)
    squares = [op.ReduceSumSquare(value, [-1], keepdims=1) for value in (x1, x2)]
    ones = [op.expand(op.const(1.0, dtype), (*op.dims(value)[:-1], 1)) for value in (x1, x2)]
    left = op.Concat(op.Mul(x1, op.const(-2.0, dtype)), squares[0], ones[0], axis=-1)
    right = op.Concat(x2, ones[1], squares[1], axis=-1)
    product = op.MatMul(left, swapped(op, right, -1, -2))
    return op.Sqrt(op.Max(product, op.const(0.0, dtype)))


@translates("aten::_pdist_forward", "aten::pdist")
def pdist(op: Op, self: ir.Value, p: float = 2.0) -> ir.Value:
    """aten::_pdist_forward(Tensor self, float p=2.) -> Tensor
    aten::pdist(Tensor self, float p=2.) -> Tensor
    """
    rows, columns = op.dims(self)
    if not isinstance(rows, int):
        raise Unsupported(f"the pairs of a symbolic number of rows, {rows}")
    if rows < 2 or columns == 0:
        return op.expand(op.const(0.0, op.result.dtype), op.result.shape)
    first, second = torch.triu_indices(rows, rows, 1)
    pairs = (op.Gather(self, op.const(position), axis=0) for position in (first, second))
    return _norm(op, op.Sub(*pairs), p)
