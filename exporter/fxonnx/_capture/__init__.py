"""Capture: nn.Module and example inputs to ExportedProgram, with the user's dim names and without side effects."""

from __future__ import annotations

from .capture import capture
from .constraints.constraint import Constraint, SizeLimits, report_narrowed
from .data_dependence.assumption import Assumption, AssumptionKind
from .plan import ALIASES_KEY, Capture

__all__ = [
    "ALIASES_KEY",
    "Assumption",
    "AssumptionKind",
    "Capture",
    "Constraint",
    "SizeLimits",
    "capture",
    "report_narrowed",
]
