"""Reductions of complex tensors that do not reduce to one reduction per part, and positions of nonzero elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from .._aten import reduction as real_reduction
from .._aten.indexing import gather
from .._builder.op import Op
from .._registry import translates
from .arithmetic import multiply
from .functions import exp_of, log1p_of, log_of
from .parts import Pair, choose, pair_of, part_dtype
from .polar import angle_of, magnitude_of


def _product_of_polar(op: Op, value: Pair, axis: int) -> Pair:
    """Return a product in polar form: the product of the magnitudes, at the sum of the angles."""
    dtype = op.dtype_of(value[0])
    wide = op.cast(value[0], ir.DataType.DOUBLE), op.cast(value[1], ir.DataType.DOUBLE)
    angle = op.ReduceSum(angle_of(op, wide), [axis], keepdims=1)
    size = op.ReduceProd(magnitude_of(op, value), [axis], keepdims=1)
    return op.Mul(size, op.cast(op.Cos(angle), dtype)), op.Mul(size, op.cast(op.Sin(angle), dtype))


def _product(op: Op, value: Pair, axis: int) -> Pair:
    """Return the product along an axis, which is kept with size 1, by halving it repeatedly."""
    shape = op.dims(value[0])
    length = shape[axis]
    if not isinstance(length, int):
        return _product_of_polar(op, value, axis)
    if length == 0:
        ones = [*shape[:axis], 1, *shape[axis + 1 :]]
        dtype = op.dtype_of(value[0])
        return op.expand(op.const(1.0, dtype), ones), op.expand(op.const(0.0, dtype), ones)
    while length > 1:
        half = length // 2
        first, second, rest = (
            (op.Slice(value[0], [begin], [end], [axis]), op.Slice(value[1], [begin], [end], [axis]))
            for begin, end in ((0, half), (half, 2 * half), (2 * half, length))
        )
        value = multiply(op, first, second)
        if length % 2:
            value = op.Concat(value[0], rest[0], axis=axis), op.Concat(value[1], rest[1], axis=axis)
        length -= half
    return value


@translates("aten::prod", complex=True)
def prod(op: Op, self: ir.Value, dtype: Any = None) -> ir.Value:
    """aten::prod(Tensor self, *, ScalarType? dtype=None) -> Tensor"""
    real, imaginary = pair_of(op, self, part_dtype(op))
    if not op.dims(real):
        return op.join(real, imaginary)
    flat = op.Reshape(real, [-1]), op.Reshape(imaginary, [-1])
    made = _product(op, flat, 0)
    return op.join(op.Squeeze(made[0], [0]), op.Squeeze(made[1], [0]))


@translates("aten::prod.dim_int", complex=True)
def prod_dim(op: Op, self: ir.Value, dim: int, keepdim: bool = False, dtype: Any = None) -> ir.Value:
    """aten::prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""
    pair = pair_of(op, self, part_dtype(op))
    rank = op.rank_of(pair[0])
    if rank == 0:
        return op.join(*pair)
    axis = op.axis(dim, rank)
    real, imaginary = _product(op, pair, axis)
    return op.join(real, imaginary) if keepdim else op.join(op.Squeeze(real, [axis]), op.Squeeze(imaginary, [axis]))


def _log_of_sum_of_exponentials(op: Op, x: Pair, y: Pair) -> Pair:
    """Return log(e^x + e^y), as the larger operand plus the principal logarithm of 1 + e^(smaller - larger)."""
    is_less = op.Less(x[0], y[0])
    (a, b), (c, d) = choose(op, is_less, x, y), choose(op, is_less, y, x)
    added = log1p_of(op, exp_of(op, (op.Sub(a, c), op.Sub(b, d))))
    # The difference of infinities is not a number.
    zero = op.const(0.0, op.dtype_of(a))
    below, above = (op.And(op.Equal(a, c), op.And(op.IsInf(a), sign)) for sign in (op.Less(a, zero), op.Less(zero, a)))
    (e, f), (g, h) = exp_of(op, (a, b)), exp_of(op, (c, d))
    infinite = log_of(op, (op.Add(e, g), op.Add(f, h)))
    total = choose(op, above, infinite, (op.Add(c, added[0]), op.Add(d, added[1])))
    return choose(op, below, (a, b), total)


@translates("aten::logcumsumexp", complex=True)
def logcumsumexp(op: Op, self: ir.Value, dim: int) -> ir.Value:
    """aten::logcumsumexp(Tensor self, int dim) -> Tensor"""
    value = op.parts(self)
    shape = op.dims(value[0])
    if not shape or 0 in shape:
        return self

    def step(body: Op, states: Sequence[ir.Value], items: Sequence[ir.Value]) -> Sequence[ir.Value]:
        return _log_of_sum_of_exponentials(body, (items[0], items[1]), (states[0], states[1]))

    def sums(op: Op, values: Sequence[ir.Value], axis: int) -> Sequence[ir.Value]:
        first = op.dims(op.Gather(values[0], op.const(0), axis=axis))
        start = [op.expand(op.const(number, op.dtype_of(values[0])), first) for number in (-math.inf, 0.0)]
        return real_reduction.scan(op, values, [axis, axis], start, axis, step)

    real, imaginary = real_reduction.over_items(op, value, op.axis(dim, len(shape)), sums)
    return op.join(real, imaginary)


@translates("aten::var.correction", "aten::var", "aten::var.dim", complex=True)
def var(
    op: Op, self: ir.Value, dim: Any = None, unbiased: bool = True, keepdim: bool = False, correction: Any = None
) -> ir.Value:
    """aten::var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor
    aten::var(Tensor self, bool unbiased=True) -> Tensor
    aten::var.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor
    """
    real, imaginary = (
        real_reduction.deviation(op, part, dim, unbiased, keepdim, correction, root=False) for part in op.parts(self)
    )
    return op.Add(real, imaginary)


@translates("aten::std.correction", "aten::std", "aten::std.dim", complex=True)
def std(
    op: Op, self: ir.Value, dim: Any = None, unbiased: bool = True, keepdim: bool = False, correction: Any = None
) -> ir.Value:
    """aten::std.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor
    aten::std(Tensor self, bool unbiased=True) -> Tensor
    aten::std.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor
    """
    return op.Sqrt(var(op, self, dim, unbiased, keepdim, correction))


def _is_not_zero(op: Op, value: ir.Value) -> ir.Value:
    real, imaginary = op.parts(value)
    return op.Or(op.cast(real, ir.DataType.BOOL), op.cast(imaginary, ir.DataType.BOOL))


@translates("aten::nonzero", "aten::argwhere", complex=True)
def nonzero(op: Op, self: ir.Value) -> ir.Value:
    """aten::nonzero(Tensor self) -> Tensor
    aten::argwhere(Tensor self) -> Tensor
    """
    return gather.nonzero(op, _is_not_zero(op, self))


@translates("aten::nonzero_static", complex=True)
def nonzero_static(op: Op, self: ir.Value, *, size: int, fill_value: int = -1) -> ir.Value:
    """aten::nonzero_static(Tensor self, *, SymInt size, int fill_value=-1) -> Tensor"""
    return gather.nonzero_static(op, _is_not_zero(op, self), size=size, fill_value=fill_value)


@translates("aten::nonzero_numpy", complex=True)
def nonzero_numpy(op: Op, self: ir.Value) -> list[ir.Value]:
    """aten::nonzero_numpy(Tensor self) -> Tensor[]"""
    return gather.nonzero_numpy(op, _is_not_zero(op, self))
