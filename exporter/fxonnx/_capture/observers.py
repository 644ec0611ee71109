"""Fake quantization modules whose observers are enabled: their scales depend on the inputs."""

from __future__ import annotations

import torch

from ..errors import ArgumentError

__all__ = ["reject_enabled_observers"]


def reject_enabled_observers(model: torch.nn.Module) -> None:
    """Reject a model prepared for quantization-aware training that still observes its activations.

    Raises:
        ArgumentError: If a fake quantization module updates its scale in each call.
    """
    enabled = [name for name, module in model.named_modules() if _is_observing(module)]
    if enabled:
        names = ", ".join(map(repr, enabled[:3])) + (", ..." if len(enabled) > 3 else "")
        package = type(model.get_submodule(enabled[0])).__module__.partition(".")[0]
        namespace = "torchao.quantization.pt2e" if package == "torchao" else "torch.ao.quantization"
        raise ArgumentError(
            "model",
            f"the observers of {names} are enabled: each call updates the scales of the fake quantization",
            hint=f"call model.apply({namespace}.disable_observer) before the export",
        )


def _is_observing(module: torch.nn.Module) -> bool:
    flag = module._buffers.get("observer_enabled")
    if flag is None or "fake_quant_enabled" not in module._buffers or not hasattr(module, "disable_observer"):
        return False
    return flag.numel() == 1 and not flag.is_meta and bool(flag.item())
