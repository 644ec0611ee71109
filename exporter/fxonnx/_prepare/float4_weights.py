"""Tensor subclasses of 4-bit floating-point numbers: one operator dequantizes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fxonnx_translations._library_ops.float4 import E2M1, block_scales, unpacked_codes

from .._own_operators import define_operator

__all__ = ["float4_arguments"]


def _dequantize(
    packed: Tensor, scale: Tensor, tensor_scale: Tensor | None, block_size: int, is_swizzled: bool, dtype: torch.dtype
) -> Tensor:
    rows, columns = packed.shape[0], 2 * packed.shape[1]
    scales = block_scales(scale, tensor_scale, shape=(rows, columns // block_size), is_swizzled=is_swizzled)
    numbers = torch.tensor(E2M1, device=packed.device)[unpacked_codes(packed).long()]
    return (numbers * scales.repeat_interleave(block_size, 1)).to(dtype)


def _dequantized_shape(
    packed: Tensor, scale: Tensor, tensor_scale: Tensor | None, block_size: int, is_swizzled: bool, dtype: torch.dtype
) -> Tensor:
    return packed.new_empty((packed.shape[0], 2 * packed.shape[1]), dtype=dtype)


_OPERATOR = define_operator(
    "fxonnx::dequantize_float4(Tensor packed, Tensor scale, Tensor? tensor_scale, int block_size, bool is_swizzled, "
    "ScalarType dtype) -> Tensor",
    _dequantize,
    _dequantized_shape,
)


def float4_arguments(tensor: Any) -> Sequence[Any] | None:
    """Return the arguments of ``fxonnx::dequantize_float4`` for a weight of torchao's NVFP4, else None.

    Weights with dynamically quantized activations are not dequantized.
    """
    kind = type(tensor)
    if kind.__name__ != "NVFP4Tensor" or not kind.__module__.startswith("torchao.") or tensor.dim() != 2:
        return None
    if tensor.act_quant_kwargs is not None or not tensor.qdata.is_contiguous():
        return None
    factor = tensor.per_tensor_scale
    if factor is not None and factor.dim():
        return None
    return tensor.qdata, tensor.scale, factor, tensor.block_size, tensor.is_swizzled_scales, tensor.orig_dtype
