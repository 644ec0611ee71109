"""Fuse rotary embeddings: ``x * cos + cat(-x2, x1) * sin``, where x1 and x2 are halves or interleaved elements."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.onnx.ops  # defines the operator

from .formula import Formula, Matches
from .matching import (
    CASTS,
    HALF_FLOATS,
    VIEWS,
    as_call,
    bounds_of,
    dims_of,
    dtype_of,
    insert_after,
    insert_before,
    known_number,
    operand,
    value_of,
)
from .terms import Match, Tensor, Term, either, op

__all__ = ["fuse_rotary"]

aten = torch.ops.aten

_VALUE_PRESERVING = (*CASTS, aten.clone.default)
_DTYPES = (*HALF_FLOATS, torch.float32)
"""The dtypes that ONNX's RotaryEmbedding accepts."""


def _rotated_halves(x: Term) -> Term:
    """``cat([-x[..., n:], x[..., :n]], -1)`` with n half of the last axis."""
    first, second = (op.slice(x).loose().when(partial(_is_half, index)) for index in (0, 1))
    return op.cat([-second, first], either(-1, 3)).named("the rotated tensor").anchor()


def _is_half(index: int, node: torch.fx.Node) -> bool:
    half = _even_size(node.args[0]) // 2
    return half > 0 and bounds_of(node) == (3, index * half, (index + 1) * half, 1)


def _rotated_pairs(x: Term) -> Term:
    """``stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)``."""
    even, odd = (op.slice(x).loose().when(partial(_is_every_second, index)) for index in (0, 1))
    pairs = op.stack([-odd, even], either(-1, 4)).named("the rotated pairs").anchor()
    return op(aten.flatten, *VIEWS)(pairs).loose().named("the rotated tensor")


def _is_every_second(index: int, node: torch.fx.Node) -> bool:
    size = _even_size(node.args[0])
    return size > 0 and bounds_of(node) == (3, index, size, 2)


def _even_size(x: Any) -> int:
    """The size of the last of four axes if it is static and even, otherwise 0."""
    dims = dims_of(x) or ()
    return dims[3] if len(dims) == 4 and isinstance(dims[3], int) and dims[3] % 2 == 0 else 0


def _halves(x: Tensor, cosine: Tensor, sine: Tensor) -> Term:
    return x * cosine + _rotated_halves(x) * sine


def _pairs(x: Tensor, cosine: Tensor, sine: Tensor) -> Term:
    return x * cosine + _rotated_pairs(x) * sine


def _tables(match: Match) -> list[torch.fx.Node]:
    """The tables of cosine and sine, [batch or 1, length, width], before they are unsqueezed."""
    calls = [as_call(match.node(name), aten.unsqueeze.default) for name in ("cosine", "sine")]
    return [operand(call) for call in calls if call is not None and call.args[1] == 1]


def _have_tensor_sizes(match: Match) -> bool:
    sizes = dims_of(match.node("x")) or ()
    for batch, length, width in (value_of(table).shape for table in _tables(match)):
        if str(length) != str(sizes[2]) or width != sizes[3] or str(batch) not in ("1", str(sizes[0])):
            return False
    return True


def _have_three_axes(match: Match) -> bool:
    dtype = dtype_of(match.node("x"))
    return all(len(dims_of(table) or ()) == 3 and dtype_of(table) == dtype for table in _tables(match))


def _has_tables(interleaved: bool, match: Match) -> bool:
    """Whether the tables have the sizes of the tensor, are computed from halves or pairs, and before the rotation."""
    tables = _tables(match)
    return (
        len(tables) == 2
        and _have_three_axes(match)
        and _have_tensor_sizes(match)
        and all(_doubled_source(table, interleaved) is not None for table in tables)
        and all(table < match.node("the rotated tensor") for table in tables)
    )


def _keeps_shape(match: Match) -> bool:
    rotated, x = match.node("the rotated tensor"), match.node("x")
    return list(map(str, dims_of(rotated) or ())) == list(map(str, dims_of(x) or ()))


def _has_dtype_of_operator(match: Match) -> bool:
    return dtype_of(match.node("x")) in _DTYPES


_ROTARY = tuple(
    (Formula(form, _keeps_shape, _has_dtype_of_operator, partial(_has_tables, interleaved)), interleaved)
    for form, interleaved in ((_halves, False), (_pairs, True))
)
"""The formulas, and whether elements are interleaved."""


def fuse_rotary(graph: torch.fx.Graph) -> Matches:
    """Fuse to ONNX's RotaryEmbedding, which exists from opset 23 on."""
    found = Matches()
    caches: dict[Any, torch.fx.Node] = {}
    for formula, interleaved in _ROTARY:
        for match in formula.matches(graph, found):
            x, joined = match.node("x"), match.node("the rotated tensor")
            # Before the first product, and so before all later ones that use the same tables.
            halves = [_half_table(table, x, joined, caches, interleaved) for table in _tables(match)]
            options = {"interleaved": True} if interleaved else {}
            fused = insert_after(match.end, torch.ops.onnx.RotaryEmbedding.opset23, (x, *halves), **options)
            found.replace(match.end, fused)
    return found


def _joined(half: Tensor) -> Term:
    return op.cat([half, half], either(-1, 2))


def _repeated(half: Tensor) -> Term:
    return op.repeat_interleave(half, 2, either(-1, 2)).loose()


_DOUBLED = {False: Formula(_joined), True: Formula(_repeated)}


def _doubled_source(table: Any, interleaved: bool) -> tuple[torch.fx.Node, list[torch.fx.Node]] | None:
    """Match a function of equal halves or pairs; returns the half, and the elementwise steps, last first."""
    node, steps = table, []
    while (step := as_call(node, aten.cos.default, aten.sin.default, aten.mul.Tensor, *_VALUE_PRESERVING)) is not None:
        if step.target is aten.mul.Tensor and known_number(step.args[1]) is None:
            break
        steps.append(step)
        node = step.args[0]
    doubled = _DOUBLED[interleaved].at(node)
    return None if doubled is None else (doubled.node("half"), steps)


def _half_table(
    table: Any, x: torch.fx.Node, before: torch.fx.Node, caches: dict[Any, torch.fx.Node], interleaved: bool
) -> torch.fx.Node:
    """The table computed from one half of its columns only, expanded to the batch size."""
    dims: Any = dims_of(table)
    batch = x.meta["val"].shape[0]
    key = (table, str(batch))
    if key not in caches:
        half, steps = _doubled_source(table, interleaved) or (table, [])
        for step in reversed(steps):
            if step.target not in _VALUE_PRESERVING:
                half = insert_before(before, step.target, half, *step.args[1:], origin=step)
            elif dtype_of(half) != dtype_of(step):
                half = insert_before(before, aten.to.dtype, half, dtype_of(step), origin=step)
        if str(dims[0]) != str(batch):
            size = batch if isinstance(batch, int) else insert_before(before, aten.sym_size.int, x, 0)
            half = insert_before(before, aten.expand.default, half, [size, -1, -1])
        caches[key] = half
    return caches[key]
