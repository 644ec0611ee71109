"""Binary arithmetic with torch's type promotion, bit shifts, gcd and lcm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import onnx_ir as ir

from .._builder.constants import END, array_of
from .._builder.dtypes import BFLOAT16, BOOL, DOUBLE, FLOAT, FLOAT16, HALF_FLOATS, INT64, held
from .._builder.loops import loop
from .._builder.numerics import in_float, truncated
from .._builder.op import Op, Operand
from .._builder.value_ranges import is_consecutive, is_nonnegative
from .._library_ops.scaled_codes import scaled_codes
from .._registry import OpCall, Translation, translates
from .indexing.axes import sliced

_MOD_OPSET = 10

# ---- sums and products


def _operands(op: Op, self: Operand, other: Operand) -> tuple[ir.Value, ir.Value]:
    """Return both operands in the result's type, in which torch computes arithmetic operators."""
    dtype = op.result.dtype
    return op.operand(self, dtype), op.operand(other, dtype)


def _scaled_once(op: Op, operator: str, self: ir.Value, other: Operand) -> ir.Value:
    """A product or quotient. torch reads a number or 0-dim tensor in float32, applies it to a half tensor and rounds once."""
    dtype = op.result.dtype
    if op.holds(other, dtype):
        value: ir.Value = getattr(op, operator)(*_operands(op, self, other))
        return value
    wide: ir.Value = getattr(op, operator)(op.cast(op.cast(self, dtype), FLOAT), op.operand(other, FLOAT))
    return op.cast(wide, dtype)


def _add_scaled(op: Op, operator: str, value: ir.Value, scaled: ir.Value, alpha: Operand) -> ir.Value:
    """value + alpha * scaled, or value - alpha * scaled."""
    if alpha == 1:
        result: ir.Value = getattr(op, operator)(value, scaled)
        return result

    if isinstance(alpha, (int, float)) and not op.holds(alpha, op.result.dtype):
        # Unlike the factor of a product, it is rounded before.
        alpha = held(alpha, op.result.dtype)

    def formula(op: Op, value: ir.Value, scaled: ir.Value) -> ir.Value:
        product = op.Mul(scaled, op.operand(alpha, op.dtype_of(scaled)))
        result: ir.Value = getattr(op, operator)(value, product)
        return result

    return in_float(op, formula, value, scaled)


@translates("aten::add.Tensor", "aten::add.Scalar")
def add(op: Op, self: ir.Value, other: Operand, alpha: Operand = 1) -> ir.Value:
    """aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
    aten::add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor
    """
    left, right = _operands(op, self, other)
    if op.result.dtype == BOOL:
        return op.Or(left, right if alpha == 1 else op.And(right, op.operand(alpha, BOOL)))
    if (
        op.exact_zeros
        and alpha == 1
        and op.numbers(right) == [0]
        and not (op.dims(right) or op.has_negative_zeros(right))
    ):
        return op.without_negative_zeros(left)
    return _add_scaled(op, "Add", left, right, alpha)


@translates("aten::sub.Tensor", "aten::sub.Scalar")
def sub(op: Op, self: ir.Value, other: Operand, alpha: Operand = 1) -> ir.Value:
    """aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
    aten::sub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor
    """
    left, right = _operands(op, self, other)
    return _add_scaled(op, "Sub", left, right, alpha)


@translates("aten::rsub.Tensor", "aten::rsub.Scalar")
def rsub(op: Op, self: ir.Value, other: Operand, alpha: Operand = 1) -> ir.Value:
    """aten::rsub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
    aten::rsub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor
    """
    left, right = _operands(op, self, other)
    return _add_scaled(op, "Sub", right, left, alpha)


@translates("aten::mul.Tensor", "aten::mul.Scalar", "aten::multiply.Tensor")
def mul(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
    aten::mul.Scalar(Tensor self, Scalar other) -> Tensor
    aten::multiply.Tensor(Tensor self, Tensor other) -> Tensor
    """
    if op.result.dtype == BOOL:
        return op.And(*_operands(op, self, other))
    if op.result.dtype in HALF_FLOATS:
        return _scaled_once(op, "Mul", self, other)
    left, right = _operands(op, self, other)
    return scaled_codes(op, left, right) or scaled_codes(op, right, left) or op.Mul(left, right)


# ---- quotients and remainders


@translates("aten::div.Tensor", "aten::div.Scalar", "aten::true_divide.Tensor")
def div(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::div.Tensor(Tensor self, Tensor other) -> Tensor
    aten::div.Scalar(Tensor self, Scalar other) -> Tensor
    aten::true_divide.Tensor(Tensor self, Tensor other) -> Tensor
    """
    return _scaled_once(op, "Div", self, other)


@translates(
    "aten::div.Tensor_mode", "aten::div.Scalar_mode", exact="the quotient of an infinity, and the sign of a zero"
)
def div_mode(op: Op, self: ir.Value, other: Operand, rounding_mode: str | None) -> ir.Value:
    """aten::div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor
    aten::div.Scalar_mode(Tensor self, Scalar other, *, str? rounding_mode) -> Tensor
    """
    if rounding_mode is None:
        return _scaled_once(op, "Div", self, other)
    divide = _floor_div if rounding_mode == "floor" else _trunc_div
    return divide(op, *_rounded_division_operands(op, self, other))


@translates(
    "aten::floor_divide",
    "aten::floor_divide.Scalar",
    exact="the quotient of an infinity, or by one, and the sign of a zero",
)
def floor_divide(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::floor_divide(Tensor self, Tensor other) -> Tensor
    aten::floor_divide.Scalar(Tensor self, Scalar other) -> Tensor
    """
    return _floor_div(op, *_rounded_division_operands(op, self, other))


def _rounded_division_operands(op: Op, self: Operand, other: Operand) -> tuple[ir.Value, ir.Value]:
    """Both operands in the result's type, but a single divisor of a half type in float32, to which torch rounds it."""
    dtype = op.result.dtype
    is_single = not isinstance(other, ir.Value) or all(dim == 1 for dim in op.dims(other))
    return op.operand(self, dtype), op.operand(other, FLOAT if dtype in HALF_FLOATS and is_single else dtype)


def _trunc_div(op: Op, left: ir.Value, right: ir.Value) -> ir.Value:
    if not op.is_float(left):
        # Integer Div truncates in ONNX as in C.
        return op.Div(left, right)
    if op.dtype_of(right) in HALF_FLOATS:
        # torch rounds the quotient to the half type, then truncates.
        return in_float(op, truncated, in_float(op, _quotient, left, right))
    divisor = _constant(op, right)
    # No such divisor makes a finite quotient infinite, whose remainder would be NaN.
    is_finite = divisor is not None and abs(divisor) >= 1 and op.opset >= _MOD_OPSET

    def quotient(op: Op, left: ir.Value, right: ir.Value) -> ir.Value:
        value = op.Div(left, right)
        if is_finite and not op.exact_zeros:
            return op.Sub(value, op.Mod(value, op.const(1.0, op.dtype_of(value)), fmod=1))
        return truncated(op, value)

    return in_float(op, quotient, left, right)


def _quotient(op: Op, left: ir.Value, right: ir.Value) -> ir.Value:
    return op.Div(left, right)


def _constant(op: Op, value: ir.Value) -> float | None:
    """Return the number of a 0-dim constant, or None."""
    numbers = None if op.dims(value) else op.numbers(value)
    return None if numbers is None else numbers[0]


def _floor_div(op: Op, left: ir.Value, right: ir.Value) -> ir.Value:
    if op.is_float(left):
        return _floored_quotient(op, left, right)
    if op.dtype_of(left).name.startswith("U"):
        return op.Div(left, right)
    divisor = _constant(op, right)
    if divisor is not None and divisor != 0:
        return _floor_div_by_constant(op, left, right, int(divisor))
    if is_nonnegative(op.builder, right):
        # A divisor of 0 is an error, as in torch.
        return _floor_div_by_positive(op, left, right)
    # The truncated quotient, less one where the remainder, which has the divisor's sign, and the dividend have opposite signs.
    # The shorter (left - Mod) / right overflows near the smallest and the largest integer, and the floor of a quotient of floats
    # is a number for a divisor of 0, where torch raises an error.
    dtype = op.dtype_of(left)
    signs = op.Mul(op.Mod(left, right), op.Sign(left))
    return op.Add(op.Div(left, right), op.Clip(signs, op.const(-1, dtype), op.const(0, dtype)))


def _floor_div_by_positive(op: Op, left: ir.Value, right: ir.Value) -> ir.Value:
    """The floor of a quotient of signed integers by positive ones. Nothing overflows, not even for the smallest integer."""
    if is_nonnegative(op.builder, left):
        return op.Div(left, right)
    dtype = op.dtype_of(left)
    # The floor for a negative integer is one less than the truncated quotient of the next integer.
    step = op.Clip(left, op.const(-1, dtype), op.const(0, dtype))
    return op.Add(op.Div(op.Sub(left, step), right), step)


def _floor_div_by_constant(op: Op, left: ir.Value, right: ir.Value, divisor: int) -> ir.Value:
    """The floor of a quotient of signed integers. Nothing overflows, not even for the smallest integer."""
    dtype = op.dtype_of(left)
    if divisor == 1:
        return left
    if divisor == -1:
        # Div of the smallest integer by -1 ends the process.
        return op.Sub(op.const(0, dtype), left)
    if divisor > 0 and divisor.bit_count() == 1 and not is_nonnegative(op.builder, left):
        # The smallest integer is a multiple of every power of two.
        return op.Div(op.Sub(left, op.Mod(left, right)), right)
    if divisor > 0:
        return _floor_div_by_positive(op, left, right)
    # If the signs differ, the floor of left / divisor is one less than the truncated quotient of the integer next to left.
    step = op.Clip(left, op.const(0, dtype), op.const(1, dtype))
    return op.Sub(op.Div(op.Sub(left, step), right), step)


def _floored_quotient(op: Op, left: ir.Value, right: ir.Value) -> ir.Value:
    """The floor of the exact quotient, as in Python: the floor of the rounded one would be 10 for 1.0 // 0.1.

    In a type with enough bits the rounded quotient has the same floor: a quotient of floats with m bits that is not an
    integer is at least 2^-m away from the next one, n, and rounding to p bits moves it by less than n 2^-p, in both cases
    here less than 2^-m for n <= 2^(p - m - 1). Larger floors are rounded to m bits themselves, as multiples of a power of
    two that rounding to p bits does not cross. Neither type underflows.
    """
    dtype, divisor = op.result.dtype, _constant(op, right)
    if op.exact_zeros or dtype == DOUBLE or (divisor is not None and math.isinf(divisor)):
        return in_float(op, _floored_quotient_by_remainder, left, right)
    fits = op.dtype_of(right) == dtype or (divisor is not None and held(divisor, dtype) == divisor)
    if fits and divisor and math.frexp(abs(divisor))[0] == 0.5 and (dtype != BFLOAT16 or abs(divisor) <= 1):
        return _floored_quotient_by_power(op, left, divisor)
    if dtype == FLOAT16 and fits:
        wide = FLOAT
    elif op.computes_float64:
        wide = DOUBLE
    else:
        return in_float(op, _floored_quotient_by_remainder, left, right)
    right = op.cast(right, wide) if divisor is None else op.const(divisor, wide)
    return op.cast(op.Floor(op.Div(op.cast(left, wide), right)), dtype)


def _floored_quotient_by_power(op: Op, left: ir.Value, divisor: float) -> ir.Value:
    """The floor of a quotient by a power of two: exact, if integers are divided where a fraction could underflow."""

    def formula(op: Op, left: ir.Value) -> ir.Value:
        if abs(divisor) > 1:
            left = op.Floor(left) if divisor > 0 else op.Ceil(left)
        quotient = left if divisor == 1 else op.Div(left, op.const(divisor, op.dtype_of(left)))
        return op.Floor(quotient)

    return formula(op, left) if op.result.dtype == FLOAT16 else in_float(op, formula, left)


def _floored_quotient_by_remainder(op: Op, left: ir.Value, right: ir.Value) -> ir.Value:
    """The floor of the exact quotient by the remainder, as torch computes it."""
    dtype = op.dtype_of(left)
    zero, one = op.const(0.0, dtype), op.const(1.0, dtype)
    rest = op.Mod(left, right, fmod=1)
    quotient = op.Div(op.Sub(left, rest), right)
    quotient = op.Where(_signs_differ(op, rest, right), op.Sub(quotient, one), quotient)
    # An integer, except for the rounding error of the division.
    floor = op.Round(quotient)
    if op.exact_zeros:
        # Zero has the sign of the quotient.
        floor = op.selected(op.Equal(floor, zero), op.Mul(op.Div(left, right), zero), floor)
    if _constant(op, right):
        return floor
    # Mod of an infinity is NaN, as is torch's quotient; the case of a zero divisor is replaced below.
    return op.Where(op.Equal(right, zero), op.Div(left, right), floor)


def _signs_differ(op: Op, rest: ir.Value, divisor: ir.Value) -> ir.Value:
    """Whether a remainder and the divisor have opposite signs."""
    zero = op.const(0.0, op.dtype_of(rest))
    number = _constant(op, divisor)
    if number:
        return op.Less(rest, zero) if number > 0 else op.Greater(rest, zero)
    # A product with the remainder itself could underflow.
    return op.Less(op.Mul(op.Sign(rest), divisor), zero)


@translates("aten::remainder.Tensor", "aten::remainder.Scalar", "aten::remainder.Scalar_Tensor")
def remainder(op: Op, self: Operand, other: Operand) -> ir.Value:
    """aten::remainder.Tensor(Tensor self, Tensor other) -> Tensor
    aten::remainder.Scalar(Tensor self, Scalar other) -> Tensor
    aten::remainder.Scalar_Tensor(Scalar self, Tensor other) -> Tensor
    """
    left, right = _operands(op, self, other)
    if not op.is_float(left):
        # Mod of the smallest integer and -1 ends the process.
        return op.Mul(left, op.const(0, op.dtype_of(left))) if _constant(op, right) == -1 else op.Mod(left, right)
    if op.has_kernel("Mod", op.dtype_of(left)):
        return _float_remainder(op, left, right)
    # Only the sum is rounded: Casts around each operator would not change it.
    return in_float(op, _float_remainder, left, right)


def _float_remainder(op: Op, left: ir.Value, right: ir.Value) -> ir.Value:
    # Mod of floats is C's fmod, with the dividend's sign; torch's remainder has the divisor's.
    rest = op.Mod(left, right, fmod=1)
    return op.Where(_signs_differ(op, rest, right), op.Add(rest, right), rest)


@translates("aten::fmod.Tensor", "aten::fmod.Scalar")
def fmod(op: Op, self: ir.Value, other: Operand) -> ir.Value:
    """aten::fmod.Tensor(Tensor self, Tensor other) -> Tensor
    aten::fmod.Scalar(Tensor self, Scalar other) -> Tensor
    """
    left, right = _operands(op, self, other)
    if op.dtype_of(left) != INT64:
        return op.Mod(left, right, fmod=1)
    # ONNX Runtime's Mod with fmod computes in float64, which does not represent all INT64.
    divisor = _constant(op, right)
    if divisor == -1:
        return op.Mul(left, op.const(0))
    expand = left.producer()
    source = expand.inputs[0] if expand is not None and expand.op_type == "Expand" else left
    if source is not None and source.is_initializer():
        # ONNX Runtime replaces 1 / x * x by x / x, which is not the same for integers.
        size = op.Abs(right) if divisor is None else op.const(abs(int(divisor)))
        numbers = op.numbers(source)
        if numbers and min(numbers) >= 0:
            return op.Mod(left, size)
        return op.Mul(op.Mod(op.Abs(left), size), op.Sign(left))
    return op.Sub(left, op.Mul(op.Div(left, right), right))


# ---- powers


@translates("aten::pow.Tensor_Tensor", "aten::pow.Tensor_Scalar", "aten::pow.Scalar")
def pow(op: Op, self: Operand, exponent: Operand) -> ir.Value:
    """aten::pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor
    aten::pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor
    aten::pow.Scalar(Scalar self, Tensor exponent) -> Tensor
    """
    dtype = op.result.dtype
    if isinstance(self, ir.Value) and isinstance(exponent, (int, float)):
        base = op.operand(self, dtype)
        # The simpler operators are exact where Pow is not, and faster.
        if exponent == 2:
            return op.Mul(base, base)
        if exponent == 1:
            return base
        if op.is_float(base) and exponent == 0.5:
            return op.Sqrt(base)
        if op.is_float(base) and exponent == -1:
            return op.Reciprocal(base)
        if not op.is_float(base) and isinstance(exponent, int):
            return _power_by_squaring(op, base, exponent)
    left, right = _operands(op, self, exponent)
    return op.Pow(left, right) if op.is_float(left) else _integer_power(op, left, right)


def _power_by_squaring(op: Op, base: ir.Value, exponent: int) -> ir.Value:
    """A nonnegative integer power by repeated squaring: ONNX Runtime's Pow rounds to float64 and does not wrap."""
    result: ir.Value | None = None
    while exponent:
        if exponent & 1:
            result = base if result is None else op.Mul(result, base)
        exponent >>= 1
        base = op.Mul(base, base) if exponent else base
    return result if result is not None else op.expand(op.const(1, op.result.dtype), op.result.shape)


def _integer_power(op: Op, base: ir.Value, exponent: ir.Value) -> ir.Value:
    """Repeated squaring with a tensor of exponents; negative powers are 0, except for the bases 1 and -1."""
    dtype, wide = op.dtype_of(base), ir.DataType.INT64
    # A wider product has the low bits of the narrow one.
    base, exponent = op.cast(base, wide), op.cast(exponent, wide)
    zero, one, two = op.const(0), op.const(1), op.const(2)
    nothing = op.Mul(op.Add(base, exponent), zero)
    base, rest = op.Add(base, nothing), op.Add(op.Abs(exponent), nothing)
    largest = op.ReduceMax(op.Concat(op.Reshape(rest, [-1]), op.const([1]), axis=0), [0], keepdims=0)
    # At least the number of bits, since 1.5 exceeds 1 / log(2).
    logarithm = op.Log(op.Add(op.cast(largest, ir.DataType.DOUBLE), op.const(1.0, ir.DataType.DOUBLE)))
    trips = op.cast(op.Ceil(op.Mul(logarithm, op.const(1.5, ir.DataType.DOUBLE))), wide)

    def step(body: Op, k: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        result, power, rest = states
        odd = body.Equal(body.Mod(rest, two), one)
        result = body.Where(odd, body.Mul(result, power), result)
        return result, body.Mul(power, power), body.Div(rest, two)

    result, _, _ = loop(op, trips, [op.Add(nothing, one), base, rest], step)
    if dtype.name.startswith("U"):
        return op.cast(result, dtype)
    unit = op.Equal(op.Abs(base), one)
    return op.cast(op.Where(op.And(op.Less(exponent, zero), op.Not(unit)), zero, result), dtype)


# ---- fused sums of products


@translates("aten::addcmul")
def addcmul(op: Op, self: ir.Value, tensor1: ir.Value, tensor2: ir.Value, value: Operand = 1) -> ir.Value:
    """aten::addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor"""
    return _add_product(op, "Mul", self, tensor1, tensor2, value)


@translates("aten::addcdiv")
def addcdiv(op: Op, self: ir.Value, tensor1: ir.Value, tensor2: ir.Value, value: Operand = 1) -> ir.Value:
    """aten::addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor"""
    return _add_product(op, "Div", self, tensor1, tensor2, value)


def _add_product(
    op: Op, operator: str, self: ir.Value, tensor1: ir.Value, tensor2: ir.Value, value: Operand
) -> ir.Value:
    def formula(op: Op, self: ir.Value, tensor1: ir.Value, tensor2: ir.Value) -> ir.Value:
        scaled = tensor1 if value == 1 else op.Mul(tensor1, op.operand(value, op.dtype_of(tensor1)))
        return op.Add(self, getattr(op, operator)(scaled, tensor2))

    return in_float(op, formula, self, tensor1, tensor2)


def _one_number(call: OpCall) -> str | None:
    weight = call.arguments["weight"]
    is_number = not weight.dim() and weight.dtype != call.arguments["self"].dtype
    return None if is_number else "torch's decomposition does not round a weight of the tensors' type"


@translates("aten::lerp.Tensor", accepts=_one_number)
def lerp(op: Op, self: ir.Value, end: ir.Value, weight: ir.Value) -> ir.Value:
    """aten::lerp.Tensor(Tensor self, Tensor end, Tensor weight) -> Tensor"""

    def formula(op: Op, first: ir.Value, last: ir.Value, weight: ir.Value) -> ir.Value:
        one, half = (op.const(number, op.dtype_of(first)) for number in (1.0, 0.5))
        distance = op.Sub(last, first)
        near = op.Add(first, op.Mul(distance, weight))
        far = op.Sub(last, op.Mul(distance, op.Sub(one, weight)))
        return op.selected(op.Less(op.Abs(weight), half), near, far)

    dtype = op.result.dtype
    return in_float(op, formula, *(op.cast(value, dtype) for value in (self, end, weight)))


# ---- extrema


def _binary_extremum(op: Op, name: str, self: ir.Value, other: Operand) -> ir.Value:
    left, right = _operands(op, self, other)
    if op.result.dtype == BOOL:
        return op.Or(left, right) if name == "Max" else op.And(left, right)
    return op.Max(left, right) if name == "Max" else op.Min(left, right)


@translates("aten::maximum", "aten::max.other")
def maximum(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::maximum(Tensor self, Tensor other) -> Tensor
    aten::max.other(Tensor self, Tensor other) -> Tensor
    """
    return _binary_extremum(op, "Max", self, other)


@translates("aten::minimum", "aten::min.other")
def minimum(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::minimum(Tensor self, Tensor other) -> Tensor
    aten::min.other(Tensor self, Tensor other) -> Tensor
    """
    return _binary_extremum(op, "Min", self, other)


# ---- differences


def _is_packed_sequence_diff(op: Op, before: ir.Value | None, value: ir.Value) -> bool:
    """Whether consecutive numbers follow their predecessor, as when transformers detects packed sequences."""
    node = before.producer() if before is not None else None
    if node is None or node.op_type != "Sub" or not is_consecutive(op.builder, value):
        return False
    step, first = array_of(node.inputs[1]), node.inputs[0]
    taken = None if first is None else first.producer()
    if step is None or step.size != 1 or step.item() != 1 or taken is None or taken.op_type != "Slice":
        return False
    bounds = [array_of(bound) for bound in taken.inputs[1:4]]
    last = op.rank_of(value) - 1
    positions = [bound.reshape(-1).tolist() for bound in bounds if bound is not None]
    return taken.inputs[0] is value and len(taken.inputs) <= 5 and positions == [[0], [1], [last]]


@translates("aten::diff")
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
    if n == 1 and append is None and axis == op.rank_of(self) - 1 and _is_packed_sequence_diff(op, prepend, self):
        return op.expand(op.const(1, op.result.dtype), op.result.shape)
    pieces = [op.cast(piece, op.result.dtype) for piece in (prepend, self, append) if piece is not None]
    value = op.Concat(*pieces, axis=axis)
    for _ in range(n):
        later, earlier = sliced(op, value, axis, 1, END), sliced(op, value, axis, 0, -1)
        value = op.Xor(later, earlier) if op.result.dtype == BOOL else op.Sub(later, earlier)
    return value


# ---- shifts


def _power_of_two(op: Op, exponent: ir.Value) -> ir.Value:
    """2^exponent as INT64 for 0 .. 63, by a table: BitShift supports unsigned integers only."""
    powers = [1 << position for position in range(63)] + [-(1 << 63)]
    return op.Gather(op.const(powers), exponent, axis=0)


def _shift(op: Op, self: Operand, other: Operand, *, left: bool) -> ir.Value:
    """aten::bitwise_left_shift.Tensor(Tensor self, Tensor other) -> Tensor
    aten::bitwise_left_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor
    aten::bitwise_left_shift.Scalar_Tensor(Scalar self, Tensor other) -> Tensor
    aten::__lshift__.Tensor(Tensor self, Tensor other) -> Tensor
    aten::__lshift__.Scalar(Tensor self, Scalar other) -> Tensor
    aten::bitwise_right_shift.Tensor(Tensor self, Tensor other) -> Tensor
    aten::bitwise_right_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor
    aten::bitwise_right_shift.Scalar_Tensor(Scalar self, Tensor other) -> Tensor
    aten::__rshift__.Tensor(Tensor self, Tensor other) -> Tensor
    aten::__rshift__.Scalar(Tensor self, Scalar other) -> Tensor
    """
    dtype = op.result.dtype
    bits = int(dtype.itemsize * 8)
    value = op.operand(self, dtype)
    value, distance = op.cast(value, INT64), op.cast(op.operand(other, dtype), INT64)
    zero, last = op.const(0), op.const(bits - 1)
    # Shifts by a negative number or by all bits give 0, or the sign for a right shift.
    outside = op.Or(op.Less(distance, zero), op.Greater(distance, last))
    inside = op.Where(outside, zero, distance)
    if left:
        return op.cast(op.Where(outside, zero, op.Mul(value, _power_of_two(op, inside))), dtype)
    negative = op.Less(value, zero)
    # Rounds down by the complement, which is nonnegative: Div truncates negative numbers.
    magnitude = op.Where(negative, op.Sub(op.const(-1), value), value)
    halved = op.Div(magnitude, _power_of_two(op, op.Min(inside, op.const(62))))
    halved = op.Where(op.Equal(inside, op.const(63)), zero, halved)
    shifted = op.Where(negative, op.Sub(op.const(-1), halved), halved)
    return op.cast(op.Where(outside, op.Where(negative, op.const(-1), zero), shifted), dtype)


TRANSLATIONS = tuple(
    Translation(
        partial(_shift, left=left),
        (*(f"aten::{name}.{form}" for form in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")), *short),
    )
    for name, left, short in (
        ("bitwise_left_shift", True, ("aten::__lshift__.Tensor", "aten::__lshift__.Scalar")),
        ("bitwise_right_shift", False, ("aten::__rshift__.Tensor", "aten::__rshift__.Scalar")),
    )
)


# ---- gcd and lcm


def _euclid(op: Op, self: ir.Value, other: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The greatest common divisor in INT64, by the number of steps of Euclid's algorithm that 64 bits need at most."""
    dtype = op.result.dtype
    shape = op.result.shape
    left, right = (op.expand(op.Abs(op.cast(op.cast(value, dtype), INT64)), shape) for value in (self, other))

    def step(body: Op, k: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        a, b = states
        done = body.Equal(b, body.const(0))
        rest = body.Mod(a, body.Where(done, body.const(1), b))
        return body.Where(done, a, b), body.Where(done, b, rest)

    # The worst case is a pair of consecutive Fibonacci numbers.
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
