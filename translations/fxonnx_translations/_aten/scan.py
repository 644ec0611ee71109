"""Running maxima, minima, products and logarithms of sums along one dim."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir
import torch

from .._builder.loops import arange
from .._builder.numerics import in_float, log_one_plus
from .._builder.op import Op
from .._registry import translates

INT64 = ir.DataType.INT64

Step = Callable[[Op, Sequence[ir.Value], Sequence[ir.Value]], Sequence[ir.Value]]
"""``step(op, states, items)`` writes what one more item makes of the states."""


def _scanned(
    op: Op, values: Sequence[ir.Value], axes: Sequence[int], initial: Sequence[ir.Value], out_axis: int, step: Step
) -> tuple[ir.Value, ...]:
    """All states of a Scan, stacked along ``out_axis``."""
    items = []
    for value, axis in zip(values, axes, strict=True):
        dims = op.dims(value)
        items.append((op.dtype_of(value), (*dims[:axis], *dims[axis + 1 :])))
    types = [(op.dtype_of(state), op.dims(state)) for state in initial]
    body = op.body("step", [*types, *items])
    new = step(body, body.graph.inputs[: len(initial)], body.graph.inputs[len(initial) :])
    sizes = [dims for _, dims in types]
    graph = body.finish(list(zip([*new, *new], [*sizes, *sizes], strict=True)))
    made = op.multi(
        "Scan",
        *initial,
        *values,
        outputs=2 * len(initial),
        body=graph,
        num_scan_inputs=len(values),
        scan_input_axes=list(axes),
        scan_output_axes=[out_axis] * len(initial),
    )
    length = op.dims(values[0])[axes[0]]
    last, stacked = made[: len(initial)], made[len(initial) :]
    for end, value, (dtype, dims) in zip(last, stacked, types, strict=True):
        end.type = value.type = ir.TensorType(dtype)
        op.shaped(end, dims)
        op.shaped(value, (*dims[:out_axis], length, *dims[out_axis:]))
    return tuple(stacked)


def _running(op: Op, self: ir.Value, dim: int, comparison: str) -> tuple[ir.Value, ir.Value]:
    """The extreme so far and the last place where it was met; NaN is the extreme from where it appears."""
    rank = op.rank_of(self)
    if rank == 0 or 0 in op.dims(self):
        return self, op.expand(op.const(0), op.results[1].shape)
    axis = op.axis(dim, rank)
    places = arange(op, op.dims(self)[axis])
    first = op.Gather(self, op.const(0), axis=axis)

    def step(body: Op, states: Sequence[ir.Value], items: Sequence[ir.Value]) -> Sequence[ir.Value]:
        (best, at), (item, place) = states, items
        # Only GreaterOrEqual and LessOrEqual can say "not worse"; BOOL has no order.
        one, other = (body.cast(x, ir.DataType.INT32) if x.dtype == ir.DataType.BOOL else x for x in (item, best))
        better: ir.Value = getattr(body, comparison)(one, other)
        if body.is_float(item):
            better = body.Or(body.IsNaN(item), body.And(body.Not(body.IsNaN(best)), better))
        return body.Where(better, item, best), body.Where(better, place, at)

    start = op.expand(op.const(0), op.dims(first))
    values, indices = _scanned(op, [self, places], [axis, 0], [first, start], axis, step)
    return values, indices


@translates("aten::cummax")
def cummax(op: Op, self: ir.Value, dim: int) -> tuple[ir.Value, ir.Value]:
    """aten::cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)"""
    return _running(op, self, dim, "GreaterOrEqual")


@translates("aten::cummin")
def cummin(op: Op, self: ir.Value, dim: int) -> tuple[ir.Value, ir.Value]:
    """aten::cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)"""
    return _running(op, self, dim, "LessOrEqual")


@translates("aten::cumprod")
def cumprod(op: Op, self: ir.Value, dim: int, *, dtype: torch.dtype | None = None) -> ir.Value:
    """aten::cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor"""
    made = op.result.dtype
    value = op.cast(self, made)
    rank = op.rank_of(value)
    if rank == 0:
        return value
    axis = op.axis(dim, rank)
    # torch rounds the products of half types at the end.
    value = op.cast(value, ir.DataType.FLOAT) if made in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else value

    def step(body: Op, states: Sequence[ir.Value], items: Sequence[ir.Value]) -> Sequence[ir.Value]:
        return [body.Mul(states[0], items[0])]

    first = op.Gather(value, op.const(0), axis=axis)
    start = op.expand(op.const(1, op.dtype_of(value)), op.dims(first))
    return op.cast(_scanned(op, [value], [axis], [start], axis, step)[0], made)


@translates("aten::logcumsumexp")
def logcumsumexp(op: Op, self: ir.Value, dim: int) -> ir.Value:
    """aten::logcumsumexp(Tensor self, int dim) -> Tensor"""
    rank = op.rank_of(self)
    if rank == 0 or 0 in op.dims(self):
        return self
    axis = op.axis(dim, rank)

    def step(body: Op, states: Sequence[ir.Value], items: Sequence[ir.Value]) -> Sequence[ir.Value]:
        (total,), (item,) = states, items
        larger, smaller = body.Max(total, item), body.Min(total, item)
        sum_ = body.Add(larger, log_one_plus(body, body.Exp(body.Sub(smaller, larger))))
        # Two equal infinities have no difference.
        same = body.And(body.Equal(total, item), body.IsInf(item))
        return [body.Where(same, item, sum_)]

    def formula(op: Op, value: ir.Value) -> ir.Value:
        first = op.Gather(value, op.const(0), axis=axis)
        start = op.expand(op.const(-math.inf, op.dtype_of(value)), op.dims(first))
        return _scanned(op, [value], [axis], [start], axis, step)[0]

    return in_float(op, formula, self)
