"""Pack the projections of queries, keys and values into one, whose weight is stored."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from .formula import Formula
from .matching import VIEWS, as_call, dims_of, has_one_user, insert_before, is_same_dtype_cast, value_of
from .terms import Match, Tensor, Term, Value, op

__all__ = ["pack_projections", "packed_source"]

aten = torch.ops.aten

_BETWEEN = (*VIEWS, aten.transpose.int, aten.rms_norm.default, aten.flatten.using_ints)


def _linear(x: Tensor, weight: Tensor, bias: Value) -> Term:
    return op.linear(x, weight, bias)


def _is_packable(match: Match) -> bool:
    parameters = (match.node("weight"), match.value("bias"))
    are_stored = all(each is None or (each.op == "placeholder" and has_one_user(each)) for each in parameters)
    return are_stored and has_one_user(match.end) and len(dims_of(match.end) or ()) == 3


_LINEAR = Formula(_linear, _is_packable)


def _split_part(x: Tensor, sizes: Value, axis: Value, index: Value) -> Term:
    return op(operator.getitem)(op.split_with_sizes(x, sizes, axis), index)


def _slice(x: Tensor, axis: Value, start: Value, end: Value) -> Term:
    return op.slice(x, axis, start, end)


_SPLIT_PART, _SLICE = (Formula(form, lambda match: match.value("axis") in (2, -1)) for form in (_split_part, _slice))


def pack_projections(operands: Sequence[torch.fx.Node]) -> None:
    """Replace three linear layers of one input by one, and a split of its result.

    Args:
        operands: Queries, keys and values; between them and the layers are changes of the shape and norms only.
    """
    layers = [match for operand in operands if (match := _LINEAR.at(_before_layout(operand))) is not None]
    found = [layer.end for layer in layers]
    biases = [layer.value("bias") for layer in layers]
    if len(set(found)) != len(operands) or len({layer.node("x") for layer in layers}) > 1:
        return
    if len({bias is None for bias in biases}) > 1:
        return
    first = min(found)
    joined = [insert_before(first, aten.cat.default, [layer.node("weight") for layer in layers], 0)]
    if biases[0] is not None:
        joined.append(insert_before(first, aten.cat.default, biases, 0))
    whole = insert_before(first, aten.linear.default, layers[0].node("x"), *joined)
    widths = [value_of(layer).shape[-1] for layer in found]
    parts = insert_before(first, aten.split_with_sizes.default, whole, widths, 2)
    for index, layer in enumerate(found):
        layer.replace_all_uses_with(insert_before(first, operator.getitem, parts, index, origin=layer))


def _before_layout(node: Any) -> Any:
    """The tensor before changes of the shape and norms."""
    while as_call(node, *_BETWEEN) is not None or is_same_dtype_cast(node):
        node = node.args[0]
    return node


def packed_source(operands: Sequence[torch.fx.Node]) -> torch.fx.Node | None:
    """The tensor that queries, keys and values are consecutive parts of, along the last of three axes."""
    start, sources = 0, set()
    for index, operand in enumerate(operands):
        part, piece = _SPLIT_PART.at(operand), _SLICE.at(operand)
        match = part or piece
        if match is None or (match.value("index") if part else match.value("start")) != (index if part else start):
            return None
        sources.add(match.node("x"))
        start += value_of(operand).shape[-1]
    source = sources.pop()
    dims = dims_of(source) or ()
    return source if not sources and len(dims) == 3 and dims[2] == start else None
