"""Fuse grouped-query attention that repeats keys and values for each query head."""

from __future__ import annotations

from typing import Any

import torch

from .matching import VIEWS, as_call, dims_of

__all__ = ["fuse_grouped_attention", "repeated_source"]

aten = torch.ops.aten


def fuse_grouped_attention(graph: torch.fx.Graph) -> int:
    """Replace the repetition of keys and values by ``enable_gqa=True`` of the attention.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        The number of rewritten attentions.
    """
    found = 0
    for node in graph.find_nodes(op="call_function", target=aten.scaled_dot_product_attention.default):
        query, key, value, *rest = node.args
        if node.kwargs.get("enable_gqa") or len(rest) > 3:
            continue
        own = [repeated_source(operand, query) for operand in (key, value)]
        if own[0] is None or own[1] is None or dims_of(own[0])[1] != dims_of(own[1])[1]:  # type: ignore[index]
            continue
        node.args = (query, *own, *rest)
        node.kwargs = {**node.kwargs, "enable_gqa": True}
        found += 1
    return found


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
