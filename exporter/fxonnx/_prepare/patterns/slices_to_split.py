"""Slices of a tensor that lie side by side: ``x[..., :n], x[..., n:]``."""

from __future__ import annotations

import operator
from typing import Any

import torch

from ..._provenance import copy_provenance
from .matching import dims_of

__all__ = ["join_slices"]

aten = torch.ops.aten


def join_slices(graph: torch.fx.Graph) -> int:
    """Makes one split of slices that take a tensor apart along an axis and leave nothing of it out.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        How many splits were made.
    """
    groups: dict[tuple[Any, int], dict[tuple[int, int], list[torch.fx.Node]]] = {}
    for node in graph.find_nodes(op="call_function", target=aten.slice.Tensor):
        place = _place(node)
        if place is not None:
            axis, first, last = place
            groups.setdefault((node.args[0], axis), {}).setdefault((first, last), []).append(node)
    found = 0
    for (source, axis), slices in groups.items():
        bounds = sorted(slices)
        size = dims_of(source)[axis]  # type: ignore[index]
        edges = [0, *(last for _, last in bounds)]
        if len(bounds) < 2 or edges[-1] != size or edges[:-1] != [first for first, _ in bounds]:
            continue
        _split(source, axis, [slices[bound] for bound in bounds])
        found += 1
    return found


def _place(node: torch.fx.Node) -> tuple[int, int, int] | None:
    """The axis of a slice, where it begins and where it ends."""
    given: list[Any] = [*node.args, *(0, None, None, 1)[len(node.args) - 1 :]]
    source, axis, *bounds, step = given
    dims = dims_of(source)
    if node.kwargs or dims is None or not isinstance(axis, int) or step != 1:
        return None
    size = dims[axis]
    bounds = [default if bound is None else bound for bound, default in zip(bounds, (0, size), strict=True)]
    if not all(isinstance(bound, int) for bound in (size, *bounds)):
        return None
    first, last = (min(max(bound + size if bound < 0 else bound, 0), size) for bound in bounds)
    return (axis % len(dims), first, last) if first < last else None


def _split(source: torch.fx.Node, axis: int, pieces: list[list[torch.fx.Node]]) -> None:
    """One split behind the source in place of the slices; each piece takes over the name of the first that took it."""
    sizes = [same[0].meta["val"].shape[axis] for same in pieces]
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
