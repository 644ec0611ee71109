"""Where an entry of the operator database deviates from the default: undefined results, tolerances, expected failures."""

from __future__ import annotations

from .limits import FAILURES, LOOSER, Failure
from .running import Tolerance

__all__ = ["UNDEFINED", "expected_failure", "tolerance"]

UNDEFINED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
"""Entries whose results have undefined values."""


def tolerance(entry: str, dtype: str) -> Tolerance | None:
    """Return the tolerance of an entry's floats, or None for the default."""
    for row in LOOSER:
        if entry in row.entries and dtype in row.dtypes:
            return Tolerance(row.rtol, row.atol)
    return None


def expected_failure(entry: str, dtype: str) -> Failure | None:
    """Why some samples of an entry are known not to be right, or None."""
    return next((row for row in FAILURES if row.holds(entry, dtype)), None)
