"""Reports about an export: the graph as text, stage timings, and a Markdown page."""

from __future__ import annotations

from .artifacts import save_exported_program
from .page import reporting
from .printing import graph_text, timing_table

__all__ = ["graph_text", "reporting", "save_exported_program", "timing_table"]
