"""Signs of tensors, from the operators that compute them."""

from __future__ import annotations

import operator
from typing import Any

import torch

from .matching import CASTS, VIEWS, known_number

__all__ = ["is_nonnegative"]

aten = torch.ops.aten

_NONNEGATIVE = {aten.softmax, aten._softmax, aten.sigmoid, aten.exp, aten.relu, aten.softplus, aten.abs, aten.square}
"""Operators whose results are at least zero."""
_KEEPS = {
    *(aten.gather, aten.index, aten.index_select, aten.select, aten.slice, aten.topk, aten.sort, aten.sum, aten.mean),
    *(aten.unsqueeze, aten.squeeze, aten.expand, aten.permute, aten.transpose, aten.clone, aten.sqrt, aten.detach),
}
"""Operators whose results have no other sign than their first operand."""
_COMBINES = {aten.add, aten.mul, aten.div}


def is_nonnegative(node: torch.fx.Node) -> bool:
    """Whether the operators that compute a tensor show that none of its elements is below zero, or that it is NaN."""
    pending: list[Any] = [node]
    seen: set[torch.fx.Node] = set()
    while pending:
        value = pending.pop()
        if isinstance(value, torch.fx.Node):
            sources = () if value in seen else _sources(value)
            if sources is None:
                return False
            seen.add(value)
            pending.extend(sources)
        else:
            number = known_number(value)
            if number is None or number < 0:
                return False
    return True


def _sources(node: torch.fx.Node) -> tuple[Any, ...] | None:
    """The operands that a value is nonnegative with; None if its sign is not known."""
    target: Any = node.target
    count = len(node.args)
    family = getattr(target, "overloadpacket", target)
    if family in _NONNEGATIVE:
        return ()
    if family in _KEEPS or target in (*CASTS, *VIEWS) or target is operator.getitem:
        return node.args[:1]
    if family in _COMBINES and count > 1:
        return node.args[:2] if node.kwargs.get("alpha", 1) == 1 else None
    if family in (aten.cat, aten.concat):
        parts: Any = node.args[0]
        return tuple(parts)
    if family is aten.where and count == 3:
        return node.args[1:]
    if family is aten.masked_fill and count == 3:
        return (node.args[0], node.args[2])
    if family in (aten.clamp, aten.clamp_min) and count > 1:
        least = known_number(node.args[1])
        return () if least is not None and least >= 0 else None
    return None
