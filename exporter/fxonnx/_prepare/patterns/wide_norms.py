"""Remove the casts of half-precision norms computed in float32: ``layer_norm(x.float(), ...).to(x.dtype)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .matching import dtype_of, half_source, insert_after, narrowed_user

__all__ = ["narrow_norms"]

aten = torch.ops.aten

_PARAMETERS: Mapping[Any, int] = {
    aten.layer_norm.default: 2,
    aten.group_norm.default: 2,
    aten.rms_norm.default: 1,
}
"""Norm to the number of its parameters, which follow the input and one more argument."""


def narrow_norms(graph: torch.fx.Graph) -> int:
    """Apply norms to the half-precision tensors themselves: the operators compute in float32.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        The number of matches.
    """
    found = 0
    for target, count in _PARAMETERS.items():
        for node in graph.find_nodes(op="call_function", target=target):
            args = _half_arguments(node, count)
            narrowed = None if args is None else narrowed_user(node, dtype_of(args[0]))
            if args is None or narrowed is None:
                continue
            narrowed.replace_all_uses_with(insert_after(narrowed, target, args))
            found += 1
    return found


def _half_arguments(node: torch.fx.Node, count: int) -> tuple[Any, ...] | None:
    """The arguments of a norm before their casts; None if one of them was not of the input's dtype."""
    x = half_source(node.args[0])
    if x is None or node.kwargs:
        return None
    given = node.args[2 : 2 + count]
    sources = [None if each is None else half_source(each) for each in given]
    for each, source in zip(given, sources, strict=True):
        if each is not None and (source is None or dtype_of(source) != dtype_of(x)):
            return None
    return (x, node.args[1], *sources, *node.args[2 + count :])
