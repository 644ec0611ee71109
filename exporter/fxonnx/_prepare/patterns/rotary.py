"""Fuse rotary embeddings: ``x * cos + cat(-x2, x1) * sin``, where x1 and x2 are halves or interleaved elements."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import torch
import torch.onnx.ops  # defines the operator

from ..._provenance import VALUE_KEY
from ..sizes import same_size
from .formula import Formula, never
from .matches import Matches
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
from .terms import Match, Tensor, Term, either, op, transposed

__all__ = ["fuse_rotary", "negate_rotary_tables", "rotate_before_transpose"]

aten = torch.ops.aten

_VALUE_PRESERVING = (*CASTS, aten.clone.default)
_DTYPES = (*HALF_FLOATS, torch.float32)
"""The dtypes that ONNX's RotaryEmbedding accepts."""
_PARTS = "the parts are not the two slices of the last of four axes, of a static and even size"
_SPLITS = (aten.chunk, aten.split, aten.split_with_sizes, aten.unbind)


def _rotated_halves(x: Term) -> Term:
    """``cat([-x[..., n:], x[..., :n]], -1)`` with n half of the last axis."""
    first, second = (
        either(
            op.slice(x).loose().where(partial(_is_half, index), _PARTS),
            op(operator.getitem)(op(*_SPLITS)(x).loose(), index).rejected(_PARTS),
        )
        for index in (0, 1)
    )
    return op.cat([-second, first], either(-1, 3)).named("the rotated tensor").anchor()


def _is_half(index: int, node: torch.fx.Node) -> bool:
    half = _even_size(node.args[0]) // 2
    return half > 0 and bounds_of(node) == (3, index * half, (index + 1) * half, 1)


def _rotated_pairs(x: Term) -> Term:
    """``stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)``."""
    even, odd = (op.slice(x).loose().where(partial(_is_every_second, index), _PARTS) for index in (0, 1))
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


def _conditions(interleaved: bool) -> list[tuple[Any, str]]:
    joining = "repeat_interleave(2)" if interleaved else "torch.cat((angles, angles), -1)"
    return [
        (_keeps_shape, _PARTS),
        (lambda match: dtype_of(match.node("x")) in _DTYPES, "the operator does not accept the dtype of the tensor"),
        (
            lambda match: len(_tables(match)) == 2,
            "cosine and sine are not tables of three axes that are unsqueezed at axis 1",
        ),
        (_have_three_axes, "cosine and sine do not have three axes and the dtype of the tensor"),
        (_have_tensor_sizes, "cosine and sine do not have the sizes batch, length and width of the tensor"),
        (
            lambda match: all(_doubled_source(table, interleaved) is not None for table in _tables(match)),
            f"cosine and sine are not computed from {joining}",
        ),
        (
            lambda match: all(table < match.node("the rotated tensor") for table in _tables(match)),
            "cosine and sine are computed after the rotation",
        ),
    ]


def _keeps_shape(match: Match) -> bool:
    rotated, x = match.node("the rotated tensor"), match.node("x")
    return list(map(str, dims_of(rotated) or ())) == list(map(str, dims_of(x) or ()))


def _is_multiplied(match: Match) -> bool:
    nodes = [match.anchor, *match.anchor.users]
    return any(as_call(user, aten.mul.Tensor) is not None for node in nodes for user in node.users)


_ROTARY = (
    (Formula(_halves, *_conditions(False), near=_is_multiplied), False),
    (Formula(_pairs, *_conditions(True), near=_is_multiplied), True),
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


def _before_transpose(y: Tensor, cosine: Tensor, sine: Tensor) -> Term:
    x = transposed(y, 1, 2).named("x")
    cosines, sines = (op.unsqueeze(table, 1).named(f"{table.name}s") for table in (cosine, sine))
    return x * cosines + _rotated_halves(x) * sines


_LAYOUT = Formula(
    _before_transpose,
    # For another rank, axis 1 would not be the one before the length.
    (lambda match: _has_rank_3(match.node("cosine")) and _has_rank_3(match.node("sine")), "the tables have other axes"),
    (
        lambda match: match.node("cosines") < match.anchor > match.node("sines"),
        "the tables are computed after the rotation",
    ),
    near=never,
)


def _has_rank_3(table: torch.fx.Node) -> bool:
    return len(dims_of(table) or ()) == 3


def _kept_values(y: torch.Tensor, result: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The fake values of all elements and of half of them, if the embedding keeps the shape and dtype of its input."""
    batch, heads, length, size = result.shape
    if not all(map(same_size, (batch, length, heads, size), y.shape)) or result.dtype != y.dtype:
        return None, None
    return y, y.new_empty((*y.shape[:3], size // 2))


def rotate_before_transpose(graph: torch.fx.Graph) -> Matches:
    """Apply embeddings that are not fused to ``[batch, length, heads, size]``, before the heads are transposed.

    This leaves one Transpose after the embedding; otherwise ONNX Runtime pushes several of them through it.
    """
    found = Matches()
    tables: dict[Any, torch.fx.Node] = {}
    for match in _LAYOUT.matches(graph, found):
        joined, total, y = match.anchor, match.end, match.node("y")
        half = value_of(y).shape[3] // 2
        for name in ("cosine", "sine"):
            if match.node(f"{name}s") not in tables:
                tables[match.node(f"{name}s")] = insert_before(joined, aten.unsqueeze.default, match.node(name), 2)
        cosine, sine = (tables[match.node(name)] for name in ("cosines", "sines"))
        result = value_of(total)
        kept, part = _kept_values(value_of(y), result)
        first, second = (
            insert_before(joined, aten.slice.Tensor, y, 3, *edges, value=part)
            for edges in ((0, half), (half, 2 * half))
        )
        negative = insert_before(joined, aten.neg.default, second, value=part)
        rotated = insert_before(joined, aten.cat.default, [negative, first], 3, value=kept)
        products = [
            insert_before(joined, aten.mul.Tensor, *pair, value=kept) for pair in ((y, cosine), (rotated, sine))
        ]
        whole = insert_before(joined, aten.add.Tensor, *products, origin=total, value=kept)
        turned = insert_before(
            joined, aten.transpose.int, whole, 1, 2, origin=total, value=None if kept is None else result
        )
        total.replace_all_uses_with(turned)
        found.fused.append(whole)
    return found


def _rotated_product(x: Tensor, sine: Tensor) -> Term:
    return _rotated_halves(x) * sine


def _has_same_width(match: Match) -> bool:
    sine, x = value_of(match.node("sine")), value_of(match.node("x"))
    return sine.dim() > 0 and same_size(sine.shape[-1], x.shape[-1]) and sine.dtype.is_floating_point


_PRODUCT = Formula(_rotated_product, (_has_same_width, "the sine has another width"), near=never)
_MIN_USES = 4
"""Minimum number of uses: negating half of a table costs up to four nodes, and each use saves one node."""


def negate_rotary_tables(graph: torch.fx.Graph) -> Matches:
    """Rewrite embeddings that are not fused to ``cat(x2, x1) * cat(-sin1, sin2)``: only the table is negated."""
    found = Matches()
    groups: dict[torch.fx.Node, list[Match]] = {}
    for match in _PRODUCT.matches(graph, found):
        groups.setdefault(match.node("sine"), []).append(match)
    for sine, matches in groups.items():
        if len(matches) < _MIN_USES:
            continue
        # Before the first product, and so before all that use the table.
        signed = _negate_first_half(sine, min(match.end for match in matches))
        for match in matches:
            joined: Any = match.anchor
            negative, first = joined.args[0]
            joined.args = ([negative.args[0], first], *joined.args[1:])
            # It has no longer the captured value.
            joined.meta.pop(VALUE_KEY, None)
            match.end.replace_input_with(sine, signed)
            found.fused.append(match.end)
    return found


def _negate_first_half(sine: torch.fx.Node, before: torch.fx.Node) -> torch.fx.Node:
    width = sine.meta["val"].shape[-1]
    halves = [
        insert_before(before, aten.slice.Tensor, sine, -1, *bounds) for bounds in ((0, width // 2), (width // 2, width))
    ]
    return insert_before(before, aten.cat.default, [insert_before(before, aten.neg.default, halves[0]), halves[1]], -1)


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
