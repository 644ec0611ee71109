"""Remove the casts of half-precision norms computed in float32: ``layer_norm(x.float(), ...).to(x.dtype)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .formula import Formula, always
from .matches import Matches
from .matching import dtype_of, half_source, insert_after
from .terms import Match, Tensor, Term, cast_of, op, widened

__all__ = ["narrow_norms"]

aten = torch.ops.aten

_PARAMETERS: Mapping[Any, int] = {
    aten.layer_norm.default: 2,
    aten.group_norm.default: 2,
    aten.rms_norm.default: 1,
}
"""Norm to the number of its parameters, which follow the input and one more argument."""


def _norm(x: Tensor) -> Term:
    return cast_of(op(*_PARAMETERS)(widened(x)).loose().named("the norm").anchor())


def _is_cast_back(match: Match) -> bool:
    return dtype_of(match.end) == dtype_of(match.node("x"))


def _has_cast_parameters(match: Match) -> bool:
    given = [each for each in _parameters(match) if each is not None]
    return not match.anchor.kwargs and all(dtype_of(half_source(each)) == dtype_of(match.end) for each in given)


def _parameters(match: Match) -> tuple[Any, ...]:
    return match.anchor.args[2 : 2 + _PARAMETERS[match.anchor.target]]


_FORMULA = Formula(
    _norm,
    (_is_cast_back, "the result is not cast back to the dtype of the input"),
    (_has_cast_parameters, "the weights are not cast from the dtype of the input"),
    near=always,
)


def narrow_norms(graph: torch.fx.Graph) -> Matches:
    """Apply norms to the half-precision tensors themselves: the operators compute in float32."""
    found = Matches()
    for match in _FORMULA.matches(graph, found):
        norm, parameters = match.anchor, _parameters(match)
        sources = [half_source(each) for each in parameters]
        args = (match.node("x"), norm.args[1], *sources, *norm.args[2 + len(parameters) :])
        found.replace(match.end, insert_after(match.end, norm.target, args))
    return found
