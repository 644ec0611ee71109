"""First difference: where the values of a model in ONNX Runtime begin to differ from those of the captured program."""

from __future__ import annotations

from .comparison import Comparison, ValueDifference, ValueStatistics
from .location import compare_values
from .matching import Tolerance
from .reference import written_parameters
from .runtime_values import RuntimeValues

__all__ = [
    "Comparison",
    "RuntimeValues",
    "Tolerance",
    "ValueDifference",
    "ValueStatistics",
    "compare_values",
    "written_parameters",
]
