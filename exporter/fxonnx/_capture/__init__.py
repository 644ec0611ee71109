"""Capture: nn.Module and example inputs to ExportedProgram, with the user's dim names and without side effects."""

from __future__ import annotations

from .capture import ALIASES_KEY, Capture, capture
from .constraints.constraint import Constraint, Limits, report_narrowed
from .questions.assumption import Assumption, Rung
from .questions.ladder import DataDependent

__all__ = [
    "ALIASES_KEY",
    "Assumption",
    "Capture",
    "Constraint",
    "DataDependent",
    "Limits",
    "Rung",
    "capture",
    "report_narrowed",
]
