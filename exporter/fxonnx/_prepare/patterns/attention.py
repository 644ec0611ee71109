"""Fuse decomposed attention: ``softmax(query @ key.mT * scale + mask) @ value``."""

from __future__ import annotations

from typing import Any

import torch

from .matching import CASTS, HALF_FLOATS, VIEWS, as_call, dims_of, dtype_of, has_one_user, insert_after, known_number

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
        whole.meta[ROUNDED_SCORES_KEY] = True
        product.replace_all_uses_with(whole)
        found += 1
    return found


def _match_scores(softmax: torch.fx.Node) -> tuple[Any, Any, Any, float] | None:
    """Match the argument of a softmax; returns query, key, mask and scale."""
    scores: Any = softmax.args[0]
    inner: Any
    if softmax.args[1] not in (-1, 3) or dtype_of(scores) != dtype_of(softmax):
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
    if any(shape is None or len(shape) != 4 for shape in shapes) or dtype_of(product) not in _DTYPES:
        return False
    lead = {tuple(map(str, shape[:2])) for shape in shapes}  # type: ignore[index]
    dtype = dtype_of(softmax)
    if len(lead) > 1 or {dtype_of(query), dtype_of(product)} != {dtype}:
        return False
    if mask is None:
        return True
    wanted, given = dims_of(softmax), dims_of(mask)
    if wanted is None or given is None or len(given) != 4 or dtype is None or dtype_of(mask) != dtype:
        return False
    # For a row masked with -inf only, the formula yields NaN and the operator 0.
    return _is_finite(mask, torch.finfo(dtype).max) and all(
        str(one) in ("1", str(other)) for one, other in zip(given, wanted, strict=True)
    )


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
