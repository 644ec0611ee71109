"""Fuse half-precision softmax computed in float32: ``softmax(x, dim, dtype=float32).to(x.dtype)``."""

from __future__ import annotations

import torch

from .formula import Formula
from .matches import Matches
from .matching import dtype_of, insert_after
from .terms import Match, Tensor, Term, Value, cast_of, either, op, widened

__all__ = ["fuse_softmax"]

aten = torch.ops.aten


def _softmax(x: Tensor, axis: Value) -> Term:
    wide = op(aten.softmax, aten.log_softmax)(either(widened(x), x), axis).loose().anchor()
    return cast_of(wide.when(lambda node: dtype_of(node) == torch.float32))


def _is_cast_back(match: Match) -> bool:
    return dtype_of(match.end) == dtype_of(match.node("x"))


_FORMULA = Formula(_softmax, _is_cast_back)


def fuse_softmax(graph: torch.fx.Graph) -> Matches:
    """Remove the casts around a softmax: the kernels of half-precision dtypes compute in float32 themselves."""
    found = Matches()
    for match in _FORMULA.matches(graph, found):
        fused = insert_after(match.end, match.anchor.target, (match.node("x"), match.value("axis")))
        found.replace(match.end, fused)
    return found
