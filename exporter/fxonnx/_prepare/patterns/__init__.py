"""Operators written out by hand, recognized: each rule in a file of its own, all of them numerically neutral."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from ..graph_utils import drop_dead
from .attention import fuse_attention
from .flatten_token_matmuls import flatten_tokens
from .flattened_linear import unflatten_linear
from .gelu import fuse_gelu
from .grouped_attention import group_attention
from .layer_norm import fuse_layer_norm
from .packed_attention import pack_attention
from .rms_norm import fuse_rms_norm
from .rotary import fuse_rotary, negate_sines, rotate_first
from .rsqrt import divide_by_root
from .slices_to_split import join_slices

__all__ = ["PATTERNS", "Pattern", "apply_patterns"]


@dataclass(frozen=True)
class Pattern:
    """A rule.

    Attributes:
        apply: Rewrites a functional graph in place and returns how often.
        since: The lowest opset that it is worth it for.
        target: The only target that it is worth it for, if it is not for all.
    """

    apply: Callable[[torch.fx.Graph], int]
    since: int = 0
    target: str | None = None

    def is_for(self, opset: int, target: str | None) -> bool:
        """Whether it is applied when nothing is said about it."""
        return opset >= self.since and self.target in (None, target)


PATTERNS: Mapping[str, Pattern] = MappingProxyType(
    {
        "layer_norm": Pattern(fuse_layer_norm),
        "rms_norm": Pattern(fuse_rms_norm),
        "rsqrt": Pattern(divide_by_root),
        "flattened_linear": Pattern(unflatten_linear),
        "gelu": Pattern(fuse_gelu),
        "attention": Pattern(fuse_attention, since=23),
        "grouped_attention": Pattern(group_attention),
        "rotary": Pattern(fuse_rotary, since=23),
        "packed_attention": Pattern(pack_attention, since=23),
        "rotary_layout": Pattern(rotate_first),
        "rotary_sign": Pattern(negate_sines),
        "slices": Pattern(join_slices),
        "flat_tokens": Pattern(flatten_tokens, target="onnxruntime"),
    }
)
"""Name to rule, in the order in which they are applied."""


def apply_patterns(graph: torch.fx.Graph, rules: Collection[str]) -> dict[str, int]:
    """Applies rules.

    Args:
        graph: A functional graph; changed in place. What is not read any more is erased.
        rules: Names of rules, in the order of ``PATTERNS``.

    Returns:
        Name of each to how often it was applied.
    """
    found = {}
    for name in rules:
        found[name] = PATTERNS[name].apply(graph)
        if found[name]:
            drop_dead(graph)
    return found
