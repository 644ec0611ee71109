"""Fuse decomposed root mean square norms: ``weight * (x * rsqrt(mean(x ** 2) + eps))``."""

from __future__ import annotations

from typing import Any

import torch

from .matches import Matches, Mismatch, check_uses
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

_SQUARES = (aten.pow.Tensor_Scalar, aten.mul.Tensor, aten.square.default)


def fuse_rms_norm(graph: torch.fx.Graph) -> Matches:
    """Fuse norms over the last axis to ``aten.rms_norm``, with the weight if it follows in the same dtype.

    A norm of a half-precision tensor that is computed in float32 between casts becomes one without the casts, whose
    kernels compute in float32 as well.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        The matches and near misses.
    """
    found = Matches()
    for root in graph.find_nodes(op="call_function", target=aten.sqrt.default):
        found.attempt(root, _divided, _is_of_mean_square)
    for root in graph.find_nodes(op="call_function", target=aten.rsqrt.default):
        normalized = found.attempt(root, _normalized, _is_of_mean_square)
        if normalized is None:
            continue
        product, x, epsilon = normalized
        size = x.meta["val"].shape[-1]
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
            norm = whole
        found.fused.append(norm)
    return found


def _is_of_mean_square(root: torch.fx.Node) -> bool:
    """Whether a root is that of the mean square of a tensor, not of a variance."""
    total = as_call(root.args[0], aten.add.Tensor, aten.add.Scalar)
    mean = as_call(root.args[0] if total is None else total.args[0], aten.mean.dim)
    square = None if mean is None else as_call(mean.args[0], *_SQUARES)
    if square is None or (square.target is aten.mul.Tensor and square.args[0] is not square.args[1]):
        return False
    is_square = square.target is not aten.pow.Tensor_Scalar or known_number(square.args[1]) == 2
    return is_square and as_call(square.args[0], aten.sub.Tensor) is None


def _divided(root: torch.fx.Node) -> None:
    """Reject divisions by the root: ONNX Runtime fuses them itself."""
    if any(as_call(user, aten.div.Tensor) is not None and user.args[1] is root for user in root.users):
        raise Mismatch("the input is divided by sqrt, where only the product with rsqrt is recognized")


def _normalized(root: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node, float]:
    """Match x times the reciprocal root of its mean square; returns the product, x and epsilon."""
    total = as_call(root.args[0], aten.add.Tensor, aten.add.Scalar)
    epsilon = None if total is None or len(total.args) != 2 or total.kwargs else known_number(total.args[1])
    if total is None or epsilon is None:
        raise Mismatch("no constant epsilon is added to the mean of the squares")
    check_uses(root, "the reciprocal root")
    check_uses(total, "the mean of the squares")
    mean = as_call(total.args[0], aten.mean.dim)
    if mean is None or mean.kwargs:
        raise Mismatch("the sum under the root is not a mean and epsilon")
    check_uses(mean, "the mean of the squares")
    square, axes, keeps = (*mean.args, False)[:3]
    x = _squared(square)
    product = as_call(next(iter(root.users)), aten.mul.Tensor)
    if x is None:
        raise Mismatch("the mean is not one of squares of a tensor, or another operator uses the squares")
    if axes not in ([-1], [x.meta["val"].dim() - 1]):
        raise Mismatch("the normalized axis is not the last one")
    if keeps is not True:
        raise Mismatch("the mean does not keep the reduced axis")
    if x.meta["val"].dtype not in (torch.float32, torch.float64):
        raise Mismatch("the squares are computed in half precision")
    # Type promotion casts a half-precision factor to float32.
    if product is None or (set(product.args) != {x, root} and set(product.args) != {half_source(x), root}):
        raise Mismatch("the reciprocal root is not multiplied by the tensor of which it is the root")
    if not isinstance(x.meta["val"].shape[-1], int):
        raise Mismatch("the size of the normalized axis is dynamic")
    return product, x, epsilon


def _squared(node: Any) -> torch.fx.Node | None:
    power = as_call(node, *_SQUARES)
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
