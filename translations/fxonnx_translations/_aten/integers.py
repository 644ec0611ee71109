"""Shifts, greatest common divisors and least common multiples."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from .._builder.loops import loop
from .._builder.op import Op, Operand
from .._registry import translates

INT64 = ir.DataType.INT64


def _power_of_two(op: Op, exponent: ir.Value) -> ir.Value:
    """2^exponent as INT64 for 0 .. 63: a table, because ONNX shifts unsigned numbers only."""
    powers = [1 << place for place in range(63)] + [-(1 << 63)]
    return op.Gather(op.const(powers), exponent, axis=0)


def _shift(op: Op, self: Operand, other: Operand, *, left: bool) -> ir.Value:
    dtype = op.result.dtype
    bits = int(dtype.itemsize * 8)
    value = op.operand(self, dtype)
    value, distance = op.cast(value, INT64), op.cast(op.operand(other, dtype), INT64)
    zero, last = op.const(0), op.const(bits - 1)
    # Shifting by a negative number of bits, or by all of them, leaves nothing but the sign of a right shift.
    outside = op.Or(op.Less(distance, zero), op.Greater(distance, last))
    inside = op.Where(outside, zero, distance)
    if left:
        return op.cast(op.Where(outside, zero, op.Mul(value, _power_of_two(op, inside))), dtype)
    negative = op.Less(value, zero)
    # Rounded down, which Div is not for negative numbers: their complement is positive.
    magnitude = op.Where(negative, op.Sub(op.const(-1), value), value)
    halved = op.Div(magnitude, _power_of_two(op, op.Min(inside, op.const(62))))
    halved = op.Where(op.Equal(inside, op.const(63)), zero, halved)
    shifted = op.Where(negative, op.Sub(op.const(-1), halved), halved)
    return op.cast(op.Where(outside, op.Where(negative, op.const(-1), zero), shifted), dtype)


@translates(
    "aten::bitwise_left_shift.Tensor",
    "aten::bitwise_left_shift.Tensor_Scalar",
    "aten::bitwise_left_shift.Scalar_Tensor",
    "aten::__lshift__.Tensor",
    "aten::__lshift__.Scalar",
)
def bitwise_left_shift(op: Op, self: Operand, other: Operand) -> ir.Value:
    """aten::bitwise_left_shift.Tensor(Tensor self, Tensor other) -> Tensor
    aten::bitwise_left_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor
    aten::bitwise_left_shift.Scalar_Tensor(Scalar self, Tensor other) -> Tensor
    aten::__lshift__.Tensor(Tensor self, Tensor other) -> Tensor
    aten::__lshift__.Scalar(Tensor self, Scalar other) -> Tensor
    """
    return _shift(op, self, other, left=True)


@translates(
    "aten::bitwise_right_shift.Tensor",
    "aten::bitwise_right_shift.Tensor_Scalar",
    "aten::bitwise_right_shift.Scalar_Tensor",
    "aten::__rshift__.Tensor",
    "aten::__rshift__.Scalar",
)
def bitwise_right_shift(op: Op, self: Operand, other: Operand) -> ir.Value:
    """aten::bitwise_right_shift.Tensor(Tensor self, Tensor other) -> Tensor
    aten::bitwise_right_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor
    aten::bitwise_right_shift.Scalar_Tensor(Scalar self, Tensor other) -> Tensor
    aten::__rshift__.Tensor(Tensor self, Tensor other) -> Tensor
    aten::__rshift__.Scalar(Tensor self, Scalar other) -> Tensor
    """
    return _shift(op, self, other, left=False)


def _euclid(op: Op, self: ir.Value, other: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The greatest common divisor of both, in INT64, by as many steps of Euclid's algorithm as 64 bits can need."""
    dtype = op.result.dtype
    shape = op.result.shape
    left, right = (op.expand(op.Abs(op.cast(op.cast(value, dtype), INT64)), shape) for value in (self, other))

    def step(body: Op, k: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        a, b = states
        done = body.Equal(b, body.const(0))
        rest = body.Mod(a, body.Where(done, body.const(1), b))
        return body.Where(done, a, b), body.Where(done, b, rest)

    # The worst case are neighbours in Fibonacci's sequence.
    steps = {8: 14, 16: 26, 32: 48, 64: 94}[int(dtype.itemsize * 8)]
    divisor, _ = loop(op, steps, [left, right], step)
    return divisor, left, right


@translates("aten::gcd")
def gcd(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::gcd(Tensor self, Tensor other) -> Tensor"""
    return op.cast(_euclid(op, self, other)[0], op.result.dtype)


@translates("aten::lcm")
def lcm(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::lcm(Tensor self, Tensor other) -> Tensor"""
    divisor, left, right = _euclid(op, self, other)
    quotient = op.Div(left, op.Max(divisor, op.const(1)))
    return op.cast(op.Abs(op.Mul(quotient, right)), op.result.dtype)
