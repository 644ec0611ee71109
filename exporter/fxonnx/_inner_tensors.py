"""Inner tensors of wrapper subclasses, such as the quantized tensors of torchao: ``weight.qdata``, ``weight.scale``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fxonnx_translations._torch_compat import is_traceable_wrapper_subclass

__all__ = ["has_wrapped_weights", "inner_tensors", "is_wrapper", "rewrapped", "unwrapped"]


def is_wrapper(value: Any) -> bool:
    """Whether a value is a tensor subclass that holds other tensors and can be flattened to them."""
    return type(value) not in (torch.Tensor, torch.nn.Parameter) and is_traceable_wrapper_subclass(value)


def inner_tensors(name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
    """Yield the inner tensors of a wrapper subclass, named ``<name>.<attribute>``; any other value as it is.

    Those of a parameter are parameters.
    """
    if not is_wrapper(tensor):
        yield name, tensor
        return
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    attributes, _context = tensor.__tensor_flatten__()
    for attribute in attributes:
        for inner_name, inner in inner_tensors(f"{name}.{attribute}", getattr(tensor, attribute)):
            wrap = is_parameter and not isinstance(inner, torch.nn.Parameter)
            yield inner_name, torch.nn.Parameter(inner.detach(), requires_grad=False) if wrap else inner


def unwrapped(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state_dict with the inner tensors of wrapper subclasses in their place."""
    return {inner: value for name, tensor in tensors.items() for inner, value in inner_tensors(name, tensor)}


def rewrapped(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors for a module's names: inner tensors in instances of the subclasses that its weights have."""
    remaining, made = dict(tensors), {}
    for name, weight in (*module.named_parameters(), *module.named_buffers()):
        if is_wrapper(weight) and any(inner in tensors for inner, _ in inner_tensors(name, weight)):
            made[name] = _rewrapped(name, weight, remaining)
    return {**remaining, **made}


def _rewrapped(name: str, weight: Any, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    if not is_wrapper(weight):
        return tensors.pop(name, weight)
    attributes, context = weight.__tensor_flatten__()
    inner = {
        attribute: _rewrapped(f"{name}.{attribute}", getattr(weight, attribute), tensors) for attribute in attributes
    }
    made: torch.Tensor = type(weight).__tensor_unflatten__(inner, context, weight.size(), weight.stride())
    return made


def has_wrapped_weights(model: Any) -> bool:
    """Whether a module or an ExportedProgram has weights that are wrapper subclasses."""
    if isinstance(model, torch.nn.Module):
        return any(map(is_wrapper, (*model.parameters(), *model.buffers())))
    return isinstance(model, torch.export.ExportedProgram) and any(map(is_wrapper, model.state_dict.values()))
