"""Fuse rotary embeddings: ``x * cos + cat(-x2, x1) * sin``, where x1 and x2 are halves or interleaved elements."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import torch
import torch.onnx.ops  # defines the operator

from ..._provenance import VALUE_KEY
from ..sizes import same_size
from .matches import Matches, Mismatch, check_uses
from .matching import (
    CASTS,
    HALF_FLOATS,
    VIEWS,
    as_call,
    dims_of,
    dtype_of,
    has_one_user,
    insert_after,
    insert_before,
    known_number,
)

__all__ = ["fuse_rotary", "negate_rotary_tables", "rotate_before_transpose"]

aten = torch.ops.aten

_VALUE_PRESERVING = (*CASTS, aten.clone.default)
_DTYPES = (*HALF_FLOATS, torch.float32)
"""The dtypes that ONNX's RotaryEmbedding accepts."""


def fuse_rotary(graph: torch.fx.Graph) -> Matches:
    """Fuse to ONNX's RotaryEmbedding, which exists from opset 23 on.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        The matches and near misses.
    """
    found = Matches()
    caches: dict[Any, torch.fx.Node] = {}
    rotated = [(node, False) for node in graph.find_nodes(op="call_function", target=aten.cat.default)]
    for target in (aten.flatten.using_ints, *VIEWS):
        rotated += [(node, True) for node in graph.find_nodes(op="call_function", target=target)]
    for joined, interleaved in rotated:
        match = found.attempt(joined, partial(_match, interleaved), _is_near_rotation)
        if match is None:
            continue
        x, total, tables = match
        # Before the first product, and so before all later ones that use the same tables.
        halves = [_half_table(table, x, joined, caches, interleaved) for table in tables]
        fused = insert_after(total, torch.ops.onnx.RotaryEmbedding.opset23, (x, *halves))
        fused.kwargs = {"interleaved": True} if interleaved else {}
        total.replace_all_uses_with(fused)
        found.fused.append(fused)
    return found


def _is_near_rotation(joined: torch.fx.Node) -> bool:
    """Whether a node joins the negated half of a tensor with its other half, and is multiplied."""
    source: Any = joined if joined.target is aten.cat.default else as_call(joined.args[0], aten.stack.default)
    pieces: Any = () if source is None else source.args[0]
    if len(pieces) != 2 or as_call(pieces[0], aten.neg.default) is None:
        return False
    second, first = (as_call(piece, aten.slice.Tensor, operator.getitem) for piece in (pieces[0].args[0], pieces[1]))
    is_multiplied = any(as_call(user, aten.mul.Tensor) is not None for user in joined.users)
    return is_multiplied and first is not None and second is not None and first.args[0] is second.args[0]


def _match(
    interleaved: bool, joined: torch.fx.Node
) -> tuple[torch.fx.Node, torch.fx.Node, tuple[torch.fx.Node, torch.fx.Node]]:
    """Match an embedding; returns x, the last sum, and the tables of cosine and sine."""
    x = _rotated_pairs(joined) if interleaved else _rotated_halves(joined)
    if x is None:
        check_uses(joined, "the rotated tensor")
        raise Mismatch("the parts are not the two slices of the last of four axes, of a static and even size")
    if dtype_of(x) not in _DTYPES:
        raise Mismatch(f"the operator does not accept {dtype_of(x)}")
    parts = _rotary_sum(joined, x)
    if parts is None:
        raise Mismatch("the rotated tensor times the sine is not added to the same tensor times the cosine")
    total, cosine, sine = parts
    return x, total, (_angle_table(cosine, joined, x, interleaved), _angle_table(sine, joined, x, interleaved))


def rotate_before_transpose(graph: torch.fx.Graph) -> Matches:
    """Apply embeddings that are not fused to ``[batch, length, heads, size]``, before the heads are transposed.

    This leaves one Transpose after the embedding; otherwise ONNX Runtime pushes several of them through it.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        The rewritten embeddings.
    """
    found = Matches()
    tables: dict[Any, torch.fx.Node] = {}
    for joined in graph.find_nodes(op="call_function", target=aten.cat.default):
        x = _rotated_halves(joined)
        parts = None if x is None else _rotary_sum(joined, x)
        moved = as_call(x, aten.transpose.int)
        if parts is None or moved is None or {axis % 4 for axis in moved.args[1:]} != {1, 2}:  # type: ignore[operator]
            continue
        total, *angles = parts
        inserted = [each for angle in angles if (each := as_call(angle, aten.unsqueeze.default)) is not None]
        if len(inserted) < 2 or any(each.args[1] != 1 or not each < joined for each in inserted):
            continue
        # For another rank, axis 1 would not be the one before the length.
        if any(len(dims_of(each.args[0]) or ()) != 3 for each in inserted):
            continue
        y: Any = moved.args[0]
        half = y.meta["val"].shape[3] // 2
        for each in inserted:
            if each not in tables:
                tables[each] = insert_before(joined, aten.unsqueeze.default, each.args[0], 2)
        cosine, sine = (tables[each] for each in inserted)
        first, second = (
            insert_before(joined, aten.slice.Tensor, y, 3, *edges) for edges in ((0, half), (half, 2 * half))
        )
        rotated = insert_before(joined, aten.cat.default, [insert_before(joined, aten.neg.default, second), first], 3)
        products = [insert_before(joined, aten.mul.Tensor, *pair) for pair in ((y, cosine), (rotated, sine))]
        whole = insert_before(joined, aten.add.Tensor, *products, origin=total)
        total.replace_all_uses_with(insert_before(joined, aten.transpose.int, whole, 1, 2, origin=total))
        found.fused.append(whole)
    return found


_MIN_USES = 4
"""Minimum number of uses: negating half of a table costs up to four nodes, and each use saves one node."""


def negate_rotary_tables(graph: torch.fx.Graph) -> Matches:
    """Rewrite embeddings that are not fused to ``cat(x2, x1) * cat(-sin1, sin2)``, so that only the table is negated.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        The rewritten embeddings.
    """
    found = Matches()
    groups: dict[torch.fx.Node, list[Any]] = {}
    for joined in graph.find_nodes(op="call_function", target=aten.cat.default):
        x = _rotated_halves(joined)
        product = None if x is None else as_call(next(iter(joined.users)), aten.mul.Tensor)
        if x is None or product is None:
            continue
        sine: Any = product.args[1] if product.args[0] is joined else product.args[0]
        dims = dims_of(sine)
        if dims and same_size(dims[-1], x.meta["val"].shape[-1]) and sine.meta["val"].dtype.is_floating_point:
            groups.setdefault(sine, []).append(product)
    for sine, products in groups.items():
        if len(products) < _MIN_USES:
            continue
        # Before the first product, and so before all that use the table.
        signed = _negate_first_half(sine, min(products))
        for product in products:
            joined = product.args[0] if product.args[1] is sine else product.args[1]
            negative, first = joined.args[0]
            joined.args = ([negative.args[0], first], *joined.args[1:])
            # It has no longer the captured value.
            joined.meta.pop(VALUE_KEY, None)
            product.replace_input_with(sine, signed)
        found.fused += products
    return found


def _negate_first_half(sine: torch.fx.Node, before: torch.fx.Node) -> torch.fx.Node:
    width = sine.meta["val"].shape[-1]
    halves = [
        insert_before(before, aten.slice.Tensor, sine, -1, *bounds) for bounds in ((0, width // 2), (width // 2, width))
    ]
    return insert_before(before, aten.cat.default, [insert_before(before, aten.neg.default, halves[0]), halves[1]], -1)


def _rotated_halves(joined: torch.fx.Node) -> torch.fx.Node | None:
    """Match ``cat([-x[..., n:], x[..., :n]], -1)`` with n half of the last axis; returns x."""
    pieces: Any = joined.args[0]
    if len(pieces) != 2 or not has_one_user(joined):
        return None
    negative, first = as_call(pieces[0], aten.neg.default), as_call(pieces[1], aten.slice.Tensor)
    second = as_call(negative.args[0], aten.slice.Tensor) if negative is not None else None
    if first is None or second is None or first.args[0] is not second.args[0]:
        return None
    x: Any = first.args[0]
    dims = dims_of(x)
    if dims is None or len(dims) != 4 or not isinstance(dims[3], int) or dims[3] % 2:
        return None
    if (*joined.args[1:], 0)[0] not in (-1, 3):
        return None
    half = dims[3] // 2
    bounds: Any = [(*piece.args[1:4], None, None)[:3] for piece in (first, second)]
    if any(axis not in (-1, 3) for axis, _, _ in bounds) or any(len(piece.args) > 4 for piece in (first, second)):
        return None
    fits = bounds[0][1] in (0, None) and bounds[0][2] == half and bounds[1][1] == half
    end = bounds[1][2]
    return x if fits and (end is None or (isinstance(end, int) and end >= dims[3])) else None


def _rotated_pairs(joined: torch.fx.Node) -> torch.fx.Node | None:
    """Match ``stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)``; returns x."""
    stack = as_call(joined.args[0], aten.stack.default)
    x: Any = None
    if stack is None or not has_one_user(joined) or not has_one_user(stack) or (*stack.args[1:], 0)[0] not in (-1, 4):
        return None
    pieces: Any = stack.args[0]
    if len(pieces) != 2 or as_call(pieces[0], aten.neg.default) is None:
        return None
    for piece, first in ((pieces[0].args[0], 1), (pieces[1], 0)):
        part = as_call(piece, aten.slice.Tensor)
        if part is None or len(part.args) != 5 or part.args[1] not in (-1, 3) or part.args[4] != 2:
            return None
        dims, (start, end) = dims_of(part.args[0]), part.args[2:4]
        if dims is None or len(dims) != 4 or not isinstance(dims[3], int) or dims[3] % 2 or (start or 0) != first:
            return None
        whole = end is None or (isinstance(end, int) and end >= dims[3])
        if not whole or x not in (None, part.args[0]):
            return None
        x = part.args[0]
    return x if list(map(str, dims_of(joined) or ())) == list(map(str, dims_of(x) or ())) else None


def _rotary_sum(joined: torch.fx.Node, x: torch.fx.Node) -> tuple[torch.fx.Node, Any, Any] | None:
    """Match the sum of x times cos and the rotated x times sin; returns the sum, cos and sin."""
    by_sine = as_call(next(iter(joined.users)), aten.mul.Tensor)
    total = as_call(next(iter(by_sine.users), None), aten.add.Tensor) if by_sine is not None else None
    if by_sine is None or total is None or not has_one_user(by_sine) or total.kwargs or len(total.args) != 2:
        return None
    by_cosine = as_call(next((part for part in total.args if part is not by_sine), None), aten.mul.Tensor)
    if by_cosine is None or not has_one_user(by_cosine) or (by_cosine.args[0] is x) == (by_cosine.args[1] is x):
        return None
    cosine = by_cosine.args[1] if by_cosine.args[0] is x else by_cosine.args[0]
    sine = by_sine.args[1] if by_sine.args[0] is joined else by_sine.args[0]
    return total, cosine, sine


def _angle_table(factor: Any, joined: torch.fx.Node, x: torch.fx.Node, interleaved: bool) -> torch.fx.Node:
    """Match an unsqueezed table [batch or 1, length, width] of equal halves or pairs; returns the table."""
    inserted = as_call(factor, aten.unsqueeze.default)
    if inserted is None or inserted.args[1] != 1:
        raise Mismatch("cosine and sine are not tables of three axes that are unsqueezed at axis 1")
    table: Any = inserted.args[0]
    dims, wanted = dims_of(table), dims_of(x)
    if dims is None or wanted is None or len(dims) != 3 or dtype_of(table) != dtype_of(x):
        raise Mismatch("cosine and sine do not have three axes and the dtype of the tensor")
    if str(dims[1]) != str(wanted[2]) or dims[2] != wanted[3] or str(dims[0]) not in ("1", str(wanted[0])):
        raise Mismatch("cosine and sine do not have the sizes batch, length and width of the tensor")
    if _doubled_source(table, interleaved) is None:
        joining = "repeat_interleave(2)" if interleaved else "torch.cat((angles, angles), -1)"
        raise Mismatch(f"cosine and sine are not computed from {joining}")
    if not table < joined:
        raise Mismatch("cosine and sine are computed after the rotation")
    return table  # type: ignore[no-any-return]


def _doubled_source(table: Any, interleaved: bool) -> tuple[torch.fx.Node, list[torch.fx.Node]] | None:
    """Match a function of equal halves or pairs; returns the half, and the elementwise steps, last first."""
    node, steps = table, []
    while True:
        step = as_call(node, aten.cos.default, aten.sin.default, aten.mul.Tensor, *_VALUE_PRESERVING)
        if step is None or (step.target is aten.mul.Tensor and known_number(step.args[1]) is None):
            break
        steps.append(step)
        node = step.args[0]
    source: Any
    if interleaved:
        pairs = as_call(node, aten.repeat_interleave.self_int)
        if pairs is None or pairs.args[1] != 2 or (*pairs.args[2:], None)[0] not in (-1, 2):
            return None
        source = pairs.args[0]
    else:
        joined = as_call(node, aten.cat.default)
        pieces: Any = () if joined is None else joined.args[0]
        if joined is None or (*joined.args[1:], 0)[0] not in (-1, 2) or len(pieces) != 2 or pieces[0] is not pieces[1]:
            return None
        source = pieces[0]
    return source, steps


def _half_table(
    table: Any, x: torch.fx.Node, before: torch.fx.Node, caches: dict[Any, torch.fx.Node], interleaved: bool
) -> torch.fx.Node:
    """The table computed from one half of its columns only, expanded to the batch size."""
    dims: Any = dims_of(table)
    batch = x.meta["val"].shape[0]
    key = (table, str(batch))
    if key not in caches:
        source, steps = _doubled_source(table, interleaved)  # type: ignore[misc]
        half = source
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
