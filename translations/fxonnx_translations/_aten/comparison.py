"""Comparisons, logic and bits."""

from __future__ import annotations

import onnx_ir as ir

from .._builder.op import Op, Operand, Unsupported
from .._registry import translates

BOOL = ir.DataType.BOOL


def _compared(op: Op, operator: str, self: Operand, other: Operand) -> ir.Value:
    left, right = op.promote(self, other)
    dtype = op.dtype_of(left)
    if dtype == BOOL and operator != "Equal":
        # The order of booleans is that of 0 and 1.
        left, right = op.cast(left, ir.DataType.INT32), op.cast(right, ir.DataType.INT32)
    elif dtype in (ir.DataType.INT8, ir.DataType.INT16, ir.DataType.UINT8, ir.DataType.UINT16):
        # ONNX Runtime compares 32 and 64 bit integers only.
        left, right = op.cast(left, ir.DataType.INT32), op.cast(right, ir.DataType.INT32)
    value: ir.Value = getattr(op, operator)(left, right)
    return value


@translates("aten::eq.Tensor", "aten::eq.Scalar")
def eq(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::eq.Tensor(Tensor self, Tensor other) -> Tensor
    aten::eq.Scalar(Tensor self, Scalar other) -> Tensor
    """
    return _compared(op, "Equal", self, other)


@translates("aten::ne.Tensor", "aten::ne.Scalar", "aten::not_equal.Tensor")
def ne(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::ne.Tensor(Tensor self, Tensor other) -> Tensor
    aten::ne.Scalar(Tensor self, Scalar other) -> Tensor
    aten::not_equal.Tensor(Tensor self, Tensor other) -> Tensor
    """
    return op.Not(_compared(op, "Equal", self, other))


@translates("aten::lt.Tensor", "aten::lt.Scalar")
def lt(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::lt.Tensor(Tensor self, Tensor other) -> Tensor
    aten::lt.Scalar(Tensor self, Scalar other) -> Tensor
    """
    return _compared(op, "Less", self, other)


@translates("aten::le.Tensor", "aten::le.Scalar")
def le(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::le.Tensor(Tensor self, Tensor other) -> Tensor
    aten::le.Scalar(Tensor self, Scalar other) -> Tensor
    """
    return _compared(op, "LessOrEqual", self, other)


@translates("aten::gt.Tensor", "aten::gt.Scalar")
def gt(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::gt.Tensor(Tensor self, Tensor other) -> Tensor
    aten::gt.Scalar(Tensor self, Scalar other) -> Tensor
    """
    return _compared(op, "Greater", self, other)


@translates("aten::ge.Tensor", "aten::ge.Scalar")
def ge(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::ge.Tensor(Tensor self, Tensor other) -> Tensor
    aten::ge.Scalar(Tensor self, Scalar other) -> Tensor
    """
    return _compared(op, "GreaterOrEqual", self, other)


@translates("aten::logical_and")
def logical_and(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::logical_and(Tensor self, Tensor other) -> Tensor"""
    return op.And(op.cast(self, BOOL), op.cast(other, BOOL))


@translates("aten::logical_or")
def logical_or(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::logical_or(Tensor self, Tensor other) -> Tensor"""
    return op.Or(op.cast(self, BOOL), op.cast(other, BOOL))


@translates("aten::logical_xor")
def logical_xor(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::logical_xor(Tensor self, Tensor other) -> Tensor"""
    return op.Xor(op.cast(self, BOOL), op.cast(other, BOOL))


def _bitwise(op: Op, name: str, self: Operand, other: Operand) -> ir.Value:
    left, right = op.promote(self, other)
    if op.dtype_of(left) == BOOL:
        value: ir.Value = getattr(op, name)(left, right)
        return value
    if op.opset < 18:
        raise Unsupported(f"Bitwise{name} of integers exists from opset 18 on")
    bits: ir.Value = getattr(op, f"Bitwise{name}")(left, right)
    return bits


@translates("aten::bitwise_and.Tensor", "aten::bitwise_and.Scalar", "aten::__and__.Tensor", "aten::__and__.Scalar")
def bitwise_and(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::bitwise_and.Tensor(Tensor self, Tensor other) -> Tensor
    aten::bitwise_and.Scalar(Tensor self, Scalar other) -> Tensor
    aten::__and__.Tensor(Tensor self, Tensor other) -> Tensor
    aten::__and__.Scalar(Tensor self, Scalar other) -> Tensor
    """
    return _bitwise(op, "And", self, other)


@translates("aten::bitwise_or.Tensor", "aten::bitwise_or.Scalar", "aten::__or__.Tensor", "aten::__or__.Scalar")
def bitwise_or(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::bitwise_or.Tensor(Tensor self, Tensor other) -> Tensor
    aten::bitwise_or.Scalar(Tensor self, Scalar other) -> Tensor
    aten::__or__.Tensor(Tensor self, Tensor other) -> Tensor
    aten::__or__.Scalar(Tensor self, Scalar other) -> Tensor
    """
    return _bitwise(op, "Or", self, other)


@translates("aten::bitwise_xor.Tensor", "aten::bitwise_xor.Scalar", "aten::__xor__.Tensor", "aten::__xor__.Scalar")
def bitwise_xor(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::bitwise_xor.Tensor(Tensor self, Tensor other) -> Tensor
    aten::bitwise_xor.Scalar(Tensor self, Scalar other) -> Tensor
    aten::__xor__.Tensor(Tensor self, Tensor other) -> Tensor
    aten::__xor__.Scalar(Tensor self, Scalar other) -> Tensor
    """
    return _bitwise(op, "Xor", self, other)
