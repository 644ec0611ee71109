"""Sub-byte element types: ONNX packs their elements in bytes.

torch keeps each element of ``int4``, ``uint4``, ``int2`` and ``uint2`` in a byte of its own, signed ones sign-extended. An
element of ``float4_e2m1fn_x2`` is a pair of numbers: the last dim of the ONNX tensor is twice the torch tensor's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

__all__ = [
    "FLOAT4_PAIRS",
    "PER_BYTE",
    "as_codes",
    "check_codes",
    "code_limits",
    "contiguous",
    "copy_of",
    "onnx_sizes",
    "pack",
    "to_numpy",
    "torch_sizes",
    "unpack",
]

FLOAT4_PAIRS: torch.dtype | None = getattr(torch, "float4_e2m1fn_x2", None)
"""The dtype of pairs of 4-bit floating-point numbers, if this version of torch has it."""

_BITS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4_e2m1fn_x2": 4}
PER_BYTE: Mapping[torch.dtype, int] = MappingProxyType(
    {dtype: 8 // bits for name, bits in _BITS.items() if isinstance(dtype := getattr(torch, name, None), torch.dtype)}
)
"""Sub-byte dtype to the number of ONNX elements in a byte."""


def onnx_sizes(sizes: Sequence[Any], dtype: torch.dtype) -> tuple[Any, ...]:
    """Return the shape of the ONNX tensor for a shape and a dtype of torch; complex numbers are a last axis of 2.

    Raises:
        ValueError: If the tensor consists of pairs of numbers and has no axes.
    """
    if dtype.is_complex:
        return (*sizes, 2)
    if dtype != FLOAT4_PAIRS:
        return tuple(sizes)
    if not sizes:
        raise ValueError(f"a 0-dim tensor of dtype {dtype} has no ONNX counterpart")
    return (*sizes[:-1], 2 * sizes[-1])


def torch_sizes(sizes: Sequence[int], dtype: torch.dtype) -> tuple[int, ...]:
    """Return the shape of the torch tensor for the shape of an ONNX tensor with the element type of a real dtype."""
    return (*sizes[:-1], sizes[-1] // 2) if dtype == FLOAT4_PAIRS else tuple(sizes)


def as_codes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view as int8 or uint8 of a tensor of a sub-byte dtype, and any other tensor as it is."""
    if tensor.dtype not in PER_BYTE:
        return tensor
    return tensor.view(torch.int8 if _is_signed(tensor.dtype) else torch.uint8)


def code_limits(dtype: torch.dtype) -> tuple[int, int]:
    """Return the least and the largest byte of a sub-byte dtype."""
    if dtype == FLOAT4_PAIRS:
        return 0, 255
    bits = 8 // PER_BYTE[dtype]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if _is_signed(dtype) else (0, (1 << bits) - 1)


def _is_signed(dtype: torch.dtype) -> bool:
    return str(dtype).startswith("torch.int")


def check_codes(tensor: torch.Tensor) -> None:
    """Check that the bytes of a tensor are elements of its sub-byte dtype.

    Raises:
        ValueError: If one is not: torch would return it as it is from a view, ONNX would not.
    """
    if tensor.dtype == FLOAT4_PAIRS or not tensor.numel():
        return
    low, high = code_limits(tensor.dtype)
    least, most = (int(limit) for limit in as_codes(tensor.detach()).aminmax())
    if least < low or high < most:
        raise ValueError(
            f"it has bytes from {least} to {most}, but the elements of {tensor.dtype}, one per byte, are {low} to {high}"
        )


def pack(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of the ONNX tensor, the first element in the low bits; the last byte is padded with 0.

    Raises:
        ValueError: If the tensor has other elements than its dtype allows.
    """
    codes = _bytes(tensor)
    if tensor.dtype == FLOAT4_PAIRS:
        return codes.reshape(-1)
    check_codes(tensor)
    return _packed(codes.reshape(-1), PER_BYTE[tensor.dtype])


def contiguous(tensor: torch.Tensor, *, copy: bool = False) -> torch.Tensor:
    """Return a contiguous tensor of any dtype, a copy if it is not one already; torch cannot copy sub-byte dtypes.

    Args:
        tensor: The tensor.
        copy: Whether to copy a contiguous tensor.
    """
    content = tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor
    content = content.clone(memory_format=torch.contiguous_format) if copy else content.contiguous()
    return content.view(tensor.dtype) if content.dtype != tensor.dtype else content


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor of any dtype."""
    tensor = tensor.detach()
    return contiguous(tensor, copy=True) if tensor.dtype in PER_BYTE else tensor.clone()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(torch.uint8).cpu().contiguous()


def _packed(codes: torch.Tensor, per_byte: int) -> torch.Tensor:
    bits = 8 // per_byte
    codes = torch.nn.functional.pad(codes & (1 << bits) - 1, (0, -codes.numel() % per_byte)).reshape(-1, per_byte)
    packed = codes[:, 0].clone()
    for index in range(1, per_byte):
        packed |= codes[:, index] << (bits * index)
    return packed


def unpack(content: torch.Tensor, dtype: torch.dtype, sizes: Sequence[int]) -> torch.Tensor:
    """Return the torch tensor for the bytes of an ONNX tensor.

    Args:
        content: The bytes, as uint8 of rank 1.
        dtype: A sub-byte dtype.
        sizes: Shape of the ONNX tensor.
    """
    shape = torch_sizes(sizes, dtype)
    if dtype == FLOAT4_PAIRS:
        return content.view(dtype).reshape(shape)
    bits = 8 // PER_BYTE[dtype]
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    codes = (content.unsqueeze(1) >> shifts & (1 << bits) - 1).reshape(-1)[: int(np.prod(shape, dtype=np.int64))]
    if _is_signed(dtype):
        sign = 1 << bits - 1
        codes = ((codes.view(torch.int8) ^ sign) - sign).view(torch.uint8)
    return codes.view(dtype).reshape(shape)


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor of a sub-byte dtype as an array of the ml_dtypes type, one number per element."""
    codes = _bytes(tensor)
    if tensor.dtype == FLOAT4_PAIRS:
        numbers = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
        return numbers.numpy().view(ir.DataType.FLOAT4E2M1.numpy())
    check_codes(tensor)
    name = str(tensor.dtype).removeprefix("torch.").upper()
    return as_codes(codes.view(tensor.dtype)).numpy().astype(ir.DataType[name].numpy())
