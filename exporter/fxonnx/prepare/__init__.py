"""FX to FX: from the captured graph to a functional graph whose operators all have translations."""

from __future__ import annotations

from .derive import Derived
from .pipeline import Prepared, prepare

__all__ = ["Derived", "Prepared", "prepare"]
