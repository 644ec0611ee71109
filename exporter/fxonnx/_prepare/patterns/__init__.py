"""Fusion patterns: replace decomposed subgraphs by one operator. All are value-preserving."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from ..graph_utils import eliminate_dead_code
from .attention import fuse_attention, fuse_grouped_attention
from .context import PatternContext, pattern_context
from .flatten_token_matmuls import flatten_token_matmuls
from .formula import Matches
from .group_query_attention import fuse_group_query_attention
from .mixture_of_experts import fuse_mixture_of_experts
from .norms import fuse_layer_norm, fuse_rms_norm, fuse_skip_norms, narrow_norms
from .packed_attention import fuse_packed_attention
from .pointwise import fuse_gelu, fuse_softmax, replace_rsqrt, unflatten_linears
from .rotary import fuse_rotary
from .unsorted_sequences import pack_unsorted

__all__ = ["PATTERNS", "Matches", "Pattern", "PatternContext", "apply_patterns", "pattern_context"]


@dataclass(frozen=True)
class Pattern:
    """A fusion pattern.

    Attributes:
        apply: Rewrites a functional graph in place and returns the matches and near misses.
        since: The lowest opset for which it is enabled by default.
        for_all: Whether it is enabled by default for every target; otherwise by the profiles that name it.
        reads_context: Whether ``apply`` takes a ``PatternContext`` as well.
        supersedes: Patterns whose near misses are none if this pattern fuses the nodes.
    """

    apply: Callable[..., Matches]
    since: int = 0
    for_all: bool = True
    reads_context: bool = False
    supersedes: tuple[str, ...] = ()


PATTERNS: Mapping[str, Pattern] = MappingProxyType(
    {
        "mixture_of_experts": Pattern(fuse_mixture_of_experts, for_all=False, reads_context=True),
        "layer_norm": Pattern(fuse_layer_norm),
        "rms_norm": Pattern(fuse_rms_norm),
        "wide_norms": Pattern(narrow_norms),
        "rsqrt": Pattern(replace_rsqrt),
        "flattened_linear": Pattern(unflatten_linears),
        "gelu": Pattern(fuse_gelu),
        "softmax": Pattern(fuse_softmax),
        "attention": Pattern(fuse_attention, since=23),
        "grouped_attention": Pattern(fuse_grouped_attention),
        "rotary": Pattern(fuse_rotary, since=23),
        "group_query_attention": Pattern(
            fuse_group_query_attention,
            since=23,
            for_all=False,
            reads_context=True,
            supersedes=("attention", "grouped_attention"),
        ),
        "packed_attention": Pattern(fuse_packed_attention, since=23),
        "unsorted_sequences": Pattern(pack_unsorted),
        "skip_norms": Pattern(fuse_skip_norms, for_all=False, reads_context=True),
        "flat_tokens": Pattern(flatten_token_matmuls, for_all=False),
    }
)
"""Name to pattern, in the order of application."""


def apply_patterns(
    graph: torch.fx.Graph, names: Collection[str], context: Callable[[], PatternContext] = PatternContext
) -> dict[str, Matches]:
    """Apply fusion patterns, with dead code elimination after each that matched.

    Args:
        graph: A functional graph; changed in place.
        names: Names of the patterns to apply, in the order of ``PATTERNS``.
        context: Collects the facts that some patterns read.

    Returns:
        Name of each pattern to its matches and near misses.
    """
    results: dict[str, Matches] = {}
    for name in names:
        pattern = PATTERNS[name]
        facts = (context(),) if pattern.reads_context else ()
        results[name] = found = pattern.apply(graph, *facts)
        if found.fused:
            eliminate_dead_code(graph)
            _drop_superseded(graph, [results[other] for other in pattern.supersedes if other in results])
    return results


def _drop_superseded(graph: torch.fx.Graph, results: Collection[Matches]) -> None:
    """Drop the near misses whose nodes have been fused."""
    if any(matches.missed for matches in results):
        remaining = set(graph.nodes)
        for matches in results:
            matches.missed = {node: reason for node, reason in matches.missed.items() if node in remaining}
