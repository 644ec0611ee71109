"""Unflatten linear layers: ``addmm(bias, x.view(-1, k), weight).view(*x.shape[:-1], n)`` to ``x @ weight + bias``."""

from __future__ import annotations

import torch

from .formula import Formula
from .matches import Matches
from .matching import dims_of, insert_after
from .terms import Match, Tensor, Term, either, op, view_of

__all__ = ["unflatten_linears"]

aten = torch.ops.aten


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Term:
    flat = view_of(x).named("flat")
    return either(
        view_of(op.addmm(bias, flat, weight).anchor()),
        view_of(op.mm(flat, weight).anchor()),
    )


def _restores_axes(match: Match) -> bool:
    """Whether the first view only flattens the leading axes of a tensor, and the last one only restores them."""
    given, joined, result = (dims_of(node) for node in (match.node("x"), match.node("flat"), match.end))
    columns, bias = (dims_of(match.anchor) or ())[-1:], match.value("bias")
    if given is None or joined is None or result is None or len(given) < 3 or len(joined) != 2:
        return False
    if bias is not None and dims_of(bias) != columns:
        return False
    return [*map(str, (*given[:-1], *columns))] == [*map(str, result)] and str(given[-1]) == str(joined[-1])


_FORMULA = Formula(_linear, _restores_axes)


def unflatten_linears(graph: torch.fx.Graph) -> Matches:
    """Replace matrix products of flattened tensors by batched ones, which need no sizes computed at run time."""
    found = Matches()
    for match in _FORMULA.matches(graph, found):
        whole = insert_after(match.end, aten.matmul.default, (match.node("x"), match.node("weight")))
        if match.value("bias") is not None:
            whole = insert_after(whole, aten.add.Tensor, (whole, match.node("bias")))
        found.replace(match.end, whole)
    return found
