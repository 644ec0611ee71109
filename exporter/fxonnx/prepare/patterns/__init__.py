"""Operators written out by hand, recognized: each rule in a file of its own, all of them numerically neutral."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from .flattened_linear import unflatten_linear
from .gelu import fuse_gelu
from .rms_norm import fuse_rms_norm
from .rsqrt import divide_by_root

__all__ = ["PATTERNS", "Pattern", "apply_patterns"]

Pattern = Callable[[torch.fx.Graph], int]
"""A rule: rewrites a functional graph in place and returns how often."""

PATTERNS: Mapping[str, Pattern] = MappingProxyType(
    {"rms_norm": fuse_rms_norm, "rsqrt": divide_by_root, "flattened_linear": unflatten_linear, "gelu": fuse_gelu}
)
"""Name to rule, in the order in which they are applied."""


def apply_patterns(graph: torch.fx.Graph) -> dict[str, int]:
    """Applies all rules.

    Args:
        graph: A functional graph; changed in place. What is not read any more is left to the caller.

    Returns:
        Name of each rule to how often it was applied.
    """
    return {name: rule(graph) for name, rule in PATTERNS.items()}
