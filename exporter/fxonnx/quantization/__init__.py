"""Weight-only quantization: linear layers and embedding tables stored as integers of 4 or 8 bits."""

from __future__ import annotations

from .config import QuantizeConfig, WeightDtype, read_quantize

__all__ = ["QuantizeConfig", "WeightDtype", "read_quantize"]
