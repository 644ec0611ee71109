"""Fuse half-precision softmax computed in float32: ``softmax(x, dim, dtype=float32).to(x.dtype)``."""

from __future__ import annotations

from typing import Any

import torch

from .matches import Matches, Mismatch, check_uses
from .matching import HALF_FLOATS, dtype_of, half_source, insert_after, narrowed_user

__all__ = ["fuse_softmax"]

aten = torch.ops.aten


def fuse_softmax(graph: torch.fx.Graph) -> Matches:
    """Remove the casts around a softmax: the kernels of half-precision dtypes compute in float32 themselves.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        The matches and near misses.
    """
    found = Matches()
    for target in (aten.softmax.int, aten.log_softmax.int):
        for softmax in graph.find_nodes(op="call_function", target=target):
            match = found.attempt(softmax, _match, lambda node: _half_input(node) is not None)
            if match is None:
                continue
            x, narrowed = match
            fused = insert_after(narrowed, target, (x, softmax.args[1]))
            narrowed.replace_all_uses_with(fused)
            found.fused.append(fused)
    return found


def _match(softmax: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node]:
    """Match a softmax between casts; returns the half-precision tensor and the cast of the result."""
    x = _half_input(softmax)
    if x is None:
        raise Mismatch("it is not computed in float32 from a tensor in half precision")
    check_uses(softmax, "the result in float32")
    narrowed = narrowed_user(softmax, dtype_of(x))
    if narrowed is None:
        raise Mismatch("the result is not cast back to the dtype of the input")
    return x, narrowed


def _half_input(softmax: torch.fx.Node) -> torch.fx.Node | None:
    """The half-precision tensor whose softmax is computed in float32; None for other calls."""
    x: Any = softmax.args[0]
    if dtype_of(softmax) != torch.float32:
        return None
    return x if dtype_of(x) in HALF_FLOATS else half_source(x)
