"""``tensorrt``: the fake quantization of NVIDIA's modelopt, by QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

import onnx_ir as ir
import torch

from .._builder.dtypes import FLOAT
from .._builder.op import Op, Unsupported
from .._builder.stored_codes import derive_stored, is_stored
from .._registry import translates
from .affine import dequantize, quantize
from .stored_weights import dequantize_stored, quantize_stored

_FLOAT8 = ir.DataType.FLOAT8E4M3FN
_LARGEST_FLOAT8 = 448.0
_FLOAT8_OPSET = 19
_LEAST_LIMIT = 2.0**-24
"""A tensor with a smaller largest element is scaled as if that were 1."""


def _scale(amax: torch.Tensor, limit: float) -> torch.Tensor:
    amax = amax.float().reshape(-1) if amax.numel() > 1 else amax.float().reshape(())
    return 1 / (limit / torch.where(amax <= _LEAST_LIMIT, torch.ones_like(amax), amax))


@translates("tensorrt::quantize_op")
def quantize_op(
    op: Op,
    input: ir.Value,
    amax: ir.Value,
    num_bits: int = 8,
    exponent_bits: int = 0,
    unsigned: bool = False,
    narrow_range: bool = True,
) -> ir.Value:
    """tensorrt::quantize_op(Tensor input, Tensor amax, int num_bits=8, int exponent_bits=0, bool unsigned=False, bool narrow_range=True) -> Tensor"""
    if (num_bits, exponent_bits) not in ((8, 4), (8, 0), (4, 0)):
        raise Unsupported(f"{num_bits} bits with {exponent_bits} bits of exponent")
    if not is_stored(amax):
        raise Unsupported("a largest element that is computed at run time")
    axis = _channels(op, input, amax)
    limit = _LARGEST_FLOAT8 if exponent_bits else float(2 ** (num_bits - 1 + unsigned) - 1)
    scale = derive_stored(op.builder, [amax], "scale", lambda tensor: _scale(tensor, limit), key=limit)
    if exponent_bits:
        return _float8(op, input, scale, axis)
    low = 0 if unsigned else -int(limit) - (not narrow_range)
    zero_point = op.const(0 if axis is None else [0] * int(op.dims(scale)[0]), ir.DataType.INT64)
    stored = quantize_stored(op, input, scale, zero_point, (low, int(limit)), axis)
    if stored is not None:
        return stored
    dtype = ir.DataType.UINT8 if unsigned else ir.DataType.INT8
    codes = quantize(op, op.cast(input, FLOAT), scale, zero_point, (low, int(limit)), dtype, axis)
    return op.cast(dequantize(op, codes, scale, zero_point, axis), op.dtype_of(input))


def _channels(op: Op, input: ir.Value, amax: ir.Value) -> int | None:
    """Return the axis with one largest element for each position; None if there is one for the tensor."""
    large = [axis for axis, size in enumerate(op.dims(amax)) if size != 1]
    if not large:
        return None
    if len(large) > 1 or op.rank_of(amax) != op.rank_of(input):
        raise Unsupported(f"largest elements of shape {list(op.dims(amax))}")
    return large[0]


def _float8(op: Op, input: ir.Value, scale: ir.Value, axis: int | None) -> ir.Value:
    if op.opset < _FLOAT8_OPSET:
        raise Unsupported(f"float8 requires opset {_FLOAT8_OPSET}")
    if not is_stored(input):
        codes = op.QuantizeLinear(
            op.cast(input, FLOAT), scale, op.const(torch.zeros(op.dims(scale), dtype=torch.float8_e4m3fn)), axis=axis
        )
        value = op.DequantizeLinear(codes, scale, axis=axis)
        value.type = ir.TensorType(FLOAT)
        return op.cast(value, op.dtype_of(input))

    def quantized(weight: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        shape = [-1 if position == axis else 1 for position in range(weight.dim())]
        scaled = weight.float() * (1 / step).reshape(() if axis is None else shape)
        return scaled.clamp(-_LARGEST_FLOAT8, _LARGEST_FLOAT8).to(torch.float8_e4m3fn)

    codes = derive_stored(op.builder, [input, scale], "float8", quantized, key=axis)
    stored = dequantize_stored(op, codes, scale, axis=axis, result=op.dtype_of(input))
    if stored is None:
        raise Unsupported(f"scales of shape {list(op.dims(scale))}")
    return stored
