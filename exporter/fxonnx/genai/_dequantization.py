"""Weights of a quantized checkpoint as floating-point numbers: transformers would require the method's library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .._program.checkpoints import StoredTensor, read_weight_sources
from ..errors import ArgumentError
from ..quantization.packed_weights import PackedWeight, parts_of

__all__ = ["dequantized_checkpoint"]


def dequantized_checkpoint(directory: Path, config: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Read all tensors of a checkpoint; quantized weights are dequantized.

    Args:
        directory: The directory of the checkpoint.
        config: The configuration of the model, which is not one of a quantized model afterwards.
        dtype: dtype of the quantized weights.

    Raises:
        ArgumentError: If a weight cannot be read.
    """
    # transformers would require the library of the method.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    found = read_weight_sources(directory)
    packed = {name: tensor for name, tensor in found.items() if isinstance(tensor, PackedWeight)}
    parts = {part for weight in packed.values() for part in parts_of(weight)}
    state = {
        name: tensor.load() if isinstance(tensor, StoredTensor) else tensor
        for name, tensor in found.items()
        if name not in parts and isinstance(tensor, (StoredTensor, torch.Tensor))
    }
    return {**state, **{name: _dequantized(weight, dtype) for name, weight in packed.items()}}


def _dequantized(weight: PackedWeight, dtype: torch.dtype) -> torch.Tensor:
    try:
        return weight.dequantized(dtype)
    except ValueError as error:
        raise ArgumentError("model", f"{weight.name!r} in {weight.path} cannot be read: {error}") from error
