"""Root mean square norms as language models write them: ``weight * (x * rsqrt(mean(x ** 2) + eps))``."""

from __future__ import annotations

from typing import Any

import torch

from .matching import called, dims_of, insert_after, is_same_type, number, only_user

__all__ = ["fuse_rms_norm"]

aten = torch.ops.aten


def fuse_rms_norm(graph: torch.fx.Graph) -> int:
    """Makes ``aten.rms_norm`` of norms over the last axis, with the weight if it follows in the same type.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        How many were found.
    """
    found = 0
    for root in graph.find_nodes(op="call_function", target=aten.rsqrt.default):
        normalized = _normalized(root)
        if normalized is None:
            continue
        product, x, epsilon = normalized
        size = x.meta["val"].shape[-1]
        if not isinstance(size, int):
            continue
        norm = insert_after(product, aten.rms_norm.default, (x, [size], None, epsilon))
        product.replace_all_uses_with(norm)
        weighted, weight = _weighted(norm, size)
        if weighted is not None:
            whole = insert_after(weighted, aten.rms_norm.default, (x, [size], weight, epsilon))
            weighted.replace_all_uses_with(whole)
        found += 1
    return found


def _normalized(root: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node, float] | None:
    """The product of x and the reciprocal root of its mean square, x, and epsilon."""
    total = called(root.args[0], aten.add.Tensor, aten.add.Scalar)
    if total is None or len(total.args) != 2 or total.kwargs or not only_user(root) or not only_user(total):
        return None
    epsilon, mean = number(total.args[1]), called(total.args[0], aten.mean.dim)
    if epsilon is None or mean is None or not only_user(mean) or mean.kwargs:
        return None
    square, axes, keeps = (*mean.args, False)[:3]
    x = _squared(square)
    product = called(next(iter(root.users)), aten.mul.Tensor)
    if x is None or product is None or axes not in ([-1], [x.meta["val"].dim() - 1]) or keeps is not True:
        return None
    if set(product.args) != {x, root} or x.meta["val"].dtype not in (torch.float32, torch.float64):
        return None
    return product, x, epsilon


def _squared(node: Any) -> torch.fx.Node | None:
    power = called(node, aten.pow.Tensor_Scalar, aten.mul.Tensor, aten.square.default)
    if power is None or not only_user(power):
        return None
    if power.target is aten.pow.Tensor_Scalar and number(power.args[1]) != 2:
        return None
    if power.target is aten.mul.Tensor and power.args[0] is not power.args[1]:
        return None
    x = power.args[0]
    return x if dims_of(x) is not None else None  # type: ignore[return-value]


def _weighted(norm: torch.fx.Node, size: int) -> tuple[torch.fx.Node | None, Any]:
    """The product with a weight of the size of the last axis that is the only reader of a norm, and the weight."""
    last = norm
    while only_user(last) and is_same_type(next(iter(last.users))):
        last = next(iter(last.users))
    user = called(next(iter(last.users), None), aten.mul.Tensor)
    if user is None or not only_user(last):
        return None, None
    others = [argument for argument in user.args if argument is not last]
    if len(others) != 1 or dims_of(others[0]) != (size,):
        return None, None
    weight: Any = others[0]
    if weight.meta["val"].dtype != norm.meta["val"].dtype or user.meta["val"].dtype != norm.meta["val"].dtype:
        return None, None
    return user, weight
