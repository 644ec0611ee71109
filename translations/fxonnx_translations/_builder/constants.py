"""Literals: Python numbers, lists and torch tensors as ONNX tensors, shared by a bit-exact key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from .dtypes import FLOAT8, FLOAT8E8M0, to_torch_dtype
from .initializers import TorchTensor

__all__ = ["END", "ConstantKey", "array_of", "constant_key", "literal"]

END = 2**63 - 1
"""The end of a slice that reaches the end of the axis, in torch and in ONNX."""

ConstantKey = tuple[ir.DataType, tuple[int, ...], bytes]
"""dtype, shape and raw bytes: -0.0 is not 0.0, True is not 1, and NaN equals itself."""


def _default_dtype(value: Any) -> ir.DataType:
    first = value
    while isinstance(first, (list, tuple)):
        if not first:
            return ir.DataType.INT64
        first = first[0]
    # bool first: it is a subclass of int.
    if isinstance(first, bool):
        return ir.DataType.BOOL
    return ir.DataType.INT64 if isinstance(first, int) else ir.DataType.FLOAT


def literal(
    value: bool | int | float | Sequence[Any] | torch.Tensor | ir.TensorProtocol, dtype: ir.DataType | None = None
) -> ir.TensorProtocol:
    """Return the ONNX tensor of a Python value.

    Args:
        value: A number, a (nested) list of numbers, or a tensor.
        dtype: Element type; by default the tensor's, or BOOL, INT64 or FLOAT after the (first) number, INT64 for an empty list.

    Returns:
        A tensor holding its own copy of a Python value, or sharing the memory of a torch tensor.
    """
    if isinstance(value, torch.Tensor):
        value = value if dtype is None else value.to(to_torch_dtype(dtype))
        # Types that numpy lacks stay torch tensors, which ``array_of`` does not treat as literals.
        return ir.Tensor(value.detach().cpu().numpy()) if value.dtype in _NUMPY_TYPES else TorchTensor(value)
    if isinstance(value, ir.TensorProtocol):
        return value
    dtype = dtype or _default_dtype(value)
    if dtype in FLOAT8 or dtype == FLOAT8E8M0:
        # torch and ml_dtypes differ in numbers outside of the range, and in 0 as FLOAT8E8M0, which lacks it.
        numbers = torch.tensor(value, dtype=torch.float32).to(to_torch_dtype(dtype))
        return ir.Tensor(TorchTensor(numbers).numpy(), dtype=dtype)
    # A value outside the type's range becomes inf (or wraps), as it does in torch.
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype in _INT64_WRAPPED and not isinstance(value, float):
            array = np.array(value, dtype=np.int64).astype(dtype.numpy())
        else:
            array = np.array(value).astype(dtype.numpy()) if value != [] else np.array([], dtype=dtype.numpy())
    return ir.Tensor(array, dtype=dtype)


_NUMPY_TYPES = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.float32,
        torch.float64,
    }
)
_INT64_WRAPPED = frozenset({ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64})


def constant_key(tensor: ir.TensorProtocol) -> ConstantKey:
    """Return the key under which equal constants are shared."""
    return tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()


def array_of(value: ir.Value | None) -> np.ndarray | None:
    """Return the numbers of a literal, or None. Weights are not literals: they may be replaced later."""
    if value is None:
        return None
    tensor = value.const_value
    return tensor.numpy() if type(tensor) is ir.Tensor else None
