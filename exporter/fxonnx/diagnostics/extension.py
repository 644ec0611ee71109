"""What the core calls of the add-on for diagnostics, on request of the user."""

from __future__ import annotations

from .differences import RuntimeValues, compare_values

__all__ = ["RuntimeValues", "compare_values"]
