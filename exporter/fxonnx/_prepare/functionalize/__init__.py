"""From the captured graph, which writes to memory, to a graph of values only."""

from __future__ import annotations

from .rewrite import Mutation, functionalize

__all__ = ["Mutation", "functionalize"]
