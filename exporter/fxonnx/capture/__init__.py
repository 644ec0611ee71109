"""nn.Module and example inputs to ExportedProgram: torch.export, with the user's names and an untouched model."""

from __future__ import annotations

from .captured import Capture, capture

__all__ = ["Capture", "capture"]
