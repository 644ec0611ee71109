"""``quantized_decomposed``: the operators of models converted by torch's graph-mode quantization.

They are registered when ``torch.ao.quantization.fx._decomposed`` is imported.
"""

from __future__ import annotations

import math

import onnx_ir as ir
import torch

from .._builder import dtypes
from .._builder.dtypes import BFLOAT16, DOUBLE, FLOAT, INT64, UINT8
from .._builder.op import Op, Unsupported
from .._registry import translates
from .affine import broadcast_parameter, can_dequantize, cast_parameter, dequantize, of_whole_tensor, quantize, zero_dim
from .stored_weights import dequantize_stored, is_code, storable_dtype

_LARGEST_BYTE = 255

# ---- per tensor


@translates(
    "quantized_decomposed::quantize_per_tensor",
    "quantized_decomposed::quantize_per_tensor.tensor",
    "quantized_decomposed::quantize_per_tensor.tensor2",
)
def quantize_per_tensor(
    op: Op,
    input: ir.Value,
    scale: float | ir.Value,
    zero_point: int | ir.Value,
    quant_min: int | ir.Value,
    quant_max: int | ir.Value,
    dtype: torch.dtype,
) -> ir.Value:
    """quantized_decomposed::quantize_per_tensor(Tensor input, float scale, int zero_point, int quant_min, int quant_max, ScalarType dtype) -> Tensor
    quantized_decomposed::quantize_per_tensor.tensor(Tensor input, Tensor scale, Tensor zero_point, int quant_min, int quant_max, ScalarType dtype) -> Tensor
    quantized_decomposed::quantize_per_tensor.tensor2(Tensor input, Tensor scale, Tensor zero_point, Tensor quant_min, Tensor quant_max, ScalarType dtype) -> Tensor
    """
    low, high = (zero_dim(op, limit) if isinstance(limit, ir.Value) else limit for limit in (quant_min, quant_max))
    parameters = of_whole_tensor(op, scale, zero_point)
    return quantize(op, op.cast(input, FLOAT), *parameters, (low, high), op.result.dtype)


@translates(
    "quantized_decomposed::dequantize_per_tensor",
    "quantized_decomposed::dequantize_per_tensor.tensor",
    "quantized_decomposed::dequantize_per_tensor.tensor2",
)
def dequantize_per_tensor(
    op: Op,
    input: ir.Value,
    scale: float | ir.Value,
    zero_point: int | ir.Value,
    quant_min: int | ir.Value,
    quant_max: int | ir.Value,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> ir.Value:
    """quantized_decomposed::dequantize_per_tensor(Tensor input, float scale, int zero_point, int quant_min, int quant_max, ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor
    quantized_decomposed::dequantize_per_tensor.tensor(Tensor input, Tensor scale, Tensor zero_point, int quant_min, int quant_max, ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor
    quantized_decomposed::dequantize_per_tensor.tensor2(Tensor input, Tensor scale, Tensor zero_point, Tensor quant_min, Tensor quant_max, ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor
    """
    return _dequantized(op, input, *of_whole_tensor(op, scale, zero_point))


def _dequantized(op: Op, input: ir.Value, scale: ir.Value, zero_point: ir.Value) -> ir.Value:
    result = op.result.dtype
    stored = dequantize_stored(op, input, scale, zero_point, result=result) if is_code(op, input) else None
    if stored is not None:
        return stored
    if result == FLOAT and can_dequantize(op, op.dtype_of(input), zero_point, None):
        return dequantize(op, input, scale, zero_point)

    def rounded(value: ir.Value) -> ir.Value:
        # Each of torch's steps is in the type of the result, with numbers of higher precision.
        return op.cast(op.cast(value, result), FLOAT) if result != DOUBLE else op.cast(value, DOUBLE)

    shifted = rounded(op.Sub(rounded(input), op.cast(zero_point, op.dtype_of(rounded(input)))))
    return op.cast(op.Mul(shifted, op.cast(scale, op.dtype_of(shifted))), result)


# ---- per channel


@translates("quantized_decomposed::quantize_per_channel")
def quantize_per_channel(
    op: Op,
    input: ir.Value,
    scales: ir.Value,
    zero_points: ir.Value,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> ir.Value:
    """quantized_decomposed::quantize_per_channel(Tensor input, Tensor scales, Tensor zero_points, int axis, int quant_min, int quant_max, ScalarType dtype) -> Tensor"""
    axis = op.axis(axis, op.rank_of(input))
    limits = (quant_min, quant_max)
    return quantize(op, op.cast(input, FLOAT), scales, zero_points, limits, op.result.dtype, axis)


@translates("quantized_decomposed::dequantize_per_channel")
def dequantize_per_channel(
    op: Op,
    input: ir.Value,
    scales: ir.Value,
    zero_points: ir.Value | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> ir.Value:
    """quantized_decomposed::dequantize_per_channel(Tensor input, Tensor scales, Tensor? zero_points, int axis, int quant_min, int quant_max, ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor"""
    rank = op.rank_of(input)
    axis = op.axis(axis, rank)
    if is_code(op, input) and not _may_wrap(op, input, zero_points):
        stored = dequantize_stored(op, input, scales, zero_points, axis=axis, result=op.result.dtype)
        if stored is not None:
            return stored
    if not _may_wrap(op, input, zero_points) and can_dequantize(op, op.dtype_of(input), zero_points, axis):
        return op.cast(dequantize(op, input, scales, zero_points, axis), op.result.dtype)
    shift = None if zero_points is None else broadcast_parameter(op, zero_points, axis, rank)
    return _subtract_and_scale(op, input, broadcast_parameter(op, scales, axis, rank), shift)


def _may_wrap(op: Op, input: ir.Value, zero_points: ir.Value | None) -> bool:
    """Whether torch's subtraction of the zero point may wrap around."""
    if zero_points is None or op.is_zero(zero_points):
        return False
    return op.compute_dtype(input, zero_points) not in (ir.DataType.INT32, INT64, FLOAT, DOUBLE)


def _subtract_and_scale(op: Op, input: ir.Value, scales: ir.Value, zero_points: ir.Value | None) -> ir.Value:
    """``(input - zero_points) * scales`` with torch's type promotion."""
    if zero_points is not None and _may_wrap(op, input, zero_points):
        wide = op.Sub(op.cast(input, INT64), op.cast(zero_points, INT64))
        input = op.cast(wide, op.compute_dtype(input, zero_points))
    elif zero_points is not None:
        input = op.Sub(*op.promote(input, zero_points))
    return op.cast(op.Mul(*op.promote(input, scales)), op.result.dtype)


@translates("quantized_decomposed::fake_quant_per_channel")
def fake_quant_per_channel(
    op: Op, input: ir.Value, scales: ir.Value, zero_points: ir.Value, axis: int, quant_min: int, quant_max: int
) -> ir.Value:
    """quantized_decomposed::fake_quant_per_channel(Tensor input, Tensor scales, Tensor zero_points, int axis, int quant_min, int quant_max) -> Tensor"""
    rank = op.rank_of(input)
    axis = op.axis(axis, rank)
    step, shift = (
        broadcast_parameter(op, cast_parameter(op, value, FLOAT), axis, rank) for value in (scales, zero_points)
    )
    shifted = op.Add(op.Round(op.Mul(input, op.Reciprocal(step))), shift)
    return op.Mul(op.Sub(op.Clip(shifted, float(quant_min), float(quant_max)), shift), step)


# ---- per token or group


@translates("quantized_decomposed::quantize_per_token")
def quantize_per_token(
    op: Op,
    input: ir.Value,
    scales: ir.Value,
    zero_points: ir.Value,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> ir.Value:
    """quantized_decomposed::quantize_per_token(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max, ScalarType dtype) -> Tensor"""
    return _rounded_last(op, input, scales, zero_points, quant_min, quant_max)


def _rounded_last(
    op: Op, input: ir.Value, scales: ir.Value, zero_points: ir.Value, quant_min: int, quant_max: int
) -> ir.Value:
    quotient = op.Mul(*op.promote(input, op.Reciprocal(scales)))
    shifted = op.Round(op.Add(*op.promote(quotient, zero_points)))
    return op.cast(op.Clip(shifted, float(quant_min), float(quant_max)), op.result.dtype)


@translates("quantized_decomposed::dequantize_per_token")
def dequantize_per_token(
    op: Op,
    input: ir.Value,
    scales: ir.Value,
    zero_points: ir.Value,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype,
) -> ir.Value:
    """quantized_decomposed::dequantize_per_token(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max, ScalarType dtype, ScalarType output_dtype) -> Tensor"""
    return _subtract_and_scale(op, input, scales, zero_points)


@translates("quantized_decomposed::quantize_per_channel_group")
def quantize_per_channel_group(
    op: Op,
    input: ir.Value,
    scales: ir.Value,
    zero_points: ir.Value,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    group_size: int,
) -> ir.Value:
    """quantized_decomposed::quantize_per_channel_group(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max, ScalarType dtype, int group_size) -> Tensor"""
    grouped, (step, shift) = _grouped(op, input, group_size, scales, zero_points)
    integers = _rounded_last(op, grouped, step, shift, quant_min, quant_max)
    return op.reshape(integers, op.dims(input))


@translates("quantized_decomposed::dequantize_per_channel_group")
def dequantize_per_channel_group(
    op: Op,
    input: ir.Value,
    scales: ir.Value,
    zero_points: ir.Value | None,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    group_size: int,
    output_dtype: torch.dtype,
) -> ir.Value:
    """quantized_decomposed::dequantize_per_channel_group(Tensor input, Tensor scales, Tensor? zero_points, int quant_min, int quant_max, ScalarType dtype, int group_size, ScalarType output_dtype) -> Tensor"""
    size = _group_size(op, input, group_size, scales)
    kind = op.dtype_of(input)
    # torch subtracts in 8 bits; signed codes and zero points within such limits cannot wrap around.
    is_narrow = kind == ir.DataType.INT8 and quant_max - quant_min < 128
    if is_code(op, input) and (is_narrow or not _may_wrap(op, input, zero_points)):
        narrow = storable_dtype(op, quant_min, quant_max)
        stored = dequantize_stored(
            op, input, scales, zero_points, block_size=size, dtype=narrow, result=op.result.dtype
        )
        if stored is not None:
            return stored
    whole = op.rank_of(scales) == 2 and op.result.dtype == FLOAT == op.dtype_of(scales)
    if op.opset >= 21 and whole and not _may_wrap(op, input, zero_points) and can_dequantize(op, kind, zero_points, 1):
        shift = None if zero_points is None else cast_parameter(op, zero_points, kind)
        result = op.DequantizeLinear(input, scales, shift, axis=1, block_size=size)
        result.type = ir.TensorType(FLOAT)
        return result
    parameters = (scales,) if zero_points is None else (scales, zero_points)
    grouped, (step, *shifts) = _grouped(op, input, group_size, *parameters)
    return op.reshape(_subtract_and_scale(op, grouped, step, shifts[0] if shifts else None), op.dims(input))


def _group_size(op: Op, input: ir.Value, group_size: int, scales: ir.Value) -> int:
    columns = op.dims(input)[-1]
    if not isinstance(columns, int):
        raise Unsupported("groups of a symbolic number of columns")
    return columns if group_size > columns and op.dims(scales)[-1] == 1 else group_size


def _grouped(
    op: Op, input: ir.Value, group_size: int, scales: ir.Value, *others: ir.Value
) -> tuple[ir.Value, list[ir.Value]]:
    """Return the input with one row per group, and the parameters as columns."""
    rows = op.Reshape(input, [-1, _group_size(op, input, group_size, scales)])
    return rows, [op.Reshape(parameter, [-1, 1]) for parameter in (scales, *others)]


# ---- choosing the parameters


@translates("quantized_decomposed::choose_qparams.tensor")
def choose_qparams(
    op: Op, input: ir.Value, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[ir.Value, ir.Value]:
    """quantized_decomposed::choose_qparams.tensor(Tensor input, int quant_min, int quant_max, float eps, ScalarType dtype) -> (Tensor, Tensor)"""
    low, high = _extremes(op, input)
    step = op.Div(op.Sub(high, low), float(quant_max - quant_min))
    scale = op.Max(step, op.const(float(eps), FLOAT))
    if quant_max - quant_min <= _LARGEST_BYTE and op.opset >= 10:
        # round(-low / scale), at most quant_max - quant_min: the scale is not smaller than the range divided by it.
        # DynamicQuantizeLinear has no eps.
        steps = op.QuantizeLinear(op.Neg(low), scale, op.const(0, UINT8))
        return _as_vectors(op, scale, op.Add(op.cast(steps, INT64), quant_min))
    zero = op.Sub(op.const(quant_min, INT64), op.cast(op.Round(op.Div(low, scale)), INT64))
    return _as_vectors(op, scale, op.Min(op.Max(zero, quant_min), quant_max))


@translates("quantized_decomposed::choose_qparams_symmetric.tensor")
def choose_qparams_symmetric(
    op: Op, input: ir.Value, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[ir.Value, ir.Value]:
    """quantized_decomposed::choose_qparams_symmetric.tensor(Tensor input, int quant_min, int quant_max, float eps, ScalarType dtype) -> (Tensor, Tensor)"""
    low, high = _extremes(op, input)
    step = op.Div(op.Max(op.Neg(low), high), float(quant_max - quant_min) / 2)
    scale = op.Max(step, op.const(float(eps), FLOAT))
    return _as_vectors(op, scale, op.const(128 if dtypes.from_torch(dtype) == UINT8 else 0, INT64))


def _extremes(op: Op, input: ir.Value) -> tuple[ir.Value, ir.Value]:
    if op.dtype_of(input) != FLOAT:
        raise Unsupported("choose_qparams of half precision, which torch computes in half precision")
    low, high = op.ReduceMin(input, keepdims=0), op.ReduceMax(input, keepdims=0)
    return op.Min(low, 0.0), op.Max(high, 0.0)


def _as_vectors(op: Op, scale: ir.Value, zero_point: ir.Value) -> tuple[ir.Value, ir.Value]:
    return op.Reshape(op.cast(scale, DOUBLE), [1]), op.Reshape(zero_point, [1])


@translates("quantized_decomposed::choose_qparams_per_token")
def choose_qparams_per_token(op: Op, input: ir.Value, dtype: torch.dtype) -> tuple[ir.Value, ir.Value]:
    """quantized_decomposed::choose_qparams_per_token(Tensor input, ScalarType dtype) -> (Tensor, Tensor)

    torch computes FLOAT and FLOAT16 in FLOAT, BFLOAT16 in BFLOAT16.
    """
    largest = op.ReduceMax(op.Abs(op.cast(input, FLOAT)), [op.rank_of(input) - 1], keepdims=1)
    kind = BFLOAT16 if op.dtype_of(input) == BFLOAT16 else FLOAT
    least = op.cast(op.cast(op.Max(largest, 1e-5), kind), FLOAT)
    scales = op.cast(op.cast(op.Div(least, 127.0), kind), op.result.dtype)
    return scales, op.expand(op.const(0, op.results[1].dtype), op.results[1].shape)


@translates(
    "quantized_decomposed::choose_qparams_per_token_asymmetric",
    "quantized_decomposed::_choose_qparams_per_token_asymmetric_impl",
)
def choose_qparams_per_token_asymmetric(op: Op, input: ir.Value, dtype: torch.dtype) -> tuple[ir.Value, ir.Value]:
    """quantized_decomposed::choose_qparams_per_token_asymmetric(Tensor input, ScalarType dtype) -> (Tensor, Tensor)
    quantized_decomposed::_choose_qparams_per_token_asymmetric_impl(Tensor input, ScalarType dtype) -> (Tensor, Tensor)
    """
    if op.dtype_of(input) != FLOAT:
        raise Unsupported(
            "choose_qparams_per_token_asymmetric of half precision, which torch computes in half precision"
        )
    last = [op.rank_of(input) - 1]
    low = op.Min(op.ReduceMin(input, last, keepdims=1), 0.0)
    high = op.Max(op.ReduceMax(input, last, keepdims=1), 0.0)
    scale = op.Max(op.Div(op.Sub(high, low), 255.0), math.ldexp(1.0, -23))
    least, most = op.Div(low, scale), op.Div(high, scale)
    # The zero point is computed from the end of the range with the smaller rounding error.
    errors = op.Add(op.Add(least, -128.0), op.Add(most, 127.0))
    zero = op.Where(
        op.Greater(errors, 0.0), op.Sub(op.const(-128.0, FLOAT), least), op.Sub(op.const(127.0, FLOAT), most)
    )
    return op.cast(scale, DOUBLE), op.cast(op.Round(op.Clip(zero, -128.0, 127.0)), INT64)


@translates("quantized_decomposed::convert_element_type.no_fuse")
def convert_element_type(op: Op, input: ir.Value, dtype: torch.dtype) -> ir.Value:
    """quantized_decomposed::convert_element_type.no_fuse(Tensor input, ScalarType dtype) -> Tensor"""
    return op.cast(input, op.result.dtype)
