"""nn.Module and example inputs to ExportedProgram: torch.export, with the user's names and an untouched model."""

from __future__ import annotations

from .capture import ALIASES_KEY, Capture, capture
from .constraints.constraint import CONSTRAINTS_KEY, Constraint, Limits, report_narrowed

__all__ = ["ALIASES_KEY", "CONSTRAINTS_KEY", "Capture", "Constraint", "Limits", "capture", "report_narrowed"]
