"""Writing by flat positions, and indexing where only some positions count."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from .._builder.op import Op, Operand
from .._registry import translates
from .indexing import index
from .scatter import index_put, scatter_op

INT64 = ir.DataType.INT64


@translates("aten::put")
def put(op: Op, self: ir.Value, index: ir.Value, source: ir.Value, accumulate: bool = False) -> ir.Value:
    """aten::put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor"""
    if 0 in op.dims(index):
        return self
    flat, places, values = (op.Reshape(value, [-1]) for value in (self, index, source))
    written = scatter_op(op, "ScatterElements", flat, places, values, "add" if accumulate else None, 0)
    return op.reshape(written, op.dims(self))


def _valid(op: Op, mask: ir.Value, indices: Sequence[ir.Value | None]) -> list[ir.Value | None]:
    """The positions with those that do not count replaced by one that exists."""
    zero = op.const(0)
    return [None if place is None else op.Where(mask, op.cast(place, INT64), zero) for place in indices]


@translates("aten::_unsafe_masked_index")
def _unsafe_masked_index(
    op: Op, self: ir.Value, mask: ir.Value, indices: Sequence[ir.Value | None], fill: Operand
) -> ir.Value:
    """aten::_unsafe_masked_index(Tensor self, Tensor mask, Tensor?[] indices, Scalar fill) -> Tensor"""
    filler = op.operand(fill, op.dtype_of(self))
    if 0 in op.dims(self):
        # There is nothing to read, so that no position counts.
        return op.expand(filler, op.result.shape)
    found = index(op, self, _valid(op, mask, indices))
    return op.Where(mask, found, filler)


@translates("aten::_unsafe_masked_index_put_accumulate")
def _unsafe_masked_index_put_accumulate(
    op: Op, self: ir.Value, mask: ir.Value, indices: Sequence[ir.Value | None], values: ir.Value
) -> ir.Value:
    """aten::_unsafe_masked_index_put_accumulate(Tensor self, Tensor mask, Tensor?[] indices, Tensor values) -> Tensor"""
    if 0 in op.dims(self):
        return self
    counted = op.Where(mask, values, op.const(0, op.dtype_of(values)))
    return index_put(op, self, _valid(op, mask, indices), counted, accumulate=True)
