"""FX to FX: from the captured graph to a functional graph whose operators all have translations."""

from __future__ import annotations

from .decompose import REASON_KEY
from .derive import Derived
from .pipeline import Prepared, prepare, warn_of_lost_updates

__all__ = ["REASON_KEY", "Derived", "Prepared", "prepare", "warn_of_lost_updates"]
