"""What an export made, for people: the graph as text, and a page about the export."""

from __future__ import annotations

from .artifacts import dump, reported, stage_table
from .printing import graph_text

__all__ = ["dump", "graph_text", "reported", "stage_table"]
