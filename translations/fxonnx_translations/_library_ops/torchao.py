"""``torchao``: affine quantization by blocks, as in models quantized by torchao's ``quantize_``.

torchao need not be installed: the translations apply wherever its operators are registered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

import onnx_ir as ir
import torch

from .._builder.dtypes import FLOAT, HALF_FLOATS, UINT8, to_torch_dtype
from .._builder.op import Op, Unsupported
from .._builder.stored_codes import derive_stored, is_stored
from .._builder.symbolic_dims import Dim
from .._registry import translates
from .affine import RANGES
from .stored_weights import dequantize_stored, storable_dtype

_EIGHT_BITS = (ir.DataType.INT8, UINT8)


def _limits(dtype: torch.dtype, quant_min: float | None, quant_max: float | None) -> tuple[float, float]:
    """Return the smallest and the largest code: by default the dtype's, which may have fewer than 8 bits."""
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


def _rounding(op: Op, dtype: ir.DataType) -> Callable[[ir.Value], ir.Value]:
    """Return a function that rounds FLOAT numbers to the precision in which torch computes."""
    if dtype == FLOAT:
        return lambda value: value
    return lambda value: op.cast(op.cast(value, dtype), FLOAT)


@translates("torchao::choose_qparams_affine")
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
    rounded = _rounding(op, op.dtype_of(input))
    blocks = op.cast(_in_blocks(op, input, shape), FLOAT)
    dtype = to_torch_dtype(op.dtype_of(input))
    least = torch.tensor(torch.finfo(dtype).smallest_normal if eps is None else eps, dtype=dtype).item()
    shapes = [result.shape for result in op.results]

    def reduced(operator: str, value: ir.Value) -> ir.Value:
        # As in torch, blocks of one element are reduced to one number.
        result: ir.Value = getattr(op, operator)(value, inner or list(range(len(shape))), keepdims=1)
        return result

    def as_result(index: int, value: ir.Value) -> ir.Value:
        return op.cast(_in_blocks(op, value, shapes[index]), op.results[index].dtype)

    if mapping_type == "SYMMETRIC":
        scale = rounded(op.Div(reduced("ReduceMax", op.Abs(blocks)), (high - low) / 2))
        zero = op.expand(op.const(int((high + low + 1) / 2), op.results[1].dtype), shapes[1])
        return as_result(0, op.Max(scale, least)), zero
    smallest, largest = op.Min(reduced("ReduceMin", blocks), 0.0), op.Max(reduced("ReduceMax", blocks), 0.0)
    if mapping_type == "SYMMETRIC_NO_CLIPPING_ERR":
        scale = rounded(op.Max(op.Div(smallest, float(low)), op.Div(largest, float(high))))
        zero = op.expand(op.const(int((high + low + 1) / 2), op.results[1].dtype), shapes[1])
        return as_result(0, op.Max(scale, least)), zero
    span = rounded(op.Sub(largest, smallest))
    scale = op.Max(rounded(op.Div(span, float(high - low))), least)
    shifted = rounded(op.Sub(op.const(float(low), FLOAT), op.Round(rounded(op.Div(smallest, scale)))))
    return as_result(0, scale), as_result(1, op.Clip(shifted, float(low), float(high)))


@translates("torchao::quantize_affine")
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
    dtype, computed_in = op.result.dtype, op.compute_dtype(input, scale)
    rounded = _rounding(op, computed_in)
    step = op.cast(_parameter(op, scale, shape, inner), FLOAT)
    reciprocal = _rounding(op, op.dtype_of(scale))(op.Reciprocal(step))
    quotient = rounded(op.Mul(op.cast(_in_blocks(op, input, shape), FLOAT), reciprocal))
    is_shifted = zero_point is not None and not op.is_zero(zero_point)
    if not is_shifted and dtype in _EIGHT_BITS and (low, high) == RANGES[dtype] and op.opset >= 10:
        codes = op.QuantizeLinear(quotient, op.const(1.0, FLOAT), op.const(0, dtype))
    else:
        codes = op.Round(quotient)
        if zero_point is not None and is_shifted:
            codes = rounded(op.Add(codes, op.cast(_parameter(op, zero_point, shape, inner), FLOAT)))
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
