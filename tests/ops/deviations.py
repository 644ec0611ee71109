"""Where an entry of the operator database deviates from the default: random results, tolerances, expected failures."""

from __future__ import annotations

__all__ = ["UNDEFINED"]

UNDEFINED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
"""Entries whose results have values that mean nothing."""
