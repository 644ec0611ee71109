"""TorchScript: interpret scripted functions and modules node by node, so that torch.export can trace them."""

from __future__ import annotations

from .modules import interpret_function, scripted_as_python

__all__ = ["interpret_function", "scripted_as_python"]
