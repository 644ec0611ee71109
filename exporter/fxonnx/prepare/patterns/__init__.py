"""Operators written out by hand, recognized: each rule in a file of its own, all of them numerically neutral."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from ..splicing import drop_dead
from .flattened_linear import unflatten_linear
from .gelu import fuse_gelu
from .grouped_attention import group_attention
from .packed_attention import pack_attention
from .rms_norm import fuse_rms_norm
from .rotary import fuse_rotary, negate_sines
from .rsqrt import divide_by_root
from .slices import join_slices

__all__ = ["PATTERNS", "Pattern", "apply_patterns"]


@dataclass(frozen=True)
class Pattern:
    """A rule.

    Attributes:
        apply: Rewrites a functional graph in place and returns how often.
        since: The lowest opset that it is worth it for.
    """

    apply: Callable[[torch.fx.Graph], int]
    since: int = 0


PATTERNS: Mapping[str, Pattern] = MappingProxyType(
    {
        "rms_norm": Pattern(fuse_rms_norm),
        "rsqrt": Pattern(divide_by_root),
        "flattened_linear": Pattern(unflatten_linear),
        "gelu": Pattern(fuse_gelu),
        "grouped_attention": Pattern(group_attention),
        "rotary": Pattern(fuse_rotary, since=23),
        "packed_attention": Pattern(pack_attention, since=23),
        "rotary_sign": Pattern(negate_sines),
        "slices": Pattern(join_slices),
    }
)
"""Name to rule, in the order in which they are applied."""


def apply_patterns(graph: torch.fx.Graph, opset: int) -> dict[str, int]:
    """Applies all rules.

    Args:
        graph: A functional graph; changed in place. What is not read any more is erased.
        opset: Target opset.

    Returns:
        Name of each rule to how often it was applied.
    """
    found = {}
    for name, rule in PATTERNS.items():
        if opset >= rule.since:
            found[name] = rule.apply(graph)
            if found[name]:
                drop_dead(graph)
    return found
