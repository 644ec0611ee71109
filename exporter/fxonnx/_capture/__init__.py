"""Capture: nn.Module and example inputs to ExportedProgram, with the user's dim names and without side effects."""

from __future__ import annotations

from .capture import capture
from .constraints.constraint import Constraint, SizeLimits, report_narrowed
from .data_dependence.assumption import Assumption, AssumptionKind
from .data_dependence.data_dependent_guards import DataDependent
from .result import ALIASES_KEY, Capture

__all__ = [
    "ALIASES_KEY",
    "Assumption",
    "AssumptionKind",
    "Capture",
    "Constraint",
    "DataDependent",
    "SizeLimits",
    "capture",
    "report_narrowed",
]
