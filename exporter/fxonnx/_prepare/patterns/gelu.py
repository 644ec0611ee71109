"""Fuse decomposed GELU: ``0.5 * x * (1 + erf(x / sqrt(2)))`` or the tanh approximation, factors in any order."""

from __future__ import annotations

import math

import torch

from .formula import Formula
from .matches import Matches
from .matching import FLOATS, dtype_of, insert_after
from .terms import Match, Tensor, Term, either, op, product

__all__ = ["fuse_gelu"]

aten = torch.ops.aten


def _gelu(x: Tensor) -> Term:
    scaled = either(x / math.sqrt(2), x * math.sqrt(0.5))
    return product(0.5, x, 1.0 + op.erf(scaled).anchor())


def _tanh_gelu(x: Tensor) -> Term:
    cube = either(x**3, x * x**2)
    return product(0.5, x, 1.0 + op.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * cube)).anchor())


def _is_float(match: Match) -> bool:
    return dtype_of(match.node("x")) in FLOATS


_FORMULAS = ((Formula(_gelu, _is_float), "none"), (Formula(_tanh_gelu, _is_float), "tanh"))


def fuse_gelu(graph: torch.fx.Graph) -> Matches:
    """Fuse to ``aten.gelu``."""
    found = Matches()
    for formula, approximate in _FORMULAS:
        for match in formula.matches(graph, found):
            gelu = insert_after(match.end, aten.gelu.default, (match.node("x"),), approximate=approximate)
            found.replace(match.end, gelu)
    return found
