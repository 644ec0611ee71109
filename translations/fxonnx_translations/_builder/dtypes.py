"""Element types: torch to ONNX, and torch's type promotion on ONNX values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import onnx_ir as ir
import torch
from onnx_ir import tensor_adapters

from .sub_byte import PER_BYTE

__all__ = [
    "BFLOAT16",
    "BOOL",
    "DOUBLE",
    "FLOAT",
    "FLOAT8",
    "FLOAT8E8M0",
    "FLOAT16",
    "FLOATS",
    "HALF_FLOATS",
    "INT32",
    "INT64",
    "INTEGERS",
    "LEAST_INFINITE_E5M2",
    "SINCE",
    "SUB_BYTE_INTEGERS",
    "UINT8",
    "NoElementTypeError",
    "from_torch",
    "held",
    "overflow_of",
    "promote",
    "scalar_dtype",
    "to_torch_dtype",
]

BOOL, UINT8, INT32, INT64 = ir.DataType.BOOL, ir.DataType.UINT8, ir.DataType.INT32, ir.DataType.INT64
FLOAT16, BFLOAT16, FLOAT, DOUBLE = ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE
HALF_FLOATS = (FLOAT16, BFLOAT16)
FLOATS = frozenset({FLOAT, DOUBLE, *HALF_FLOATS})
INTEGERS = frozenset(
    {
        ir.DataType.INT8,
        ir.DataType.INT16,
        ir.DataType.INT32,
        ir.DataType.INT64,
        ir.DataType.UINT8,
        ir.DataType.UINT16,
        ir.DataType.UINT32,
        ir.DataType.UINT64,
    }
)
FLOAT8 = frozenset(
    {ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E4M3FNUZ, ir.DataType.FLOAT8E5M2, ir.DataType.FLOAT8E5M2FNUZ}
)
FLOAT8E8M0 = ir.DataType.FLOAT8E8M0
SUB_BYTE_INTEGERS = frozenset({ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT2, ir.DataType.UINT2})
SINCE: Mapping[ir.DataType, int] = MappingProxyType(
    {
        ir.DataType.BFLOAT16: 13,
        **dict.fromkeys(FLOAT8, 19),
        ir.DataType.INT4: 21,
        ir.DataType.UINT4: 21,
        ir.DataType.FLOAT4E2M1: 23,
        FLOAT8E8M0: 24,
        ir.DataType.INT2: 25,
        ir.DataType.UINT2: 25,
    }
)
"""The opsets that introduced element types; the others are older than every supported opset."""
LEAST_INFINITE_E5M2 = 61440.0
"""The smallest number that is rounded to infinity: half a unit in the last place above the largest finite one."""
Scalar = bool | int | float


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.").upper().replace("_", "").removesuffix("FNX2")


_FROM_SUB_BYTE: Mapping[ir.DataType, torch.dtype] = MappingProxyType(
    {ir.DataType[_name(dtype)]: dtype for dtype in PER_BYTE}
)
_SUB_BYTE: Mapping[torch.dtype, ir.DataType] = MappingProxyType({dtype: name for name, dtype in _FROM_SUB_BYTE.items()})


class NoElementTypeError(TypeError):
    """A dtype that cannot be written as an ONNX element type."""


def overflow_of(dtype: ir.DataType) -> float:
    """Return torch's result where a number overflows a float8 type: the largest finite number, infinity or NaN.

    It differs between versions of torch for float8_e4m3fn.
    """
    return torch.tensor(math.inf).to(to_torch_dtype(dtype)).item()


def held(number: float, dtype: ir.DataType) -> float:
    """Return a number as a float type holds it."""
    return torch.tensor(number, dtype=torch.float64).to(to_torch_dtype(dtype)).item()


def from_torch(dtype: torch.dtype) -> ir.DataType:
    """Return the ONNX element type for ``dtype``; for a complex dtype, of its real part.

    Raises:
        NoElementTypeError: If there is none.
    """
    if dtype is torch.float32:
        return ir.DataType.FLOAT
    if dtype is torch.int64:
        return ir.DataType.INT64
    if dtype.is_complex:
        dtype = dtype.to_real()
    if dtype in _SUB_BYTE:
        return _SUB_BYTE[dtype]
    try:
        return tensor_adapters.from_torch_dtype(dtype)
    except TypeError as error:
        raise NoElementTypeError(f"ONNX has no element type for {dtype}") from error


def to_torch_dtype(dtype: ir.DataType) -> torch.dtype:
    """Return torch's dtype for an ONNX element type.

    Raises:
        TypeError: If torch has none.
    """
    return _FROM_SUB_BYTE[dtype] if dtype in _FROM_SUB_BYTE else tensor_adapters.to_torch_dtype(dtype)


def scalar_dtype(value: Scalar) -> torch.dtype:
    """Return torch's dtype for a Python number: bool, int64, or the default dtype float32."""
    # bool first: it is a subclass of int.
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, int):
        return torch.int64
    return torch.float32


def _category(dtype: torch.dtype) -> int:
    if dtype is torch.bool:
        return 0
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else 1


def promote(tensors: Iterable[torch.dtype], zero_dim: Iterable[torch.dtype], numbers: Iterable[Scalar]) -> torch.dtype:
    """Apply torch's type promotion (torch.result_type): a lower-priority operand counts only if its category is higher.

    Args:
        tensors: dtypes of the operands of rank >= 1.
        zero_dim: dtypes of the 0-dim tensor operands.
        numbers: The Python number operands.

    Returns:
        The dtype of the computation.
    """
    result: torch.dtype | None = None
    for group in (tensors, zero_dim, map(scalar_dtype, numbers)):
        current: torch.dtype | None = None
        for dtype in group:
            current = dtype if current is None else torch.promote_types(current, dtype)
        if current is not None and (result is None or _category(current) > _category(result)):
            result = current if result is None else torch.promote_types(result, current)
    return torch.float32 if result is None else result
