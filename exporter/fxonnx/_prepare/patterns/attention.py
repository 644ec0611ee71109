"""Fuse decomposed attention: ``softmax(query @ key.mT * scale + mask) @ value``."""

from __future__ import annotations

from typing import Any

import torch

from .matches import Matches, Mismatch, check_uses
from .matching import CASTS, HALF_FLOATS, VIEWS, as_call, dims_of, dtype_of, insert_after, known_number

__all__ = ["ROUNDED_SCORES_KEY", "fuse_attention"]

aten = torch.ops.aten

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


def fuse_attention(graph: torch.fx.Graph) -> Matches:
    """Fuse to ``aten.scaled_dot_product_attention``, for opsets with an Attention operator.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        The matches and near misses.
    """
    found = Matches()
    for softmax in graph.find_nodes(op="call_function", target=aten.softmax.int):
        match = found.attempt(softmax, _match, _is_between_products)
        if match is None:
            continue
        product, query, key, mask, scale = match
        whole = insert_after(
            product, aten.scaled_dot_product_attention.default, (query, key, product.args[1], mask, 0.0, False)
        )
        whole.kwargs = {"scale": scale}
        whole.meta[ROUNDED_SCORES_KEY] = True
        product.replace_all_uses_with(whole)
        found.fused.append(whole)
    return found


def _is_between_products(softmax: torch.fx.Node) -> bool:
    """Whether a softmax is computed from a matrix product, and used in one as the attention weights."""
    after: Any = softmax
    for _ in range(_MAX_STEPS):
        users = list(after.users)
        if any(user.args[0] is after for user in users if as_call(user, *_MATMULS)):
            break
        after = next((user for user in users if as_call(user, *_SCORE_OPS)), None)
        if after is None:
            return False
    else:
        return False
    before = [softmax.args[0]]
    for _ in range(_MAX_STEPS):
        if any(as_call(node, *_MATMULS) for node in before):
            return True
        before = [source for node in before if as_call(node, *_SCORE_OPS) for source in node.all_input_nodes]  # type: ignore[union-attr]
    return False


def _match(softmax: torch.fx.Node) -> tuple[torch.fx.Node, Any, Any, Any, float]:
    """Match attention around a softmax; returns its last product, query, key, mask and scale."""
    check_uses(softmax, "the attention weights")
    user = next(iter(softmax.users))
    product = as_call(user, *_MATMULS)
    if product is None or product.args[0] != softmax:
        raise Mismatch(f"{user.target} is applied to the attention weights after the softmax")
    parts = _match_scores(softmax)
    _check_supported(product, softmax, *parts[:3])
    return (product, *parts)


def _match_scores(softmax: torch.fx.Node) -> tuple[Any, Any, Any, float]:
    """Match the argument of a softmax; returns query, key, mask and scale."""
    scores: Any = softmax.args[0]
    if softmax.args[1] not in (-1, 3):
        raise Mismatch("the softmax is not computed over the last of four axes")
    if dtype_of(scores) != dtype_of(softmax):
        raise Mismatch("the softmax is computed in another dtype than the scores")
    if as_call(scores, aten.add.Tensor) is None or scores.kwargs:
        query, key, scale = _match_scale(scores)
        return query, key, None, scale
    check_uses(scores, "the masked scores")
    reasons: list[Mismatch] = []
    for inner, mask in (scores.args, scores.args[::-1]):
        try:
            query, key, scale = _match_scale(inner)
        except Mismatch as reason:
            # The reason for the operand that is a product, rather than the one for the mask.
            reasons.insert(0 if _unscaled(inner) is not None else len(reasons), reason)
            continue
        if dims_of(mask) is not None:
            return query, key, mask, scale
        reasons.insert(0, Mismatch("a number is added to the scores"))
    raise reasons[0]


def _unscaled(node: Any) -> torch.fx.Node | None:
    """The product under a scale, otherwise None."""
    scaling = as_call(node, aten.mul.Tensor, aten.div.Tensor, aten.mul.Scalar, aten.div.Scalar)
    return as_call(node if scaling is None else scaling.args[0], *_MATMULS)


def _match_scale(node: Any) -> tuple[Any, Any, float]:
    """Match scaled scores; returns query, key and scale."""
    scale = 1.0
    scaling = as_call(node, aten.mul.Tensor, aten.div.Tensor, aten.mul.Scalar, aten.div.Scalar)
    if scaling is not None:
        factor = known_number(scaling.args[1])
        if factor is None or factor == 0 or scaling.kwargs:
            raise Mismatch("the scale of the scores is not a constant number")
        check_uses(scaling, "the scaled scores")
        is_product = scaling.target in (aten.mul.Tensor, aten.mul.Scalar)
        scale, node = factor if is_product else 1 / factor, scaling.args[0]
    product = as_call(node, *_MATMULS)
    if product is None:
        applied = f"{node.target} is applied to" if isinstance(node, torch.fx.Node) else "a number is used instead of"
        raise Mismatch(f"{applied} the scores, where only a scale and the addition of a mask are recognized")
    transposed = as_call(product.args[1], aten.transpose.int, aten.mT.default)
    check_uses(product, "the scores")
    if transposed is None:
        raise Mismatch("the key is not transposed by transpose or mT right before its product with the query")
    if transposed.target is aten.transpose.int and {axis % 4 for axis in transposed.args[1:]} != {2, 3}:  # type: ignore[operator]
        raise Mismatch("the key is not transposed over the last two of four axes")
    return product.args[0], transposed.args[0], scale


def _check_supported(product: torch.fx.Node, softmax: torch.fx.Node, query: Any, key: Any, mask: Any) -> None:
    """Check that all operands have 4 axes, equal batch and heads, and the mask is a finite float mask of the scores."""
    shapes = [dims_of(node) for node in (query, key, product.args[1])]
    if any(shape is None or len(shape) != 4 for shape in shapes):
        raise Mismatch("query, key and value do not have the four axes batch, heads, length and size")
    if dtype_of(product) not in _DTYPES:
        raise Mismatch(f"ONNX Runtime has no kernel of Attention for {dtype_of(product)}")
    dtype = dtype_of(softmax)
    if len({tuple(map(str, shape[:2])) for shape in shapes}) > 1:  # type: ignore[index]
        raise Mismatch("query, key and value differ in their batch size or number of heads")
    if {dtype_of(query), dtype_of(product)} != {dtype}:
        raise Mismatch("query, attention weights and result have different dtypes")
    if mask is None:
        return
    wanted, given = dims_of(softmax), dims_of(mask)
    if wanted is None or given is None or len(given) != 4 or dtype is None:
        raise Mismatch("the mask does not have the four axes of the scores")
    if dtype_of(mask) != dtype:
        raise Mismatch("the mask has another dtype than the scores")
    # For a row masked with -inf only, the formula yields NaN and the operator 0.
    if not _is_finite(mask, torch.finfo(dtype).max):
        raise Mismatch("the mask may contain -inf: for a row without other elements the operator yields 0, not NaN")
    if not all(str(one) in ("1", str(other)) for one, other in zip(given, wanted, strict=True)):
        raise Mismatch("the mask is not broadcast to the shape of the scores")


def _is_finite(node: Any, largest: float) -> bool:
    """Whether the operators that compute a mask or bias show that its elements are finite.

    Args:
        node: A node, or a number.
        largest: The largest finite number of the mask's dtype: in half precision, -1e9 is -inf.
    """
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
