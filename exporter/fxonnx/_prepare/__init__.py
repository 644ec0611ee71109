"""FX passes: turn the captured graph into a functional graph whose operators all have translations."""

from __future__ import annotations

from .decompose import REASON_KEY
from .graph_utils import find_attribute
from .mutations import LOST_UPDATES_KEY, Update, find_updates, report_changes, report_updates
from .patterns import PATTERNS, PatternContext, pattern_context
from .pipeline import Prepared, has_operators, least_default_opset, least_opset_of_program, prepare
from .sizes import same_shape, same_size
from .tensor_subclasses import unwrap_subclasses
from .weight_folding import DerivedWeight

__all__ = [
    "LOST_UPDATES_KEY",
    "PATTERNS",
    "REASON_KEY",
    "DerivedWeight",
    "PatternContext",
    "Prepared",
    "Update",
    "find_attribute",
    "find_updates",
    "has_operators",
    "least_default_opset",
    "least_opset_of_program",
    "pattern_context",
    "prepare",
    "report_changes",
    "report_updates",
    "same_shape",
    "same_size",
    "unwrap_subclasses",
]
