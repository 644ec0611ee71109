"""Lookup of operators by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

# The libraries that define operators with a translation.
import torch.ao.quantization.fx._decomposed
import torch.onnx.ops
import transformers.integrations.moe  # noqa: F401

import fxonnx._export  # noqa: F401
from fxonnx_translations._registry import OpKey
from tests.models.torchvision_shim import import_torchvision

__all__ = ["is_absent", "overload_of"]

import_torchvision()

_REMOVED: Mapping[str, tuple[int, int]] = MappingProxyType({"aten::cholesky": (2, 14)})
"""Operators with a translation, to the first version of torch without them."""

_ADDED: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"aten::linalg_matrix_sqrth": (2, 14), "aten::linalg_polar": (2, 14)}
)
"""Operators with a translation, to the first version of torch with them."""

_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


def is_absent(key: OpKey) -> bool:
    """Whether this torch is known to lack the operator; a misspelled name is not among those."""
    if key in _REMOVED:
        return _REMOVED[key] <= _VERSION
    return key in _ADDED and _ADDED[key] > _VERSION


def overload_of(key: OpKey) -> Any:
    """Return the operator of a name such as ``aten::add.Tensor``, or None if this torch lacks it; a function is returned as is."""
    if not isinstance(key, str):
        return key
    namespace, _, operator = key.partition("::")
    packet_name, _, overload = operator.partition(".")
    packet = getattr(getattr(torch.ops, namespace), packet_name, None)
    return None if packet is None else getattr(packet, overload or "default", None)
