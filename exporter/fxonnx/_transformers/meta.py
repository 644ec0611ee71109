"""Models whose weights stay in the checkpoint: parameters on the meta device, computed buffers with values."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from .core import scales_of_weights

__all__ = ["compute_buffers", "has_weights", "input_device", "model_on_meta", "runnable", "runs", "without_weights"]


def has_weights(model: torch.nn.Module) -> bool:
    """Whether the parameters of a model have values, instead of being on the meta device."""
    return not any(parameter.is_meta for parameter in model.parameters())


def runnable(model: Any) -> Any:
    """The model, or one without any values, of which a call has the shapes only."""
    return model if has_weights(model) else copy.deepcopy(model).to("meta")


def runs(model: Any) -> bool:
    """Whether a decoder without weights can be called: some operators require values, or other types on that device."""
    try:
        with torch.no_grad():
            runnable(model)(input_ids=torch.ones(1, 1, dtype=torch.int64, device="meta"))
    except (RuntimeError, NotImplementedError):
        return False
    return True


def input_device(model: Any) -> torch.device:
    """The device of a model's example inputs, which have values even if its parameters have none."""
    return torch.device(model.device) if has_weights(model) else torch.device("cpu")


def model_on_meta(config: Any, loader: Any, dtype: torch.dtype) -> Any:
    """Make a model without any values."""
    make = loader.from_config if hasattr(loader, "_model_mapping") else loader._from_config
    with torch.device("meta"):
        return make(config, dtype=dtype)


def without_weights(directory: Path, config: Any, loader: Any, dtype: torch.dtype = torch.float32) -> Any:
    """Make a model without the values of its parameters.

    Returns:
        The model in evaluation mode; None if the checkpoint does not have all weights in safetensors under the names
        of the model, a buffer has values that transformers does not compute again, or some modules keep float32.
    """
    stored = _stored_shapes(directory)
    if not stored or getattr(config, "quantization_config", None) is not None:
        return None
    model = model_on_meta(config, loader, dtype).eval()
    if dtype != torch.float32 and (model._keep_in_fp32_modules or model._keep_in_fp32_modules_strict):
        return None
    computed = {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    needed = {
        name: list(tensor.shape)
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if name not in computed
    }
    # Loading explains what is missing, and reads weights with scales.
    if any(stored.get(name) != shape for name, shape in needed.items()) or scales_of_weights(stored.keys() - needed):
        return None
    return model if compute_buffers(model) else None


def _stored_shapes(directory: Path) -> dict[str, list[int]]:
    """Names and shapes of the tensors in the safetensors files of a checkpoint; empty if a file cannot be read."""
    shapes: dict[str, list[int]] = {}
    try:
        for file in directory.glob("*.safetensors"):
            with safe_open(file, framework="pt") as tensors:
                shapes |= {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
    except SafetensorError:
        return {}
    return shapes


def compute_buffers(model: Any) -> bool:
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
