"""Binary arithmetic with torch's type promotion."""

from __future__ import annotations

import onnx_ir as ir
import torch

from ..op import Op, Operand
from ..registry import translates
from .axes import sliced

aten = torch.ops.aten

BOOL = ir.DataType.BOOL


def _operands(op: Op, self: Operand, other: Operand) -> tuple[ir.Value, ir.Value]:
    """Both operands in the result's type: what torch computes in is what it returns, for arithmetic."""
    dtype = op.result.dtype
    return op.operand(self, dtype), op.operand(other, dtype)


@translates(aten.add.Tensor, aten.add.Scalar)
def add(op: Op, self: ir.Value, other: Operand, alpha: Operand = 1) -> ir.Value:
    """aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
    aten::add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor
    """
    left, right = _operands(op, self, other)
    if op.result.dtype == BOOL:
        return op.Or(left, right)
    return op.Add(left, right if alpha == 1 else op.Mul(right, op.operand(alpha, op.result.dtype)))


@translates(aten.sub.Tensor, aten.sub.Scalar)
def sub(op: Op, self: ir.Value, other: Operand, alpha: Operand = 1) -> ir.Value:
    """aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
    aten::sub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor
    """
    left, right = _operands(op, self, other)
    return op.Sub(left, right if alpha == 1 else op.Mul(right, op.operand(alpha, op.result.dtype)))


@translates(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(op: Op, self: ir.Value, other: Operand, alpha: Operand = 1) -> ir.Value:
    """aten::rsub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
    aten::rsub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor
    """
    left, right = _operands(op, self, other)
    return op.Sub(right, left if alpha == 1 else op.Mul(left, op.operand(alpha, op.result.dtype)))


@translates(aten.mul.Tensor, aten.mul.Scalar, aten.multiply.Tensor)
def mul(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
    aten::mul.Scalar(Tensor self, Scalar other) -> Tensor
    aten::multiply.Tensor(Tensor self, Tensor other) -> Tensor
    """
    left, right = _operands(op, self, other)
    return op.And(left, right) if op.result.dtype == BOOL else op.Mul(left, right)


@translates(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def div(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::div.Tensor(Tensor self, Tensor other) -> Tensor
    aten::div.Scalar(Tensor self, Scalar other) -> Tensor
    aten::true_divide.Tensor(Tensor self, Tensor other) -> Tensor
    """
    return op.Div(*_operands(op, self, other))


@translates(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(op: Op, self: ir.Value, other: Operand, rounding_mode: str | None) -> ir.Value:
    """aten::div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor
    aten::div.Scalar_mode(Tensor self, Scalar other, *, str? rounding_mode) -> Tensor
    """
    left, right = _operands(op, self, other)
    if rounding_mode is None:
        return op.Div(left, right)
    return _floor_div(op, left, right) if rounding_mode == "floor" else _trunc_div(op, left, right)


@translates(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::floor_divide(Tensor self, Tensor other) -> Tensor
    aten::floor_divide.Scalar(Tensor self, Scalar other) -> Tensor
    """
    return _floor_div(op, *_operands(op, self, other))


def _trunc_div(op: Op, left: ir.Value, right: ir.Value) -> ir.Value:
    quotient = op.Div(left, right)
    if not op.is_float(left):
        # Integer Div truncates in ONNX as in C.
        return quotient
    # ONNX has no Trunc: take the floor of the magnitude.
    return op.Mul(op.Sign(quotient), op.Floor(op.Abs(quotient)))


def _floor_div(op: Op, left: ir.Value, right: ir.Value) -> ir.Value:
    if op.is_float(left):
        return op.Floor(op.Div(left, right))
    if op.dtype_of(left).name.startswith("U"):
        return op.Div(left, right)
    # The remainder has the divisor's sign, so that this division leaves none and need not round.
    return op.Div(op.Sub(left, op.Mod(left, right)), right)


@translates(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(op: Op, self: Operand, other: Operand) -> ir.Value:
    """aten::remainder.Tensor(Tensor self, Tensor other) -> Tensor
    aten::remainder.Scalar(Tensor self, Scalar other) -> Tensor
    aten::remainder.Scalar_Tensor(Scalar self, Tensor other) -> Tensor
    """
    left, right = _operands(op, self, other)
    if not op.is_float(left):
        return op.Mod(left, right)
    # Mod of floats is C's fmod, with the dividend's sign; torch's remainder has the divisor's.
    rest = op.Mod(left, right, fmod=1)
    zero = op.const(0.0, op.result.dtype)
    wrong_sign = op.And(op.Not(op.Equal(rest, zero)), op.Xor(op.Less(rest, zero), op.Less(right, zero)))
    return op.Where(wrong_sign, op.Add(rest, right), rest)


@translates(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::fmod.Tensor(Tensor self, Tensor other) -> Tensor
    aten::fmod.Scalar(Tensor self, Scalar other) -> Tensor
    """
    left, right = _operands(op, self, other)
    return op.Mod(left, right, fmod=1)


@translates(aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar)
def pow(op: Op, self: Operand, exponent: Operand) -> ir.Value:
    """aten::pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor
    aten::pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor
    aten::pow.Scalar(Scalar self, Tensor exponent) -> Tensor
    """
    dtype = op.result.dtype
    if isinstance(self, ir.Value) and isinstance(exponent, (int, float)):
        base = op.operand(self, dtype)
        # The simpler operators are exact where Pow is not, and run faster.
        if exponent == 2:
            return op.Mul(base, base)
        if exponent == 1:
            return base
        if op.is_float(base) and exponent == 0.5:
            return op.Sqrt(base)
        if op.is_float(base) and exponent == -1:
            return op.Reciprocal(base)
    left, right = _operands(op, self, exponent)
    if dtype in (ir.DataType.INT8, ir.DataType.INT16, ir.DataType.UINT8):
        # Pow takes INT32 and INT64 only; the wider product wraps to the same low bits.
        wide = op.Pow(op.cast(left, ir.DataType.INT64), op.cast(right, ir.DataType.INT64))
        return op.cast(wide, dtype)
    return op.Pow(left, right)


@translates(aten.addcmul.default)
def addcmul(op: Op, self: ir.Value, tensor1: ir.Value, tensor2: ir.Value, value: Operand = 1) -> ir.Value:
    """aten::addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor"""
    dtype = op.result.dtype
    product = op.Mul(op.operand(tensor1, dtype), op.operand(tensor2, dtype))
    return op.Add(op.operand(self, dtype), product if value == 1 else op.Mul(product, op.operand(value, dtype)))


@translates(aten.addcdiv.default)
def addcdiv(op: Op, self: ir.Value, tensor1: ir.Value, tensor2: ir.Value, value: Operand = 1) -> ir.Value:
    """aten::addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor"""
    dtype = op.result.dtype
    numerator = op.operand(tensor1, dtype)
    scaled = numerator if value == 1 else op.Mul(numerator, op.operand(value, dtype))
    return op.Add(op.operand(self, dtype), op.Div(scaled, op.operand(tensor2, dtype)))


def _extremum(op: Op, name: str, self: ir.Value, other: Operand) -> ir.Value:
    left, right = _operands(op, self, other)
    if op.result.dtype == BOOL:
        return op.Or(left, right) if name == "Max" else op.And(left, right)
    if op.result.dtype in (ir.DataType.INT8, ir.DataType.INT16, ir.DataType.UINT8):
        # ONNX Runtime's Max and Min have no kernel for the small integers.
        wide = (op.cast(left, ir.DataType.INT32), op.cast(right, ir.DataType.INT32))
        return op.cast(op.Max(*wide) if name == "Max" else op.Min(*wide), op.result.dtype)
    return op.Max(left, right) if name == "Max" else op.Min(left, right)


@translates(aten.maximum.default, aten.max.other)
def maximum(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::maximum(Tensor self, Tensor other) -> Tensor
    aten::max.other(Tensor self, Tensor other) -> Tensor
    """
    return _extremum(op, "Max", self, other)


@translates(aten.minimum.default, aten.min.other)
def minimum(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::minimum(Tensor self, Tensor other) -> Tensor
    aten::min.other(Tensor self, Tensor other) -> Tensor
    """
    return _extremum(op, "Min", self, other)


@translates(aten.diff.default)
def diff(
    op: Op,
    self: ir.Value,
    n: int = 1,
    dim: int = -1,
    prepend: ir.Value | None = None,
    append: ir.Value | None = None,
) -> ir.Value:
    """aten::diff(Tensor self, int n=1, int dim=-1, Tensor? prepend=None, Tensor? append=None) -> Tensor"""
    axis = dim % op.rank_of(self)
    pieces = [op.cast(piece, op.result.dtype) for piece in (prepend, self, append) if piece is not None]
    value = op.Concat(*pieces, axis=axis)
    for _ in range(n):
        size = op.dims(value)[axis]
        later, earlier = sliced(op, value, axis, 1, size), sliced(op, value, axis, 0, size - 1)
        value = op.Xor(later, earlier) if op.result.dtype == BOOL else op.Sub(later, earlier)
    return value
