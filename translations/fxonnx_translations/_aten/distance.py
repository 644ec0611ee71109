"""Distances between the rows of matrices, and products of three tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
import torch

from .._builder.op import Op, Operand, Unsupported
from .._registry import translates
from .matmul import sum_of_products, wide


def _norm(op: Op, differences: ir.Value, p: float) -> ir.Value:
    """The p-norm over the last axis."""
    dtype = op.dtype_of(differences)
    sizes = op.Abs(differences)
    if p == 0:
        nonzero = op.cast(op.Not(op.Equal(sizes, op.const(0.0, dtype))), dtype)
        return op.ReduceSum(nonzero, [-1], keepdims=0)
    if math.isinf(p):
        return op.ReduceMax(sizes, [-1], keepdims=0)
    if p == 1:
        return op.ReduceSum(sizes, [-1], keepdims=0)
    if p == 2:
        return op.Sqrt(op.ReduceSum(op.Mul(sizes, sizes), [-1], keepdims=0))
    powers = op.ReduceSum(op.Pow(sizes, op.const(p, dtype)), [-1], keepdims=0)
    return op.Pow(powers, op.const(1 / p, dtype))


@translates("aten::_cdist_forward", "aten::cdist")
def cdist(op: Op, x1: ir.Value, x2: ir.Value, p: float = 2.0, compute_mode: int | None = None) -> ir.Value:
    """aten::_cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor
    aten::cdist(Tensor x1, Tensor x2, float p=2., int? compute_mode=None) -> Tensor
    """
    if 0 in op.result.shape or op.dims(x1)[-1] == 0:
        return op.expand(op.const(0.0, op.result.dtype), op.result.shape)
    return _norm(op, op.Sub(op.Unsqueeze(x1, [-2]), op.Unsqueeze(x2, [-3])), p)


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
    pairs = (op.Gather(self, op.const(place), axis=0) for place in (first, second))
    return _norm(op, op.Sub(*pairs), p)


@translates("aten::_trilinear")
def _trilinear(
    op: Op,
    i1: ir.Value,
    i2: ir.Value,
    i3: ir.Value,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> ir.Value:
    """aten::_trilinear(Tensor i1, Tensor i2, Tensor i3, int[] expand1, int[] expand2, int[] expand3, int[] sumdim, int unroll_dim=1) -> Tensor"""
    factors: list[ir.Value] = []
    for value, axes in ((i1, expand1), (i2, expand2), (i3, expand3)):
        factors.extend(wide(op, op.Unsqueeze(value, sorted(axes)) if axes else value))
    product = op.Mul(op.Mul(factors[0], factors[1]), factors[2])
    total = op.ReduceSum(product, sorted(sumdim), keepdims=0) if sumdim else product
    return op.cast(total, op.result.dtype)


@translates("aten::addbmm")
def addbmm(
    op: Op, self: ir.Value, batch1: ir.Value, batch2: ir.Value, beta: Operand = 1, alpha: Operand = 1
) -> ir.Value:
    """aten::addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    product = op.MatMul(*wide(op, batch1, batch2))
    (base,) = wide(op, self)
    return sum_of_products(op, base, op.ReduceSum(product, [0], keepdims=0), beta, alpha)
