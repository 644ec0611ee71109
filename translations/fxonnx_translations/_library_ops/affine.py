"""Affine quantization, ``round(x / scale) + zero_point``, by QuantizeLinear where it applies.

QuantizeLinear divides by the scale, torch multiplies by its reciprocal: about one quotient in a million is within a
rounding error of a half and is rounded to the other integer. A bit-exact decomposition would prevent runtimes from using
their integer kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from .._builder import dtypes
from .._builder.dtypes import FLOAT
from .._builder.op import Op
from .float_bounds import is_within

__all__ = [
    "RANGES",
    "broadcast_parameter",
    "can_dequantize",
    "can_quantize",
    "cast_parameter",
    "dequantize",
    "of_whole_tensor",
    "quantize",
    "zero_dim",
]


RANGES = {
    ir.DataType.INT8: (-(2**7), 2**7 - 1),
    ir.DataType.UINT8: (0, 2**8 - 1),
    ir.DataType.INT16: (-(2**15), 2**15 - 1),
    ir.DataType.UINT16: (0, 2**16 - 1),
}
"""Limits of the element types of QuantizeLinear."""

_EIGHT_BITS = (ir.DataType.INT8, ir.DataType.UINT8)


def can_quantize(op: Op, dtype: ir.DataType, zero_point: ir.Value, axis: int | None) -> bool:
    """Whether QuantizeLinear has this output type at the target opset."""
    if dtype not in RANGES or op.dtype_of(zero_point).is_floating_point():
        return False
    if op.opset < (13 if axis is not None else 10) or (dtype not in _EIGHT_BITS and op.opset < 21):
        return False
    low, high = RANGES[dtype]
    numbers = op.numbers(zero_point)
    return numbers is None or all(low <= number <= high for number in numbers)


def can_dequantize(op: Op, dtype: ir.DataType, zero_point: ir.Value | None, axis: int | None) -> bool:
    """Whether DequantizeLinear accepts this type at the target opset."""
    if dtype == ir.DataType.INT32:
        return (zero_point is None or op.is_zero(zero_point)) and op.opset >= (13 if axis is not None else 10)
    if zero_point is None:
        return dtype in RANGES and can_quantize(op, dtype, op.const(0), axis)
    return can_quantize(op, dtype, zero_point, axis)


def broadcast_parameter(op: Op, parameter: ir.Value, axis: int | None, rank: int) -> ir.Value:
    """Reshape a per-channel parameter so that it broadcasts along an axis of a tensor of the given rank."""
    return parameter if axis is None else op.Unsqueeze(parameter, list(range(1, rank - axis)))


def cast_parameter(op: Op, parameter: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return the parameter in another element type; a constant stays one, since runtimes require constants."""
    if op.dtype_of(parameter) == dtype:
        return parameter
    numbers = op.numbers(parameter)
    if numbers is not None:
        return op.const(numbers if op.rank_of(parameter) else numbers[0], dtype)
    to = dtypes.to_torch_dtype(dtype)
    stored = op.derived(parameter, dtype.name.lower(), lambda tensor: tensor.to(to), force=True)
    return op.cast(parameter, dtype) if stored is None else stored


def of_whole_tensor(op: Op, scale: float | ir.Value, zero_point: int | ir.Value) -> tuple[ir.Value, ir.Value]:
    """Scale and zero point of a whole tensor, numbers or tensors of one element, as 0-dim values."""
    first = zero_dim(op, scale) if isinstance(scale, ir.Value) else op.scalar(scale, FLOAT)
    return first, zero_dim(op, zero_point) if isinstance(zero_point, ir.Value) else op.scalar(zero_point)


def zero_dim(op: Op, value: ir.Value) -> ir.Value:
    """Reshape a tensor of one element to 0-dim, at export time if it is a literal or a weight."""
    if not op.rank_of(value):
        return value
    numbers = op.numbers(value)
    if numbers is not None:
        return op.const(numbers[0], op.dtype_of(value))
    stored = op.derived(value, "0-dim", lambda tensor: tensor.reshape(()), force=True)
    return op.Reshape(value, op.const([], ir.DataType.INT64)) if stored is None else stored


def quantize(
    op: Op,
    x: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value,
    limits: tuple[ir.Value | int, ir.Value | int],
    dtype: ir.DataType,
    axis: int | None = None,
) -> ir.Value:
    """Quantize a FLOAT tensor to integers.

    Args:
        op: The op object.
        x: FLOAT, of any rank.
        scale: 0-dim, or one per channel.
        zero_point: As ``scale``.
        limits: Smallest and largest result.
        dtype: Type of the result.
        axis: The axis of the channels, nonnegative, or None.
    """
    if can_quantize(op, dtype, zero_point, axis):
        integers = op.QuantizeLinear(
            x, cast_parameter(op, scale, FLOAT), cast_parameter(op, zero_point, dtype), axis=axis
        )
        least, most = limits
        are_known = isinstance(least, int) and isinstance(most, int)
        if are_known and is_within(op, x, scale, zero_point, _open(least, most, dtype)):
            return integers
        return _limited(op, integers, limits, dtype)
    rank = op.rank_of(x)
    reciprocal = broadcast_parameter(op, op.cast(op.Reciprocal(scale), FLOAT), axis, rank)
    shifted = op.Add(op.Round(op.Mul(x, reciprocal)), broadcast_parameter(op, op.cast(zero_point, FLOAT), axis, rank))
    low, high = (op.cast(limit, FLOAT) if isinstance(limit, ir.Value) else float(limit) for limit in limits)
    return op.cast(op.Clip(shifted, low, high), dtype)


def _open(low: Any, high: Any, dtype: ir.DataType) -> tuple[float, float]:
    """The limits; infinite where they are the type's, at which QuantizeLinear saturates."""
    least, most = RANGES[dtype]
    return -math.inf if low <= least else low, math.inf if high >= most else high


def _limited(op: Op, integers: ir.Value, limits: Sequence[ir.Value | int], dtype: ir.DataType) -> ir.Value:
    """QuantizeLinear saturates at the limits of the type."""
    if tuple(limits) == RANGES[dtype]:
        return integers
    return op.Clip(integers, *(op.operand(limit, dtype) for limit in limits))


def dequantize(
    op: Op, integers: ir.Value, scale: ir.Value, zero_point: ir.Value | None, axis: int | None = None
) -> ir.Value:
    """Dequantize integers, of a type that ``can_dequantize`` accepts, to FLOAT; see :func:`quantize`."""
    dtype = op.dtype_of(integers)
    shift = None if zero_point is None or dtype == ir.DataType.INT32 else cast_parameter(op, zero_point, dtype)
    result = op.DequantizeLinear(integers, cast_parameter(op, scale, FLOAT), shift, axis=axis)
    if result.type is None:
        # From opset 23 on the schema no longer derives the output type from the scale.
        result.type = ir.TensorType(FLOAT)
    return result
