"""nn.Module and example inputs to ExportedProgram: torch.export, with the user's names and an untouched model."""

from __future__ import annotations

from .capture import ALIASES_KEY, Capture, capture
from .constraints.constraint import Constraint, Limits, report_narrowed

__all__ = ["ALIASES_KEY", "Capture", "Constraint", "Limits", "capture", "report_narrowed"]
