"""Grouped-query attention whose keys and values are repeated for each query head first."""

from __future__ import annotations

from typing import Any

import torch

from .matching import VIEWS, called, dims_of

__all__ = ["group_attention"]

aten = torch.ops.aten


def group_attention(graph: torch.fx.Graph) -> int:
    """Leaves the repetition to the attention, which has a form for it.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        How many attentions were rewritten.
    """
    found = 0
    for node in graph.find_nodes(op="call_function", target=aten.scaled_dot_product_attention.default):
        query, key, value, *rest = node.args
        if node.kwargs.get("enable_gqa") or len(rest) > 3:
            continue
        own = [_repeated(operand, query) for operand in (key, value)]
        if own[0] is None or own[1] is None or dims_of(own[0])[1] != dims_of(own[1])[1]:  # type: ignore[index]
            continue
        node.args = (query, *own, *rest)
        node.kwargs = {**node.kwargs, "enable_gqa": True}
        found += 1
    return found


def _repeated(operand: Any, query: Any) -> torch.fx.Node | None:
    """What is repeated along the heads, each in a row, to as many as the query has; None if it is something else."""
    joined = called(operand, *VIEWS)
    wide = called(joined.args[0], aten.expand.default) if joined is not None else None
    inserted = called(wide.args[0], aten.unsqueeze.default) if wide is not None else None
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
