"""Fuse adjacent slices of a tensor to one split: ``x[..., :n], x[..., n:]``."""

from __future__ import annotations

import operator
from typing import Any

import torch

from ..._provenance import copy_provenance
from ..sizes import same_size
from .matches import Matches
from .matching import bounds_of, value_of

__all__ = ["fuse_slices"]

aten = torch.ops.aten


def fuse_slices(graph: torch.fx.Graph) -> Matches:
    """Fuse slices that partition a tensor along an axis to one split."""
    groups: dict[tuple[Any, int], dict[tuple[int, int], list[torch.fx.Node]]] = {}
    for node in graph.find_nodes(op="call_function", target=aten.slice.Tensor):
        axis, first, last, step = bounds_of(node) or (0, 0, 0, 0)
        if step == 1 and first < last:
            groups.setdefault((node.args[0], axis), {}).setdefault((first, last), []).append(node)
    found = Matches()
    for (source, axis), slices in groups.items():
        bounds = sorted(slices)
        edges = [0, *(last for _, last in bounds)]
        covers = same_size(edges[-1], value_of(source).shape[axis])
        if len(bounds) < 2 or not covers or edges[:-1] != [first for first, _ in bounds]:
            continue
        found.fused.append(_replace_by_split(source, axis, [slices[bound] for bound in bounds]))
    return found


def _replace_by_split(source: torch.fx.Node, axis: int, pieces: list[list[torch.fx.Node]]) -> torch.fx.Node:
    """Replace the slices by one split before the first; each piece has the provenance of its first slice."""
    sizes = [value_of(same[0]).shape[axis] for same in pieces]
    first = min(same[0] for same in pieces)
    with first.graph.inserting_before(first):
        split = first.graph.call_function(aten.split_with_sizes.default, (source, sizes, axis))
        split.meta["val"] = [same[0].meta["val"] for same in pieces]
        copy_provenance(split, first)
        for index, same in enumerate(pieces):
            item = first.graph.call_function(operator.getitem, (split, index))
            item.meta["val"] = same[0].meta["val"]
            copy_provenance(item, same[0])
            for node in same:
                node.replace_all_uses_with(item)
    return split
