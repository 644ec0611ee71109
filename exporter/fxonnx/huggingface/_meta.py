"""Models whose weights stay in the checkpoint: parameters on the meta device, computed buffers with values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

__all__ = ["without_weights"]


def without_weights(directory: Path, config: Any, loader: Any) -> Any:
    """Make a model without the values of its parameters.

    Args:
        directory: The checkpoint.
        config: Its configuration.
        loader: The class of the model, or an auto class.

    Returns:
        The model in evaluation mode; None if the checkpoint does not have all weights in safetensors under the names
        of the model, or a buffer has values that transformers does not compute again.
    """
    stored = _stored_names(directory)
    if not stored or getattr(config, "quantization_config", None) is not None:
        return None
    make = loader.from_config if hasattr(loader, "_model_mapping") else loader._from_config
    with torch.device("meta"):
        model = make(config, dtype=torch.float32).eval()
    computed = {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    buffers = {name for name, _ in model.named_buffers()} - computed
    if not {name for name, _ in model.named_parameters()} | buffers <= stored or not _compute_buffers(model):
        return None
    return model


def _stored_names(directory: Path) -> set[str]:
    """Names of the tensors in the safetensors files of a checkpoint."""
    names: set[str] = set()
    try:
        for file in directory.glob("*.safetensors"):
            with safe_open(file, framework="pt") as tensors:
                names.update(tensors.keys())
    except SafetensorError:
        return set()
    return names


def _compute_buffers(model: Any) -> bool:
    """Compute the buffers that no checkpoint has, and report whether all of them have been."""
    for module in model.modules():
        names = [name for name in module._non_persistent_buffers_set if module._buffers[name] is not None]
        for name in names:
            module._buffers[name] = _unset(module._buffers[name])
        if names:
            model._init_weights(module)
        if any(torch.equal(_bits(module._buffers[name]), _bits(_unset(module._buffers[name]))) for name in names):
            return False
    return True


def _unset(buffer: torch.Tensor) -> torch.Tensor:
    """A tensor on the CPU of values that no buffer has."""
    value = float("nan") if buffer.is_floating_point() else buffer.dtype == torch.bool or torch.iinfo(buffer.dtype).min
    return torch.full(buffer.shape, value, dtype=buffer.dtype, device="cpu")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """NaN as a number that is equal to itself."""
    return tensor.nan_to_num(nan=-1.0) if tensor.is_floating_point() else tensor
