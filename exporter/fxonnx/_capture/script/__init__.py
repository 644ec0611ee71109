"""TorchScript: scripted functions and modules, run node by node in Python so that torch.export sees what they do."""

from __future__ import annotations

from .modules import as_modules, call_in_python

__all__ = ["as_modules", "call_in_python"]
