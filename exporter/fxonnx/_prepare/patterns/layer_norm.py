"""Fuse decomposed layer norms: ``(x - mean(x)) / sqrt(var(x) + eps) * weight + bias``."""

from __future__ import annotations

from typing import Any

import torch

from .matching import FLOATS, as_call, dims_of, has_one_user, insert_after, known_number

__all__ = ["fuse_layer_norm"]

aten = torch.ops.aten


def fuse_layer_norm(graph: torch.fx.Graph) -> int:
    """Fuse norms over the last axis to ``aten.layer_norm``, with weight and bias if they follow.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        The number of matches.
    """
    found = 0
    for target in (aten.sqrt.default, aten.rsqrt.default, aten.pow.Tensor_Scalar):
        for root in graph.find_nodes(op="call_function", target=target):
            normalized = _normalized(root)
            if normalized is None:
                continue
            quotient, x, epsilon = normalized
            size = x.meta["val"].shape[-1]
            last, weight = _affine_user(quotient, aten.mul.Tensor, size)
            end, bias = _affine_user(last, aten.add.Tensor, size)
            norm = insert_after(end, aten.layer_norm.default, (x, [size], weight, bias, epsilon))
            end.replace_all_uses_with(norm)
            found += 1
    return found


def _normalized(root: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node, float] | None:
    """Match the normalization with its root; returns the quotient, x and epsilon."""
    power = known_number(root.args[1]) if root.target is aten.pow.Tensor_Scalar else None
    divides = root.target is aten.sqrt.default or power == 0.5
    total = as_call(root.args[0], aten.add.Tensor, aten.add.Scalar)
    if total is None or total.kwargs or not has_one_user(root) or not has_one_user(total):
        return None
    if not divides and root.target is aten.pow.Tensor_Scalar and power != -0.5:
        return None
    epsilon = known_number(total.args[1])
    quotient = as_call(next(iter(root.users)), aten.div.Tensor if divides else aten.mul.Tensor)
    if quotient is None or epsilon is None:
        return None
    centered = as_call(next((part for part in quotient.args if part is not root), None), aten.sub.Tensor)
    if centered is None or centered.kwargs or (divides and quotient.args[1] is not root):
        return None
    x: Any = centered.args[0]
    if not _is_mean_of(centered.args[1], x) or not _is_variance(total.args[0], x, centered):
        return None
    dims = dims_of(x)
    fits = dims is not None and isinstance(dims[-1], int) and dims_of(quotient) == dims
    return (quotient, x, epsilon) if fits and x.meta["val"].dtype in FLOATS else None


def _is_last_axis(axes: Any, x: torch.fx.Node) -> bool:
    return axes in ([-1], [x.meta["val"].dim() - 1])


def _is_mean_of(node: Any, x: torch.fx.Node) -> bool:
    mean = as_call(node, aten.mean.dim)
    return (
        mean is not None
        and not mean.kwargs
        and mean.args[0] is x
        and _is_last_axis(mean.args[1], x)
        and _keeps_dim(mean, 2)
    )


def _keeps_dim(node: torch.fx.Node, position: int) -> bool:
    return (node.args[position] if len(node.args) > position else node.kwargs.get("keepdim", False)) is True


def _is_variance(node: Any, x: torch.fx.Node, centered: torch.fx.Node) -> bool:
    """Whether a node is the biased variance of x over the last axis."""
    whole = as_call(node, aten.var.correction)
    if whole is not None:
        axes = whole.args[1] if len(whole.args) > 1 else whole.kwargs.get("dim")
        exact = whole.kwargs.get("correction") == 0 and whole.kwargs.get("keepdim") is True
        return bool(whole.args[0] is x and _is_last_axis(axes, x) and exact)
    whole = as_call(node, aten.var.dim)
    if whole is not None:
        return bool(whole.args[0] is x and _is_last_axis(whole.args[1], x) and whole.args[2:] == (False, True))
    mean = as_call(node, aten.mean.dim)
    if mean is None or mean.kwargs or not _is_last_axis(mean.args[1], x) or not _keeps_dim(mean, 2):
        return False
    square = as_call(mean.args[0], aten.pow.Tensor_Scalar, aten.mul.Tensor, aten.square.default)
    if square is None or not _is_centered(square.args[0], x, centered):
        return False
    if square.target is aten.pow.Tensor_Scalar:
        return known_number(square.args[1]) == 2
    return square.target is aten.square.default or square.args[1] is square.args[0]


def _is_centered(node: Any, x: torch.fx.Node, centered: torch.fx.Node) -> bool:
    if node is centered:
        return True
    other = as_call(node, aten.sub.Tensor)
    return other is not None and not other.kwargs and other.args[0] is x and _is_mean_of(other.args[1], x)


def _affine_user(node: torch.fx.Node, target: Any, size: int) -> tuple[torch.fx.Node, Any]:
    """Match the only user of a node if it combines it with a vector of the last axis; returns user and vector."""
    user = as_call(next(iter(node.users), None), target)
    if user is None or not has_one_user(node) or user.kwargs or len(user.args) != 2:
        return node, None
    others = [argument for argument in user.args if argument is not node]
    if len(others) != 1 or dims_of(others[0]) != (size,) or dims_of(user) != dims_of(node):
        return node, None
    vector: Any = others[0]
    same = vector.meta["val"].dtype == node.meta["val"].dtype == user.meta["val"].dtype
    return (user, vector) if same else (node, None)
