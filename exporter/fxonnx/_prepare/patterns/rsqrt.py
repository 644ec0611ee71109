"""Rewrite ``x * rsqrt(y)`` to ``x / sqrt(y)``: ONNX has no rsqrt, so that a division saves a node."""

from __future__ import annotations

import torch

from .formula import Formula
from .matches import Matches
from .matching import dtype_of, insert_after
from .terms import Match, Tensor, Term, op

__all__ = ["replace_rsqrt"]

aten = torch.ops.aten


def _product(x: Tensor, y: Tensor) -> Term:
    return x * op.rsqrt(y).anchor()


def _is_quotient(match: Match) -> bool:
    x, root = match.node("x"), match.anchor
    return x is not root and root.meta["val"].is_floating_point() and dtype_of(x) == dtype_of(root)


_FORMULA = Formula(_product, _is_quotient)


def replace_rsqrt(graph: torch.fx.Graph) -> Matches:
    """Replace multiplications with a reciprocal square root by divisions by the square root."""
    found = Matches()
    for match in _FORMULA.matches(graph, found):
        root = insert_after(match.anchor, aten.sqrt.default, (match.node("y"),))
        found.replace(match.end, insert_after(match.end, aten.div.Tensor, (match.node("x"), root)))
    return found
