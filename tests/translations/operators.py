"""Operators by the names that translations use for them."""

from __future__ import annotations

from typing import Any

import torch

# The libraries that define operators with a translation.
import torch.ao.quantization.fx._decomposed
import torch.onnx.ops
import transformers.integrations.moe  # noqa: F401

import fxonnx.api  # noqa: F401
from fxonnx_translations.registry import Key
from tests.models.torchvision_shim import import_torchvision

__all__ = ["overload_of"]

import_torchvision()


def overload_of(key: Key) -> Any:
    """The operator with a name such as ``aten::add.Tensor``; None if this torch has none. Functions are themselves."""
    if not isinstance(key, str):
        return key
    namespace, _, operator = key.partition("::")
    packet_name, _, overload = operator.partition(".")
    packet = getattr(getattr(torch.ops, namespace), packet_name, None)
    return None if packet is None else getattr(packet, overload or "default", None)
