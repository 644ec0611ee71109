"""Functionalization: replace in-place ops and mutated views of the captured graph by pure operators."""

from __future__ import annotations

from .rewrite import Mutation, functionalize

__all__ = ["Mutation", "functionalize"]
