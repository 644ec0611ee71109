"""First difference: where the values of a model in ONNX Runtime begin to differ from the captured program's."""

from __future__ import annotations

from .location import compare_values
from .reference import RuntimeValues

__all__ = [
    "RuntimeValues",
    "compare_values",
]
