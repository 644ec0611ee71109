"""Remove the casts of half-precision norms computed in float32: ``layer_norm(x.float(), ...).to(x.dtype)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .matches import Matches, Mismatch
from .matching import dtype_of, half_source, insert_after, narrowed_user

__all__ = ["narrow_norms"]

aten = torch.ops.aten

_PARAMETERS: Mapping[Any, int] = {
    aten.layer_norm.default: 2,
    aten.group_norm.default: 2,
    aten.rms_norm.default: 1,
}
"""Norm to the number of its parameters, which follow the input and one more argument."""


def narrow_norms(graph: torch.fx.Graph) -> Matches:
    """Apply norms to the half-precision tensors themselves: the operators compute in float32.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        The matches and near misses.
    """
    found = Matches()
    for target in _PARAMETERS:
        for node in graph.find_nodes(op="call_function", target=target):
            match = found.attempt(node, _match, lambda norm: half_source(norm.args[0]) is not None)
            if match is None:
                continue
            args, narrowed = match
            norm = insert_after(narrowed, target, args)
            narrowed.replace_all_uses_with(norm)
            found.fused.append(norm)
    return found


def _match(node: torch.fx.Node) -> tuple[tuple[Any, ...], torch.fx.Node]:
    """Match a norm between casts; returns its arguments before their casts, and the cast of its result."""
    x = half_source(node.args[0])
    if x is None or node.kwargs:
        raise Mismatch("the input is not cast from half precision")
    count = _PARAMETERS[node.target]
    given = node.args[2 : 2 + count]
    sources = [None if each is None else half_source(each) for each in given]
    for each, source in zip(given, sources, strict=True):
        if each is not None and (source is None or dtype_of(source) != dtype_of(x)):
            raise Mismatch(f"the weights are not cast from the input's dtype, {dtype_of(x)}")
    narrowed = narrowed_user(node, dtype_of(x))
    if narrowed is None:
        raise Mismatch("the result is not only cast back to the dtype of the input")
    return (x, node.args[1], *sources, *node.args[2 + count :]), narrowed
