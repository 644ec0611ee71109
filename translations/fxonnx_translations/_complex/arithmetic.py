"""Sums, products, quotients and comparisons of complex tensors."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from .._builder.op import Op, Operand
from .._registry import translates
from .parts import Pair, join, pair_of, part_dtype, real_alone


def multiply(op: Op, left: Pair, right: Pair) -> Pair:
    """Return the product; with all four terms also for a real factor, as in torch: infinity times zero is NaN."""
    (a, b), (c, d) = left, right
    return op.Sub(op.Mul(a, c), op.Mul(b, d)), op.Add(op.Mul(a, d), op.Mul(b, c))


def divide(op: Op, left: Pair, right: Pair) -> Pair:
    """Return the quotient, scaled by the larger part of the divisor to avoid overflow."""
    (a, b), (c, d) = left, right
    if op.is_zero(d):
        return op.Div(op.Add(a, op.Mul(b, d)), c), op.Div(op.Sub(b, op.Mul(a, d)), c)
    zero = op.const(0.0, op.dtype_of(c))
    larger = op.GreaterOrEqual(op.Abs(c), op.Abs(d))
    # With a divisor of zero the scaling would be 0 / 0; the quotient is x / 0.
    both_zero = op.And(op.Equal(c, zero), op.Equal(d, zero))
    major, minor = op.Where(larger, c, d), op.Where(larger, d, c)
    ratio = op.Where(both_zero, zero, op.Div(minor, major))
    scale = op.Add(major, op.Mul(minor, ratio))
    first, second = op.Where(larger, a, b), op.Where(larger, b, a)
    real = op.Div(op.Add(first, op.Mul(second, ratio)), scale)
    difference = op.Sub(second, op.Mul(first, ratio))
    imaginary = op.Div(op.Where(larger, difference, op.Neg(difference)), scale)
    return real, imaginary


def _scaled(op: Op, value: Pair, alpha: Any, dtype: ir.DataType) -> Pair:
    return value if alpha == 1 else multiply(op, pair_of(op, alpha, dtype), value)


@translates("aten::add.Tensor", "aten::add.Scalar", complex=True)
def add(op: Op, self: ir.Value, other: Operand, alpha: Any = 1) -> ir.Value:
    """aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
    aten::add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor
    """
    dtype = part_dtype(op)
    (a, b), (c, d) = pair_of(op, self, dtype), _scaled(op, pair_of(op, other, dtype), alpha, dtype)
    imaginary = b if op.is_zero(d) else d if op.is_zero(b) else None
    # The sum with a zero that is not computed is never -0.0.
    return join(op, op.Add(a, c), op.Add(b, d) if imaginary is None else op.without_negative_zeros(imaginary))


@translates("aten::sub.Tensor", "aten::sub.Scalar", complex=True)
def sub(op: Op, self: ir.Value, other: Operand, alpha: Any = 1) -> ir.Value:
    """aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
    aten::sub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor
    """
    dtype = part_dtype(op)
    (a, b), (c, d) = pair_of(op, self, dtype), _scaled(op, pair_of(op, other, dtype), alpha, dtype)
    if op.is_zero(d):
        # torch adds the negative number, whose imaginary part is 0.0.
        return join(
            op, op.Sub(a, c), b if isinstance(other, ir.Value) and op.dims(other) else op.without_negative_zeros(b)
        )
    return join(op, op.Sub(a, c), op.Sub(b, d))


@translates("aten::rsub.Tensor", "aten::rsub.Scalar", complex=True)
def rsub(op: Op, self: ir.Value, other: Operand, alpha: Any = 1) -> ir.Value:
    """aten::rsub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
    aten::rsub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor
    """
    dtype = part_dtype(op)
    (a, b), (c, d) = _scaled(op, pair_of(op, self, dtype), alpha, dtype), pair_of(op, other, dtype)
    return join(op, op.Sub(c, a), op.Sub(d, b))


@translates("aten::mul.Tensor", "aten::mul.Scalar", "aten::multiply.Tensor", complex=True)
def mul(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
    aten::mul.Scalar(Tensor self, Scalar other) -> Tensor
    aten::multiply.Tensor(Tensor self, Tensor other) -> Tensor
    """
    dtype = part_dtype(op)
    return join(op, *multiply(op, pair_of(op, self, dtype), pair_of(op, other, dtype)))


@translates("aten::div.Tensor", "aten::div.Scalar", "aten::true_divide.Tensor", complex=True)
def div(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::div.Tensor(Tensor self, Tensor other) -> Tensor
    aten::div.Scalar(Tensor self, Scalar other) -> Tensor
    aten::true_divide.Tensor(Tensor self, Tensor other) -> Tensor
    """
    dtype = part_dtype(op)
    return join(op, *divide(op, pair_of(op, self, dtype), pair_of(op, other, dtype)))


@translates("aten::reciprocal", complex=True)
def reciprocal(op: Op, self: ir.Value) -> ir.Value:
    """aten::reciprocal(Tensor self) -> Tensor"""
    dtype = part_dtype(op)
    return join(op, *divide(op, pair_of(op, 1.0, dtype), op.parts(self)))


@translates("aten::square", complex=True)
def square(op: Op, self: ir.Value) -> ir.Value:
    """aten::square(Tensor self) -> Tensor"""
    return join(op, *multiply(op, op.parts(self), op.parts(self)))


@translates("aten::eq.Tensor", "aten::eq.Scalar", complex=True)
def eq(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::eq.Tensor(Tensor self, Tensor other) -> Tensor
    aten::eq.Scalar(Tensor self, Scalar other) -> Tensor
    """
    return _equal(op, self, other)


@translates("aten::ne.Tensor", "aten::ne.Scalar", "aten::not_equal.Tensor", complex=True)
def ne(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::ne.Tensor(Tensor self, Tensor other) -> Tensor
    aten::ne.Scalar(Tensor self, Scalar other) -> Tensor
    aten::not_equal.Tensor(Tensor self, Tensor other) -> Tensor
    """
    return op.Not(_equal(op, self, other))


def _equal(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    dtype = real_alone(op, self, other)
    (a, b), (c, d) = pair_of(op, self, dtype), pair_of(op, other, dtype)
    return op.And(op.Equal(a, c), op.Equal(b, d))
