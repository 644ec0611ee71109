"""Weights of a quantized checkpoint as floating-point numbers: transformers would require the method's library."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from .._program.checkpoints import StoredTensor, read_weight_sources
from .._warnings import warn_user
from ..errors import ArgumentError
from ..quantization.packed_weights import PackedWeight, parts_of
from ..quantization.scaled_weights import CodedWeight, ScaledWeight, scales_of_weights

__all__ = ["check_quantization", "check_unused", "dequantized_checkpoint"]


_OF_ACTIVATIONS = re.compile(r"\.(input|output|q|k|v)_(scale|zero_point)$")
"""Names of the scales of activations and caches, which stay floating-point numbers."""


def dequantized_checkpoint(directory: Path, config: Any, dtype: torch.dtype) -> dict[str, torch.Tensor] | None:
    """Read all tensors of a quantized checkpoint; quantized weights are dequantized.

    Args:
        directory: The directory of the checkpoint.
        config: The configuration of the model, which is not one of a quantized model afterwards.
        dtype: dtype of the quantized weights.

    Returns:
        The tensors by name; None if the checkpoint has no weights in a form that is read here.

    Raises:
        ArgumentError: If a weight cannot be read.
    """
    if next(directory.glob("*.safetensors"), None) is None:
        return None
    try:
        found = read_weight_sources(directory)
    except ArgumentError as error:
        raise ArgumentError("model", f"{directory} cannot be loaded: {error.message}") from error
    kinds = (PackedWeight, ScaledWeight, CodedWeight)
    quantized = {name: tensor for name, tensor in found.items() if isinstance(tensor, kinds)}
    if not quantized:
        return None
    # transformers would require the library of the method.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    parts = {part for weight in quantized.values() if isinstance(weight, PackedWeight) for part in parts_of(weight)}
    parts |= {part for weight in quantized.values() if not isinstance(weight, PackedWeight) for part in weight.parts}
    _warn_of_bytes([weight for weight in quantized.values() if isinstance(weight, CodedWeight)], dtype)
    state = {
        name: tensor.load() if isinstance(tensor, StoredTensor) else tensor
        for name, tensor in found.items()
        if name not in parts
        and _OF_ACTIVATIONS.search(name) is None
        and isinstance(tensor, (StoredTensor, torch.Tensor))
    }
    return {**state, **{name: _dequantized(weight, dtype) for name, weight in quantized.items()}}


def _warn_of_bytes(weights: Sequence[CodedWeight], dtype: torch.dtype) -> None:
    """Warn that weights become larger, since ONNX Runtime cannot multiply by their codes."""
    forms = ", ".join(dict.fromkeys(weight.form for weight in weights))
    if forms:
        before, after = (sum(sizes) / 2**20 for sizes in zip(*(_sizes(each, dtype) for each in weights), strict=True))
        warn_user(
            f"the weights in {forms} are dequantized, since ONNX Runtime has no operator for them: {before:.1f} MiB "
            f"become {after:.1f} MiB of {dtype}, unless the export rounds them again to 4 or 8 bits"
        )


def _sizes(weight: CodedWeight, dtype: torch.dtype) -> tuple[int, int]:
    return weight.bytes, math.prod(weight.shape) * dtype.itemsize


def _dequantized(weight: PackedWeight | ScaledWeight | CodedWeight, dtype: torch.dtype) -> torch.Tensor:
    try:
        return weight.dequantized(dtype)
    except ValueError as error:
        raise ArgumentError("model", f"{weight.name!r} in {weight.path} cannot be read: {error}") from error


def check_unused(directory: Path, unused: Iterable[str]) -> None:
    """Reject a checkpoint whose weights are quantized in a form that the loaded model has ignored.

    Args:
        directory: The directory of the checkpoint.
        unused: Names of the tensors that the model does not use.

    Raises:
        ArgumentError: If one of them belongs to a quantized weight.
    """
    found = scales_of_weights(unused)
    if found:
        others = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise ArgumentError(
            "model",
            f"the weights in {directory} are quantized in a form that is not supported: {found[0]}{others} is not used",
            hint="dequantize the checkpoint with the library that has quantized it, and save the model again",
        )


def check_quantization(model: Any) -> None:
    """Reject a model of bitsandbytes, or whose quantization transformers has ignored while loading it.

    Args:
        model: The model.

    Raises:
        ArgumentError: If it does.
    """
    layer = next((each for each in model.modules() if type(each).__module__.startswith("bitsandbytes.")), None)
    if layer is not None:
        raise ArgumentError(
            "model",
            f"it has weights that bitsandbytes has quantized, in a {type(layer).__name__}",
            hint="pass the directory that model.save_pretrained writes, or the result of model.dequantize()",
        )
    found = getattr(model.config, "quantization_config", None)
    if found is None or getattr(model, "hf_quantizer", None) is not None:
        return
    method = found.get("quant_method") if isinstance(found, dict) else getattr(found, "quant_method", None)
    raise ArgumentError(
        "model",
        f"its configuration has weights quantized by {method}, which transformers has loaded as they are stored",
        hint="pass the directory of the checkpoint, or a model without config.quantization_config if its weights are "
        "not quantized",
    )
