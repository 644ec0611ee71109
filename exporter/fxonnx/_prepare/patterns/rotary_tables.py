"""Rotary embeddings whose angles depend on the index of a token only: their tables for all positions."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
import torch.onnx.ops  # defines the operators

from ..weight_folding import STORED_KEY
from .cached_masks import index_offset
from .matching import CASTS, as_call, dims_of, dtype_of, insert_before

__all__ = ["Rotary", "insert_table", "is_stored", "match_rotary"]

aten = torch.ops.aten

_ROTARY = torch.ops.onnx.RotaryEmbedding.opset23
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


def match_rotary(node: Any) -> Rotary | None:
    """Match a rotary embedding of all or of the first columns, fused or of two halves with one table each."""
    node = _without_empty_parts(node)
    joined = as_call(node, aten.cat.default)
    rotated, rest = (node, None) if joined is None or _rotated_halves(node) is not None else _two_parts(joined)
    found = _whole_rotary(rotated)
    if found is None or rest is None:
        return found if found is not None and dims_of(found.x)[3] % 16 == 0 else None  # type: ignore[index]
    # The first columns are rotated, the others are not.
    first, last = as_call(found.x, aten.slice.Tensor), as_call(rest, aten.slice.Tensor)
    width = dims_of(found.x)[3]  # type: ignore[index]
    if first is None or last is None or first.args[0] is not last.args[0] or len(first.args) != 4:
        return None
    x: Any = first.args[0]
    dims: Any = dims_of(x)
    if first.args[1] not in (3, -1) or first.args[2:4] != (0, width) or not isinstance(dims[3], int) or dims[3] % 16:
        return None
    is_rest = last.args[1] in (3, -1) and last.args[2] == width and dims_of(rest)[3] == dims[3] - width  # type: ignore[index]
    return replace(found, x=x) if is_rest and len(last.args) in (3, 4) else None


def _two_parts(joined: torch.fx.Node) -> tuple[Any, Any]:
    pieces: Any = joined.args[0]
    return tuple(pieces) if len(pieces) == 2 and (*joined.args[1:], 0)[0] in (-1, 3) else (None, None)


def _whole_rotary(node: Any) -> Rotary | None:
    """Match a rotary embedding of all columns."""
    fused = as_call(node, _ROTARY)
    if fused is None:
        found = _rotated_halves(node)
    elif len(fused.args) != 3 or not set(fused.kwargs) <= {"interleaved"}:
        return None
    else:
        x, cosine, sine = (_without_expansion(argument) for argument in fused.args)
        found = Rotary(x, cosine, sine, bool(fused.kwargs.get("interleaved")))
    if found is None:
        return None
    dims, tables = dims_of(found.x), (dims_of(found.cosine), dims_of(found.sine))
    if dims is None or len(dims) != 4 or not isinstance(dims[3], int):
        return None
    fits = all(table is not None and len(table) == 3 and table[2] * 2 == dims[3] for table in tables)
    return found if fits else None


def _without_empty_parts(node: Any) -> Any:
    """The only part of a concatenation along the last axis that is not empty."""
    joined = as_call(node, aten.cat.default)
    if joined is None or (*joined.args[1:], 0)[0] not in (-1, 3):
        return node
    parts = [part for part in joined.args[0] if (dims_of(part) or (1,))[-1] != 0]  # type: ignore[union-attr]
    return parts[0] if len(parts) == 1 else node


def _without_expansion(node: Any) -> Any:
    wide = as_call(node, aten.expand.default)
    return node if wide is None else wide.args[0]


def _rotated_halves(node: Any) -> Rotary | None:
    """Match ``cat([a * cos - b * sin, b * cos + a * sin], -1)`` of the halves a and b of x."""
    joined = as_call(node, aten.cat.default)
    pieces: Any = () if joined is None else joined.args[0]
    if joined is None or len(pieces) != 2 or (*joined.args[1:], 0)[0] not in (-1, 3):
        return None
    left, right = as_call(pieces[0], aten.sub.Tensor), as_call(pieces[1], aten.add.Tensor)
    if left is None or right is None or left.kwargs or right.kwargs:
        return None
    products = [_product(argument) for argument in (*left.args, *right.args)]
    if None in products:
        return None
    (a, cosine), (b, sine), *others = products  # type: ignore[misc]
    if others != [(b, cosine), (a, sine)]:
        return None
    parts = [as_call(half, operator.getitem) for half in (a, b)]
    if parts[0] is None or parts[1] is None or parts[0].args[0] is not parts[1].args[0]:
        return None
    split = as_call(parts[0].args[0], aten.chunk.default)
    if split is None or split.args[1:] not in ((2, -1), (2, 3)) or [part.args[1] for part in parts] != [0, 1]:  # type: ignore[union-attr]
        return None
    tables = [as_call(table, aten.unsqueeze.default) for table in (cosine, sine)]
    if any(table is None or table.args[1] != 1 for table in tables):
        return None
    return Rotary(split.args[0], tables[0].args[0], tables[1].args[0], False)  # type: ignore[arg-type, union-attr]


def _product(node: Any) -> tuple[Any, Any] | None:
    product = as_call(node, aten.mul.Tensor)
    return None if product is None else (product.args[0], product.args[1])


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
