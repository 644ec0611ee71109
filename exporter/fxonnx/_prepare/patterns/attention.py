"""Fuse decomposed attention: ``softmax(query @ key.mT * scale + mask) @ value``."""

from __future__ import annotations

import math
from typing import Any

import torch

from .matching import VIEWS, as_call, dims_of, has_one_user, insert_after, known_number

__all__ = ["fuse_attention"]

aten = torch.ops.aten

_LAYOUT_OPS = (
    *(*VIEWS, aten.expand.default, aten.slice.Tensor, aten.unsqueeze.default, aten.permute.default),
    *(aten.transpose.int, aten.t.default, aten.to.dtype, aten.to.device, aten.to.dtype_layout, aten.contiguous.default),
)
_MATMULS = (aten.matmul.default, aten.bmm.default)


def fuse_attention(graph: torch.fx.Graph) -> int:
    """Fuse to ``aten.scaled_dot_product_attention``, for opsets with an Attention operator.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        The number of matches.
    """
    found = 0
    for softmax in graph.find_nodes(op="call_function", target=aten.softmax.int):
        product = as_call(next(iter(softmax.users), None), *_MATMULS)
        if product is None or product.args[0] != softmax or not has_one_user(softmax):
            continue
        parts = _match_scores(softmax)
        if parts is None or not _is_supported(product, softmax, *parts[:3]):
            continue
        query, key, mask, scale = parts
        whole = insert_after(
            product, aten.scaled_dot_product_attention.default, (query, key, product.args[1], mask, 0.0, False)
        )
        whole.kwargs = {"scale": scale}
        product.replace_all_uses_with(whole)
        found += 1
    return found


def _match_scores(softmax: torch.fx.Node) -> tuple[Any, Any, Any, float] | None:
    """Match the argument of a softmax; returns query, key, mask and scale."""
    scores: Any = softmax.args[0]
    inner: Any
    if softmax.args[1] not in (-1, 3) or softmax.meta["val"].dtype != torch.float32:
        return None
    if as_call(scores, aten.add.Tensor) is not None and not scores.kwargs:
        for inner, mask in (scores.args, scores.args[::-1]):
            rest = _match_scale(inner)
            if rest is not None and dims_of(mask) is not None and has_one_user(scores):
                return (*rest[:2], mask, rest[2])
        return None
    found = _match_scale(scores)
    return None if found is None else (*found[:2], None, found[2])


def _match_scale(node: Any) -> tuple[Any, Any, float] | None:
    """Match scaled scores; returns query, key and scale."""
    scale = 1.0
    scaling = as_call(node, aten.mul.Tensor, aten.div.Tensor, aten.mul.Scalar, aten.div.Scalar)
    if scaling is not None:
        factor = known_number(scaling.args[1])
        if factor is None or factor == 0 or not has_one_user(scaling) or scaling.kwargs:
            return None
        is_product = scaling.target in (aten.mul.Tensor, aten.mul.Scalar)
        scale, node = factor if is_product else 1 / factor, scaling.args[0]
    product = as_call(node, *_MATMULS)
    transposed = None if product is None else as_call(product.args[1], aten.transpose.int, aten.mT.default)
    if product is None or transposed is None or not has_one_user(product):
        return None
    if transposed.target is aten.transpose.int and {axis % 4 for axis in transposed.args[1:]} != {2, 3}:  # type: ignore[operator]
        return None
    return product.args[0], transposed.args[0], scale


def _is_supported(product: torch.fx.Node, softmax: torch.fx.Node, query: Any, key: Any, mask: Any) -> bool:
    """Whether all operands have 4 axes, equal batch and heads, and the mask is a finite float mask of the scores."""
    shapes = [dims_of(node) for node in (query, key, product.args[1])]
    if any(shape is None or len(shape) != 4 for shape in shapes) or product.meta["val"].dtype != torch.float32:
        return False
    lead = {tuple(map(str, shape[:2])) for shape in shapes}  # type: ignore[index]
    if len(lead) > 1 or query.meta["val"].dtype != torch.float32:
        return False
    if mask is None:
        return True
    wanted, given = dims_of(softmax), dims_of(mask)
    if wanted is None or given is None or len(given) != 4 or mask.meta["val"].dtype != torch.float32:
        return False
    # For a row masked with -inf only, the formula yields NaN and the operator 0.
    return _is_finite(mask) and all(str(one) in ("1", str(other)) for one, other in zip(given, wanted, strict=True))


def _is_finite(node: Any) -> bool:
    """Whether the operators that compute a mask or bias show that its elements are finite."""
    if not isinstance(node, torch.fx.Node):
        return isinstance(node, (int, float)) and math.isfinite(node)
    if as_call(node, *_LAYOUT_OPS) is not None:
        return _is_finite(node.args[0])
    if as_call(node, aten.add.Tensor) is not None:
        return all(map(_is_finite, node.args))
    if as_call(node, aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar) is not None:
        return all(map(_is_finite, node.args[1:]))
    if as_call(node, aten.masked_fill.Scalar) is not None:
        return _is_finite(node.args[0]) and _is_finite(node.args[2])
    if as_call(node, aten.full.default, aten.scalar_tensor.default) is not None:
        return _is_finite(node.args[-1])
    return as_call(node, aten.embedding.default, aten.zeros.default, aten.ones.default) is not None
