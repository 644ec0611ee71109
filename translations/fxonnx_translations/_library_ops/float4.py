"""Weights of 4-bit floating-point numbers in blocks, such as NVFP4."""

from __future__ import annotations

from functools import partial

import onnx_ir as ir
import torch

from .._builder.dtypes import FLOAT
from .._builder.op import Op, Unsupported
from .._builder.stored_codes import derive_stored, is_stored
from .._registry import translates
from .stored_weights import dequantize_stored, storable_dtype

__all__ = ["E2M1", "block_scales", "unpacked_codes"]

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The numbers of the codes 0 to 15."""

_SINCE = 23
_TILE = (128, 4)
"""Rows and columns of a tile of swizzled scales."""


def unpacked_codes(packed: torch.Tensor) -> torch.Tensor:
    """Unpack pairs of codes, the first one in the low bits: uint8, one code per element."""
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2)


def block_scales(
    scale: torch.Tensor, tensor_scale: torch.Tensor | None = None, *, shape: tuple[int, int], is_swizzled: bool
) -> torch.Tensor:
    """Return the float32 scales of blocks.

    Args:
        scale: Scales in any layout of as many elements as the shape has, or of whole tiles.
        tensor_scale: A factor of all of them.
        shape: Rows, and blocks per row.
        is_swizzled: Whether they are arranged in tiles of 128 rows, each with the rows 0, 32, 64 and 96 next to each other.
    """
    rows, columns = shape
    values = scale.float()
    if is_swizzled:
        tiles = (-(-rows // _TILE[0]), -(-columns // _TILE[1]))
        values = values.reshape(tiles[0] * tiles[1], 32, 4, 4).transpose(1, 2)
        values = values.reshape(*tiles, *_TILE).permute(0, 2, 1, 3).reshape(tiles[0] * _TILE[0], tiles[1] * _TILE[1])
        values = values[:rows, :columns]
    values = values.reshape(shape)
    return values if tensor_scale is None else tensor_scale.float() * values


@translates("fxonnx::dequantize_float4")
def dequantize_float4(
    op: Op,
    packed: ir.Value,
    scale: ir.Value,
    tensor_scale: ir.Value | None,
    block_size: int,
    is_swizzled: bool,
    dtype: torch.dtype,
) -> ir.Value:
    """fxonnx::dequantize_float4(Tensor packed, Tensor scale, Tensor? tensor_scale, int block_size, bool is_swizzled, ScalarType dtype) -> Tensor"""
    parameters = [scale] if tensor_scale is None else [scale, tensor_scale]
    if not all(map(is_stored, (packed, *parameters))):
        raise Unsupported("4-bit numbers that are computed in the model")
    rows, half = (int(size) for size in op.dims(packed))
    shape = (rows, 2 * half // block_size)
    codes = derive_stored(op.builder, [packed], "codes", unpacked_codes)
    recipe = partial(block_scales, shape=shape, is_swizzled=is_swizzled)
    kind = ir.DataType.FLOAT4E2M1
    is_native = op.opset >= _SINCE and op.has_kernel("DequantizeLinear", kind)
    scales = derive_stored(op.builder, parameters, "scales", recipe)
    element = kind if is_native else storable_dtype(op, 0, 15)
    table = None if is_native else op.const(list(E2M1), FLOAT)
    value = dequantize_stored(op, codes, scales, dtype=element, result=op.result.dtype, table=table)
    if value is None:
        raise Unsupported("scales that do not fit the codes")
    return value
