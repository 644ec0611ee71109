"""Fuse decomposed root mean square norms: ``weight * (x * rsqrt(mean(x ** 2) + eps))``."""

from __future__ import annotations

from typing import Any

import torch

from .matching import (
    as_call,
    dims_of,
    dtype_of,
    half_source,
    has_one_user,
    insert_after,
    is_same_dtype_cast,
    known_number,
    narrowed_user,
)

__all__ = ["fuse_rms_norm"]

aten = torch.ops.aten


def fuse_rms_norm(graph: torch.fx.Graph) -> int:
    """Fuse norms over the last axis to ``aten.rms_norm``, with the weight if it follows in the same dtype.

    A norm of a half-precision tensor that is computed in float32 between casts becomes one without the casts, whose
    kernels compute in float32 as well.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        The number of matches.
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
        half = half_source(x)
        narrowed = None if half is None else narrowed_user(product, dtype_of(half))
        if half is not None and narrowed is not None:
            product, x = narrowed, half
        norm = insert_after(product, aten.rms_norm.default, (x, [size], None, epsilon))
        product.replace_all_uses_with(norm)
        weighted, weight = _weighted(norm, size)
        if weighted is not None:
            whole = insert_after(weighted, aten.rms_norm.default, (x, [size], weight, epsilon))
            weighted.replace_all_uses_with(whole)
        found += 1
    return found


def _normalized(root: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node, float] | None:
    """Match x times the reciprocal root of its mean square; returns the product, x and epsilon."""
    total = as_call(root.args[0], aten.add.Tensor, aten.add.Scalar)
    if total is None or len(total.args) != 2 or total.kwargs or not has_one_user(root) or not has_one_user(total):
        return None
    epsilon, mean = known_number(total.args[1]), as_call(total.args[0], aten.mean.dim)
    if epsilon is None or mean is None or not has_one_user(mean) or mean.kwargs:
        return None
    square, axes, keeps = (*mean.args, False)[:3]
    x = _squared(square)
    product = as_call(next(iter(root.users)), aten.mul.Tensor)
    if x is None or product is None or axes not in ([-1], [x.meta["val"].dim() - 1]) or keeps is not True:
        return None
    if x.meta["val"].dtype not in (torch.float32, torch.float64):
        return None
    # Type promotion casts a half-precision factor to float32.
    if set(product.args) != {x, root} and set(product.args) != {half_source(x), root}:
        return None
    return product, x, epsilon


def _squared(node: Any) -> torch.fx.Node | None:
    power = as_call(node, aten.pow.Tensor_Scalar, aten.mul.Tensor, aten.square.default)
    if power is None or not has_one_user(power):
        return None
    if power.target is aten.pow.Tensor_Scalar and known_number(power.args[1]) != 2:
        return None
    if power.target is aten.mul.Tensor and power.args[0] is not power.args[1]:
        return None
    x = power.args[0]
    return x if dims_of(x) is not None else None  # type: ignore[return-value]


def _weighted(norm: torch.fx.Node, size: int) -> tuple[torch.fx.Node | None, Any]:
    """Match the only user of a norm if it is a product with a weight of the last axis; returns product and weight."""
    last = norm
    while has_one_user(last) and is_same_dtype_cast(next(iter(last.users))):
        last = next(iter(last.users))
    user = as_call(next(iter(last.users), None), aten.mul.Tensor)
    if user is None or not has_one_user(last):
        return None, None
    others = [argument for argument in user.args if argument is not last]
    if len(others) != 1 or dims_of(others[0]) != (size,):
        return None, None
    weight: Any = others[0]
    if weight.meta["val"].dtype != norm.meta["val"].dtype or user.meta["val"].dtype != norm.meta["val"].dtype:
        return None, None
    return user, weight
