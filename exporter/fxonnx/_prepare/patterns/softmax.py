"""Fuse half-precision softmax computed in float32: ``softmax(x, dim, dtype=float32).to(x.dtype)``."""

from __future__ import annotations

from typing import Any

import torch

from .matching import HALF_FLOATS, dtype_of, half_source, has_one_user, insert_after, narrowed_user

__all__ = ["fuse_softmax"]

aten = torch.ops.aten


def fuse_softmax(graph: torch.fx.Graph) -> int:
    """Remove the casts around a softmax: the kernels of half-precision dtypes compute in float32 themselves.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        The number of matches.
    """
    found = 0
    for target in (aten.softmax.int, aten.log_softmax.int):
        for softmax in graph.find_nodes(op="call_function", target=target):
            x = _half_input(softmax)
            narrowed = None if x is None else narrowed_user(softmax, dtype_of(x))
            if x is None or narrowed is None:
                continue
            narrowed.replace_all_uses_with(insert_after(narrowed, target, (x, softmax.args[1])))
            found += 1
    return found


def _half_input(softmax: torch.fx.Node) -> torch.fx.Node | None:
    """The half-precision tensor whose softmax is computed in float32; None for other calls."""
    x: Any = softmax.args[0]
    if dtype_of(softmax) != torch.float32 or not has_one_user(softmax):
        return None
    return x if dtype_of(x) in HALF_FLOATS else half_source(x)
