"""Whether a model has scripted modules or functions."""

from __future__ import annotations

from typing import Any

import torch

from fxonnx_translations._torch_compat import has_scripted_functions

__all__ = ["applies_to_model"]


def applies_to_model(model: Any) -> bool:
    """Whether a model is scripted, has scripted modules, or may call a scripted function.

    Args:
        model: A module, or a scripted function.
    """
    if has_scripted_functions() or not isinstance(model, torch.nn.Module):
        return True
    return any(isinstance(module, torch.jit.ScriptModule) for module in model.modules())
