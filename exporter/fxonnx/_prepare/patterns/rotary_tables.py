"""Rotary embeddings whose angles depend on the index of a token only: their tables for all positions."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.onnx.ops  # defines the operators

from ..sizes import same_size
from ..weight_folding import STORED_KEY
from .cached_masks import index_offset
from .formula import Formula
from .matching import CASTS, as_call, dims_of, dtype_of, insert_before, value_of
from .terms import Match, Number, Tensor, Term, Value, either, op

__all__ = ["Rotary", "insert_table", "is_stored", "match_rotary"]

aten = torch.ops.aten

_ROTARY = torch.ops.onnx.RotaryEmbedding.opset23
_LAST = either(-1, 3)
_STEPS = frozenset(
    {
        *(aten.unsqueeze.default, aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar),
        *(aten.cos.default, aten.sin.default, *CASTS),
    }
)
"""Operators of a table, each of which computes an element from those at the same position."""


@dataclass(frozen=True)
class Rotary:
    """A rotary embedding.

    Attributes:
        x: Its input, [batch, heads, length, size].
        cosine: Table of cosines, [batch or 1, length, width / 2], for the first ``width`` columns.
        sine: Table of sines.
        interleaved: Whether pairs of neighbors are rotated instead of the halves.
    """

    x: torch.fx.Node
    cosine: torch.fx.Node
    sine: torch.fx.Node
    interleaved: bool


def _rotary(x: Term, cosine: Tensor, sine: Tensor, interleaved: Value) -> Term:
    fused = op(_ROTARY)(
        x, *(either(op.expand(table).loose(), table) for table in (cosine, sine)), interleaved=interleaved
    )
    a, b = (op(operator.getitem)(op.chunk(x, 2, _LAST), index) for index in (0, 1))
    cosines, sines = op.unsqueeze(cosine, 1), op.unsqueeze(sine, 1)
    return either(fused, op.cat([a * cosines - b * sines, b * cosines + a * sines], _LAST))


def _whole(x: Tensor, cosine: Tensor, sine: Tensor, interleaved: Value) -> Term:
    return _rotary(x, cosine, sine, interleaved)


def _partial(x: Tensor, cosine: Tensor, sine: Tensor, interleaved: Value, width: Number) -> Term:
    """The first columns are rotated, the others are not."""
    first, rest = op.slice(x, _LAST, 0, width).named("first"), op.slice(x, _LAST, width).loose().named("rest")
    return op.cat([_rotary(first, cosine, sine, interleaved), rest], _LAST)


def _has_stored_sizes(match: Match) -> bool:
    """Whether the sizes are static, fit each other, and are accepted by the kernels."""
    dims, first = dims_of(match.node("x")) or (), match.value("first")
    if len(dims) != 4 or not isinstance(dims[3], int) or dims[3] % 16:
        return False
    width = dims[3] if first is None else value_of(first).shape[3]
    tables = [dims_of(match.node(name)) or () for name in ("cosine", "sine")]
    if not all(len(table) == 3 and table[2] * 2 == width for table in tables):
        return False
    if first is None:
        return True
    return match.value("width") == width and same_size(value_of(match.node("rest")).shape[3], dims[3] - width)


_FORMULAS = (Formula(_whole, _has_stored_sizes), Formula(_partial, _has_stored_sizes))


def match_rotary(node: Any) -> Rotary | None:
    """Match a rotary embedding of all or of the first columns, fused or of two halves with one table each."""
    joined = as_call(node, aten.cat.default)
    parts: Any = () if joined is None or (*joined.args[1:], 0)[0] not in (-1, 3) else joined.args[0]
    others = [part for part in parts if (dims_of(part) or (1,))[-1] != 0]
    whole = others[0] if len(others) == 1 else node
    match = next((match for formula in _FORMULAS if (match := formula.at(whole)) is not None), None)
    if match is None:
        return None
    return Rotary(match.node("x"), match.node("cosine"), match.node("sine"), bool(match.value("interleaved")))


def is_stored(table: torch.fx.Node, past: sympy.Expr) -> bool:
    """Whether the rows of a table are a function of weights and of the index of the token after ``past`` others."""
    if (dims_of(table) or (0,))[0] != 1:
        return False
    pending, has_positions = [table], False
    while pending:
        node = pending.pop()
        offset = None if dtype_of(node) != torch.int64 else _position_offset(node)
        if offset is not None:
            if offset != past:
                return False
            has_positions = True
        elif node.op == "placeholder":
            # An input of the graph would have a dynamic size.
            if dtype_of(node) is None or not all(isinstance(size, int) for size in dims_of(node) or ()):
                return False
        elif node.op == "get_attr":
            continue
        elif node.target not in _STEPS:
            return False
        else:
            pending.extend(node.all_input_nodes)
    return has_positions


def _position_offset(node: torch.fx.Node) -> sympy.Expr | None:
    """The offset of positions [1, length] or [1, length, 1]; None for other nodes."""
    dims = dims_of(node) or ()
    if len(dims) == 2:
        return index_offset(node, -1)
    return index_offset(node, -2) if len(dims) == 3 and dims[2] == 1 else None


def insert_table(table: torch.fx.Node, length: int, before: torch.fx.Node) -> torch.fx.Node:
    """Insert the computation of a stored table, [length, size / 2], from weights.

    Args:
        table: The table of the tokens of one call.
        length: Number of positions.
        before: The node before which it is inserted.
    """
    made: dict[torch.fx.Node, torch.fx.Node] = {}
    with before.graph.inserting_before(before):
        indices = before.graph.call_function(aten.arange.default, (length,))
    with table.meta["val"].fake_mode:
        indices.meta["val"] = torch.arange(length)

    def copy(node: torch.fx.Node) -> torch.fx.Node:
        if node in made or node.op != "call_function":
            return made.get(node, node)
        if dtype_of(node) == torch.int64 and _position_offset(node) is not None:
            source = indices
            for place in range((len(dims_of(node) or ())) - 1):
                source = insert_before(before, aten.unsqueeze.default, source, 0 if place == 0 else 2)
            made[node] = source
            return source
        arguments = torch.fx.map_arg(node.args, copy)
        made[node] = insert_before(before, node.target, *arguments, origin=node)
        return made[node]

    whole = copy(table)
    result = insert_before(before, aten.squeeze.dim, whole, 0, origin=table)
    for node in (*made.values(), result):
        node.meta[STORED_KEY] = True
    return result
