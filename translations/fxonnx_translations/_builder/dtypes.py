"""Element types: torch to ONNX, and torch's type promotion on ONNX values."""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import from_torch_dtype, to_torch_dtype

__all__ = [
    "BFLOAT16",
    "BOOL",
    "DOUBLE",
    "FLOAT",
    "FLOAT8",
    "FLOAT16",
    "FLOATS",
    "HALF_FLOATS",
    "INT32",
    "INT64",
    "INTEGERS",
    "LEAST_INFINITE_E5M2",
    "UINT8",
    "NoElementTypeError",
    "from_torch",
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
LEAST_INFINITE_E5M2 = 61440.0
"""The smallest number that is rounded to infinity: half a unit in the last place above the largest finite one."""
Scalar = bool | int | float


class NoElementTypeError(TypeError):
    """A dtype that cannot be written as an ONNX element type."""


def overflow_of(dtype: ir.DataType) -> float:
    """Return torch's result where a number overflows a float8 type: the largest finite number, infinity or NaN.

    It differs between versions of torch for float8_e4m3fn.
    """
    return torch.tensor(math.inf).to(to_torch_dtype(dtype)).item()


def from_torch(dtype: torch.dtype) -> ir.DataType:
    """Return the ONNX element type for ``dtype``; that of a complex dtype is the type of its real part.

    Raises:
        NoElementTypeError: If there is none.
    """
    if dtype is torch.float32:
        return ir.DataType.FLOAT
    if dtype is torch.int64:
        return ir.DataType.INT64
    if dtype.is_complex:
        dtype = dtype.to_real()
    try:
        return from_torch_dtype(dtype)
    except TypeError as error:
        raise NoElementTypeError(f"tensors of dtype {dtype} cannot be written to ONNX") from error


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
