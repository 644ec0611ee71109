"""The functions of this add-on that the core calls on request of the user."""

from __future__ import annotations

from .differences import RuntimeValues, compare_values
from .printing import graph_text, save_exported_program, timing_table
from .reporting import reporting

__all__ = ["RuntimeValues", "compare_values", "graph_text", "reporting", "save_exported_program", "timing_table"]
