"""Copies of one tensor in the place of another, and questions about all elements of a mask."""

from __future__ import annotations

import onnx_ir as ir

from .._builder.op import Op
from .._registry import translates


@translates("aten::copy")
def copy(op: Op, self: ir.Value, src: ir.Value, non_blocking: bool = False) -> ir.Value:
    """aten::copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor"""
    return op.expand(op.cast(src, op.result.dtype), op.dims(self))


@translates("aten::_is_all_true")
def is_all_true(op: Op, self: ir.Value) -> ir.Value:
    """aten::_is_all_true(Tensor self) -> Tensor"""
    # True for an empty mask, whose product is 1.
    return op.cast(op.ReduceProd(op.cast(self, ir.DataType.INT64), keepdims=0), ir.DataType.BOOL)


@translates("aten::_is_any_true")
def is_any_true(op: Op, self: ir.Value) -> ir.Value:
    """aten::_is_any_true(Tensor self) -> Tensor"""
    return op.cast(op.ReduceSum(op.cast(self, ir.DataType.INT64), keepdims=0), ir.DataType.BOOL)
