"""``torchao``: affine quantization by blocks, as in models quantized by torchao's ``quantize_``.

torchao need not be installed: the translations apply wherever its operators are registered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import onnx_ir as ir
import torch

from .._builder.dtypes import FLOAT, HALF_FLOATS, UINT8
from .._builder.op import Op, Unsupported
from .._builder.stored_codes import derive_stored, is_stored
from .._builder.symbolic_dims import Dim
from .._registry import OpCall, translates
from .affine import RANGES
from .stored_weights import dequantize_stored, storable_dtype

_EIGHT_BITS = (ir.DataType.INT8, UINT8)


def _limits(dtype: torch.dtype, quant_min: float | None, quant_max: float | None) -> tuple[float, float]:
    """Return the smallest and the largest code: by default those of the dtype, which may have fewer than 8 bits."""
    bits = re.fullmatch(r"torch\.(u?)int(\d+)", str(dtype))
    if bits is None:
        raise Unsupported(f"codes of {dtype}")
    count = int(bits[2])
    low, high = (0, 2**count - 1) if bits[1] else (-(2 ** (count - 1)), 2 ** (count - 1) - 1)
    return (low if quant_min is None else quant_min), (high if quant_max is None else quant_max)


def _blocks(op: Op, value: ir.Value, block_size: Sequence[Dim]) -> tuple[list[Dim], list[int]]:
    """Return a shape with separate axes for the elements of blocks, and these axes."""
    shape: list[Dim] = []
    inner: list[int] = []
    for size, block in zip(op.dims(value), block_size, strict=True):
        if block in (1, size):
            if block != 1:
                inner.append(len(shape))
            shape.append(size)
        elif isinstance(size, int) and isinstance(block, int):
            inner.append(len(shape) + 1)
            shape += [size // block, block]
        else:
            raise Unsupported("blocks of a dynamic size")
    return shape, inner


def _parameter(op: Op, value: ir.Value, shape: Sequence[Dim], inner: Sequence[int]) -> ir.Value:
    """Reshape scales or zero points so that they broadcast over blocks."""
    wanted = [1 if axis in inner else size for axis, size in enumerate(shape)]
    return value if list(op.dims(value)) == wanted else op.reshape(value, wanted)


def _in_blocks(op: Op, value: ir.Value, shape: Sequence[Dim]) -> ir.Value:
    return value if list(op.dims(value)) == list(shape) else op.reshape(value, shape)


def _half_precision(call: OpCall) -> str | None:
    """Half precision is decomposed: torch rounds each step."""
    given = call.arguments["input"]
    return None if given is not None and given.dtype == torch.float32 else "an input that is not float32"


@translates("torchao::choose_qparams_affine", accepts=_half_precision)
def choose_qparams_affine(
    op: Op,
    input: ir.Value,
    mapping_type: str,
    block_size: Sequence[Dim],
    target_dtype: torch.dtype,
    quant_min: float | None = None,
    quant_max: float | None = None,
    eps: float | None = None,
    scale_dtype: torch.dtype | None = None,
    zero_point_dtype: torch.dtype | None = None,
    keepdim: bool = False,
) -> tuple[ir.Value, ir.Value]:
    """torchao::choose_qparams_affine(Tensor? input, str mapping_type, SymInt[] block_size, ScalarType target_dtype, Scalar? quant_min=None, Scalar? quant_max=None, float? eps=None, ScalarType? scale_dtype=None, ScalarType? zero_point_dtype=None, bool keepdim=False) -> (Tensor, Tensor)"""
    low, high = _limits(target_dtype, quant_min, quant_max)
    shape, inner = _blocks(op, input, block_size)
    blocks = _in_blocks(op, input, shape)
    least = float(torch.finfo(torch.float32).smallest_normal if eps is None else eps)
    shapes = [result.shape for result in op.results]

    def reduced(operator: str, value: ir.Value) -> ir.Value:
        # As in torch, blocks of one element are reduced to one number.
        result: ir.Value = getattr(op, operator)(value, inner or list(range(len(shape))), keepdims=1)
        return result

    def as_result(index: int, value: ir.Value) -> ir.Value:
        return op.cast(_in_blocks(op, value, shapes[index]), op.results[index].dtype)

    if mapping_type == "SYMMETRIC":
        scale = op.Max(op.Div(reduced("ReduceMax", op.Abs(blocks)), (high - low) / 2), least)
        zero = op.expand(op.const(int((high + low + 1) / 2), op.results[1].dtype), shapes[1])
        return as_result(0, scale), zero
    smallest, largest = op.Min(reduced("ReduceMin", blocks), 0.0), op.Max(reduced("ReduceMax", blocks), 0.0)
    if mapping_type == "SYMMETRIC_NO_CLIPPING_ERR":
        scale = op.Max(op.Max(op.Div(smallest, float(low)), op.Div(largest, float(high))), least)
        zero = op.expand(op.const(int((high + low + 1) / 2), op.results[1].dtype), shapes[1])
        return as_result(0, scale), zero
    scale = op.Max(op.Div(op.Sub(largest, smallest), float(high - low)), least)
    shifted = op.Sub(op.const(float(low), FLOAT), op.Round(op.Div(smallest, scale)))
    return as_result(0, scale), as_result(1, op.Clip(shifted, float(low), float(high)))


@translates("torchao::quantize_affine", accepts=_half_precision)
def quantize_affine(
    op: Op,
    input: ir.Value,
    block_size: Sequence[Dim],
    scale: ir.Value,
    zero_point: ir.Value | None,
    output_dtype: torch.dtype,
    quant_min: float | None = None,
    quant_max: float | None = None,
) -> ir.Value:
    """torchao::quantize_affine(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, ScalarType output_dtype, Scalar? quant_min=None, Scalar? quant_max=None) -> Tensor

    torch multiplies by the reciprocal of the scale: a QuantizeLinear by the scale would round some quotients to the other
    integer.
    """
    low, high = _limits(output_dtype, quant_min, quant_max)
    shape, inner = _blocks(op, input, block_size)
    quotient = op.Mul(_in_blocks(op, input, shape), op.Reciprocal(_parameter(op, scale, shape, inner)))
    dtype = op.result.dtype
    is_shifted = zero_point is not None and not op.is_zero(zero_point)
    if not is_shifted and dtype in _EIGHT_BITS and (low, high) == RANGES[dtype] and op.opset >= 10:
        codes = op.QuantizeLinear(quotient, op.const(1.0, FLOAT), op.const(0, dtype))
    else:
        codes = op.Round(quotient)
        if zero_point is not None and is_shifted:
            codes = op.Add(codes, op.cast(_parameter(op, zero_point, shape, inner), FLOAT))
        codes = op.cast(op.Clip(codes, float(low), float(high)), dtype)
    return _in_blocks(op, codes, op.dims(input))


@translates("torchao::dequantize_affine")
def dequantize_affine(
    op: Op,
    input: ir.Value,
    block_size: Sequence[Dim],
    scale: ir.Value,
    zero_point: ir.Value | None,
    input_dtype: torch.dtype,
    quant_min: float | None = None,
    quant_max: float | None = None,
    output_dtype: torch.dtype = torch.float32,
) -> ir.Value:
    """torchao::dequantize_affine(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, ScalarType input_dtype, Scalar? quant_min=None, Scalar? quant_max=None, ScalarType output_dtype=6) -> Tensor"""
    result = op.result.dtype
    stored = _dequantized_weight(op, input, block_size, (scale, zero_point), _limits(input_dtype, quant_min, quant_max))
    if stored is not None:
        return stored
    shape, inner = _blocks(op, input, block_size)
    value = op.cast(_in_blocks(op, input, shape), result)
    if zero_point is not None and not op.is_zero(zero_point):
        value = op.Sub(value, op.cast(_parameter(op, zero_point, shape, inner), result))
    value = op.Mul(*op.promote(value, _parameter(op, scale, shape, inner)))
    return op.cast(_in_blocks(op, value, op.dims(input)), result)


def _dequantized_weight(
    op: Op,
    codes: ir.Value,
    block_size: Sequence[Dim],
    parameters: tuple[ir.Value, ir.Value | None],
    limits: tuple[float, float],
) -> ir.Value | None:
    """Return a stored weight dequantized, or None if it is computed."""
    if not all(parameter is None or is_stored(parameter) for parameter in (codes, *parameters)):
        return None
    counts = tuple(int(size) // int(block) for size, block in zip(op.dims(codes), block_size, strict=True))

    def in_all_axes(parameter: ir.Value) -> ir.Value:
        if op.dims(parameter) == counts:
            return parameter
        return derive_stored(op.builder, [parameter], "blocks", partial(torch.reshape, shape=counts), key=counts)

    scale, zero_point = parameters
    low, high = limits
    dtype = storable_dtype(op, int(low), int(high))
    shift = None if zero_point is None else in_all_axes(zero_point)
    result = op.result.dtype
    if result not in (FLOAT, *HALF_FLOATS):
        return None
    return dequantize_stored(op, codes, in_all_axes(scale), shift, dtype=dtype, result=result)
