"""Reports on an export: the graph as text, stage timings, an HTML page and a Markdown page."""

from __future__ import annotations

from .artifacts import save_exported_program
from .printing import graph_text, timing_table
from .reporting import Report, reporting

__all__ = ["Report", "graph_text", "reporting", "save_exported_program", "timing_table"]
