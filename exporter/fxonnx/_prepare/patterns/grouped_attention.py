"""Fuse grouped-query attention that repeats keys and values for each query head."""

from __future__ import annotations

from typing import Any

import torch

from .matches import Matches, Mismatch
from .matching import VIEWS, as_call, dims_of

__all__ = ["fuse_grouped_attention", "repeated_source"]

aten = torch.ops.aten

_REPETITIONS = (aten.expand.default, aten.repeat.default, aten.repeat_interleave.self_int)


def fuse_grouped_attention(graph: torch.fx.Graph) -> Matches:
    """Replace the repetition of keys and values by ``enable_gqa=True`` of the attention.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        The rewritten attentions and near misses.
    """
    found = Matches()
    for node in graph.find_nodes(op="call_function", target=aten.scaled_dot_product_attention.default):
        own = found.attempt(node, _match, _repeats)
        if own is None:
            continue
        query, _, _, *rest = node.args
        node.args = (query, *own, *rest)
        node.kwargs = {**node.kwargs, "enable_gqa": True}
        found.fused.append(node)
    return found


def _repeats(node: torch.fx.Node) -> bool:
    """Whether keys or values have more heads than a tensor from which only repetitions and views compute them."""
    return not node.kwargs.get("enable_gqa") and any(_has_fewer_heads(operand) for operand in node.args[1:3])


def _has_fewer_heads(operand: Any) -> bool:
    node, is_repeated = operand, False
    while as_call(node, *VIEWS, *_REPETITIONS, aten.unsqueeze.default, aten.clone.default) is not None:
        is_repeated = is_repeated or as_call(node, *_REPETITIONS) is not None
        node = node.args[0]
    source, dims = dims_of(node), dims_of(operand)
    if not is_repeated or source is None or dims is None or len(source) != 4 or len(dims) != 4:
        return False
    return isinstance(source[1], int) and isinstance(dims[1], int) and source[1] < dims[1]


def _match(node: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node]:
    """Match an attention with repeated keys and values; returns keys and values before the repetition."""
    query, key, value, *rest = node.args
    if node.kwargs.get("enable_gqa") or len(rest) > 3:
        raise Mismatch("the attention is a grouped one")
    own = [repeated_source(operand, query) for operand in (key, value)]
    for name, source in zip(("keys", "values"), own, strict=True):
        if source is None:
            raise Mismatch(f"the {name} are not repeated by expand and reshape, each head in succession")
    if dims_of(own[0])[1] != dims_of(own[1])[1]:  # type: ignore[index]
        raise Mismatch("keys and values have different numbers of heads")
    return own[0], own[1]  # type: ignore[return-value]


def repeated_source(operand: Any, query: Any) -> torch.fx.Node | None:
    """Match a tensor whose heads are repeated consecutively to the query's number of heads; returns the source."""
    joined = as_call(operand, *VIEWS)
    wide = as_call(joined.args[0], aten.expand.default) if joined is not None else None
    inserted = as_call(wide.args[0], aten.unsqueeze.default) if wide is not None else None
    if joined is None or wide is None or inserted is None or inserted.args[1] != 2:
        return None
    source: Any = inserted.args[0]
    before, repeated, after, heads = dims_of(source), dims_of(wide), dims_of(joined), dims_of(query)
    if before is None or repeated is None or after is None or heads is None or len(before) != 4 or len(heads) != 4:
        return None
    if not isinstance(before[1], int) or not isinstance(heads[1], int) or len(repeated) != 5 or len(after) != 4:
        return None
    same = [*map(str, before[:2]), *map(str, before[2:])] == [*map(str, repeated[:2]), *map(str, repeated[3:])]
    kept = [str(before[0]), str(heads[1]), *map(str, before[2:])] == list(map(str, after))
    return source if same and kept and before[1] * repeated[2] == heads[1] else None
