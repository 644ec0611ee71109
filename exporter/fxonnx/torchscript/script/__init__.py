"""TorchScript: run scripted functions in Python, and interpret other scripts, so that torch.export can trace them."""

from __future__ import annotations

from .modules import interpret_function, scripted_as_python

__all__ = ["interpret_function", "scripted_as_python"]
