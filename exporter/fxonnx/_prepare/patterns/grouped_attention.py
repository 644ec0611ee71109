"""Fuse grouped-query attention that repeats keys and values for each query head."""

from __future__ import annotations

from typing import Any

import torch

from ..sizes import same_size
from .formula import Formula
from .matches import Matches
from .matching import VIEWS, as_call, dims_of, value_of
from .terms import Match, Tensor, Term, op, view_of

__all__ = ["fuse_grouped_attention", "repeated_source"]

aten = torch.ops.aten

_REPETITIONS = (aten.expand.default, aten.repeat.default, aten.repeat_interleave.self_int)


def _repeated(x: Tensor) -> Term:
    return view_of(op.expand(op.unsqueeze(x, 2)).loose().named("wide"))


def _joins_heads(match: Match) -> bool:
    """Whether each head is repeated in succession, and no other axis changes."""
    before, repeated, after = (dims_of(node) or () for node in (match.node("x"), match.node("wide"), match.end))
    if len(before) != 4 or len(repeated) != 5 or not isinstance(before[1], int) or not isinstance(repeated[2], int):
        return False
    heads = before[1] * repeated[2]
    kept = [*map(str, (*repeated[:2], *repeated[3:]))] == [*map(str, before)]
    return kept and [*map(str, after)] == [*map(str, (before[0], heads, *before[2:]))]


_REPEATED = Formula(_repeated, _joins_heads)


def repeated_source(operand: Any, query: Any) -> torch.fx.Node | None:
    """Match a tensor whose heads are repeated consecutively to the query's number of heads; returns the source."""
    match = _REPEATED.at(operand)
    heads = dims_of(query)
    fits = (
        match is not None and heads is not None and len(heads) == 4 and same_size(heads[1], value_of(operand).shape[1])
    )
    return match.node("x") if match is not None and fits else None


def _has_fewer_heads(operand: Any) -> bool:
    node, is_repeated = operand, False
    while as_call(node, *VIEWS, *_REPETITIONS, aten.unsqueeze.default, aten.clone.default) is not None:
        is_repeated = is_repeated or as_call(node, *_REPETITIONS) is not None
        node = node.args[0]
    source, dims = dims_of(node) or (), dims_of(operand) or ()
    if not is_repeated or len(source) != 4 or len(dims) != 4:
        return False
    return isinstance(source[1], int) and isinstance(dims[1], int) and source[1] < dims[1]


def _attention(query: Tensor, key: Tensor, value: Tensor) -> Term:
    attention = op.scaled_dot_product_attention(query, key, value).loose().anchor()
    return attention.when(lambda node: not node.kwargs.get("enable_gqa"))


def _source(match: Match, name: str) -> torch.fx.Node | None:
    return repeated_source(match.node(name), match.node("query"))


def _has_equal_groups(match: Match) -> bool:
    key, value = (value_of(_source(match, name)) for name in ("key", "value"))
    return same_size(key.shape[1], value.shape[1])


def _repeats(match: Match) -> bool:
    """Whether keys or values have more heads than a tensor from which only repetitions and views compute them."""
    return any(_has_fewer_heads(match.node(name)) for name in ("key", "value"))


_REASON = "the {} are not repeated by expand and reshape, each head in succession"
_FORMULA = Formula(
    _attention,
    (lambda match: _source(match, "key") is not None, _REASON.format("keys")),
    (lambda match: _source(match, "value") is not None, _REASON.format("values")),
    (_has_equal_groups, "keys and values have different numbers of heads"),
    near=_repeats,
)


def fuse_grouped_attention(graph: torch.fx.Graph) -> Matches:
    """Replace the repetition of keys and values by ``enable_gqa=True`` of the attention."""
    found = Matches()
    for match in _FORMULA.matches(graph, found):
        node = match.end
        node.args = (node.args[0], _source(match, "key"), _source(match, "value"), *node.args[3:])
        node.kwargs = {**node.kwargs, "enable_gqa": True}
        found.fused.append(node)
    return found
