"""Fuse decomposed attention: ``softmax(query @ key.mT * scale + mask) @ value``."""

from __future__ import annotations

from typing import Any

import torch

from ..sizes import same_size
from .formula import Formula, Matches
from .matching import CASTS, HALF_FLOATS, VIEWS, as_call, dims_of, dtype_of, insert_after, value_of
from .terms import Match, Number, Tensor, Term, Value, either, op, transposed, view_of

__all__ = ["ROUNDED_SCORES_KEY", "fuse_attention", "fuse_grouped_attention", "repeated_source"]

aten = torch.ops.aten

# ---- repeated keys and values


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


def _grouped_attention(query: Tensor, key: Tensor, value: Tensor) -> Term:
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


_NOT_REPEATED = "the {} are not repeated by expand and reshape, each head in succession"
_GROUPED = Formula(
    _grouped_attention,
    (lambda match: _source(match, "key") is not None, _NOT_REPEATED.format("keys")),
    (lambda match: _source(match, "value") is not None, _NOT_REPEATED.format("values")),
    (_has_equal_groups, "keys and values have different numbers of heads"),
    near=_repeats,
)


def fuse_grouped_attention(graph: torch.fx.Graph) -> Matches:
    """Replace the repetition of keys and values by ``enable_gqa=True`` of the attention."""
    found = Matches()
    for match in _GROUPED.matches(graph, found):
        node = match.end
        node.args = (node.args[0], _source(match, "key"), _source(match, "value"), *node.args[3:])
        node.kwargs = {**node.kwargs, "enable_gqa": True}
        found.fused.append(node)
    return found


# ---- decomposed attention


_LAYOUT_OPS = (
    *(*VIEWS, aten.expand.default, aten.slice.Tensor, aten.unsqueeze.default, aten.permute.default),
    *(*CASTS, aten.transpose.int, aten.t.default, aten.contiguous.default),
)
_DTYPES = (*HALF_FLOATS, torch.float32)
"""The dtypes of ONNX's Attention; its kernels for float64 are missing."""
ROUNDED_SCORES_KEY = "rounded_scores"
"""Metadata of an attention that the model computes step by step: the sums of scores and mask are in its dtype."""

_MATMULS = (aten.matmul.default, aten.bmm.default)
_WHERE = (aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
_SCORE_OPS = (
    *(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar),
    *(*_WHERE, *VIEWS, *CASTS, aten.masked_fill.Scalar, aten.masked_fill.Tensor, aten.tanh.default),
    *(aten.clamp.default, aten.dropout.default, aten.maximum.default),
)
"""Operators that models apply to scores and attention weights."""
_MAX_STEPS = 6


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: Number, divisor: Number, axis: Value
) -> Term:
    turned = either(
        transposed(key, 2, 3, "the key is not transposed over the last two of four axes"),
        op.mT(key),
        either(key).rejected("the key is not transposed by transpose or mT right before its product with the query"),
    )
    product = (query @ turned).once("the scores")
    other = op(*_SCORE_OPS)().loose().when(_is_computed_from_product)
    inner = either(
        product,
        other.rejected(lambda node: f"{node.target} is applied to the scores, which may only be scaled and masked"),
    )
    scaled = either(inner * scale, inner / divisor).once("the scaled scores")
    scores = either(scaled, inner)
    masked = either((scores + mask).once("the masked scores"), scores)
    return (
        op.softmax(masked.named("the argument of the softmax"), axis).loose().named("the attention weights").anchor()
        @ value
    )


def _is_computed_from_product(node: torch.fx.Node) -> bool:
    before = [node]
    for _ in range(_MAX_STEPS):
        if any(as_call(each, *_MATMULS) for each in before):
            return True
        before = [source for each in before if as_call(each, *_SCORE_OPS) for source in each.all_input_nodes]
    return False


def _is_used_in_product(match: Match) -> bool:
    """Whether a softmax is used in a matrix product as the attention weights."""
    after: Any = match.anchor
    for _ in range(_MAX_STEPS):
        users = list(after.users)
        if any(user.args[0] is after for user in users if as_call(user, *_MATMULS)):
            return True
        after = next((user for user in users if as_call(user, *_SCORE_OPS)), None)
        if after is None:
            break
    return False


def _shapes(match: Match) -> list[tuple[Any, ...]]:
    return [dims_of(match.node(name)) or () for name in ("query", "key", "value")]


def _is_finite_mask(match: Match) -> bool:
    dtype = dtype_of(match.anchor)
    return match.value("mask") is None or (
        dtype is not None and _is_finite(match.value("mask"), torch.finfo(dtype).max)
    )


def _is_broadcast_mask(match: Match) -> bool:
    wanted, given = dims_of(match.anchor) or (), dims_of(match.value("mask"))
    return given is None or all(str(one) in ("1", str(other)) for one, other in zip(given, wanted, strict=True))


_ATTENTION = Formula(
    _attention,
    (lambda match: match.value("axis") in (-1, 3), "the softmax is not computed over the last of four axes"),
    (
        lambda match: dtype_of(match.value("the argument of the softmax")) == dtype_of(match.anchor),
        "the softmax is computed in another dtype than the scores",
    ),
    (
        lambda match: all(len(shape) == 4 for shape in _shapes(match)),
        "query, key and value do not have the four axes batch, heads, length and size",
    ),
    (lambda match: dtype_of(match.end) in _DTYPES, "ONNX Runtime has no kernel of Attention for the dtype"),
    (
        lambda match: len({tuple(map(str, shape[:2])) for shape in _shapes(match)}) == 1,
        "query, key and value differ in their batch size or number of heads",
    ),
    (
        lambda match: dtype_of(match.node("query")) == dtype_of(match.end) == dtype_of(match.anchor),
        "query, attention weights and result have different dtypes",
    ),
    (
        lambda match: match.value("mask") is None or len(dims_of(match.value("mask")) or ()) == 4,
        "the mask does not have the four axes of the scores",
    ),
    (
        lambda match: dtype_of(match.value("mask")) in (None, dtype_of(match.anchor)),
        "the mask has another dtype than the scores",
    ),
    (
        # For a row masked with -inf only, the formula yields NaN and the operator 0.
        _is_finite_mask,
        "the mask may contain -inf: for a row without other elements the operator yields 0, not NaN",
    ),
    (_is_broadcast_mask, "the mask is not broadcast to the shape of the scores"),
    near=_is_used_in_product,
)


def fuse_attention(graph: torch.fx.Graph) -> Matches:
    """Fuse to ``aten.scaled_dot_product_attention``, for opsets with an Attention operator."""
    found = Matches()
    for match in _ATTENTION.matches(graph, found):
        scale, divisor = match.value("scale"), match.value("divisor")
        factor = float(1 if scale is None else scale) if divisor is None else 1 / divisor
        args = (match.node("query"), match.node("key"), match.node("value"), match.value("mask"), 0.0, False)
        whole = insert_after(match.end, aten.scaled_dot_product_attention.default, args, scale=factor)
        whole.meta[ROUNDED_SCORES_KEY] = True
        found.replace(match.end, whole)
    return found


def _is_finite(node: Any, largest: float) -> bool:
    """Whether the operators that compute a mask or bias show that its elements are finite."""
    if not isinstance(node, torch.fx.Node):
        return isinstance(node, (int, float)) and abs(node) <= largest
    if as_call(node, *_LAYOUT_OPS) is not None:
        return _is_finite(node.args[0], largest)
    if as_call(node, aten.add.Tensor) is not None:
        return all(_is_finite(each, largest) for each in node.args)
    if as_call(node, aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar) is not None:
        return all(_is_finite(each, largest) for each in node.args[1:])
    if as_call(node, aten.masked_fill.Scalar) is not None:
        return _is_finite(node.args[0], largest) and _is_finite(node.args[2], largest)
    if as_call(node, aten.full.default, aten.scalar_tensor.default) is not None:
        return _is_finite(node.args[-1], largest)
    return as_call(node, aten.embedding.default, aten.zeros.default, aten.ones.default) is not None
