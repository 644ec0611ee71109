"""Layer norms that are written out: ``(x - mean(x)) / sqrt(var(x) + eps) * weight + bias``."""

from __future__ import annotations

from typing import Any

import torch

from .matching import called, dims_of, insert_after, number, only_user

__all__ = ["fuse_layer_norm"]

aten = torch.ops.aten


def fuse_layer_norm(graph: torch.fx.Graph) -> int:
    """Makes ``aten.layer_norm`` of norms over the last axis, with weight and bias if they follow.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        How many were found.
    """
    found = 0
    for target in (aten.sqrt.default, aten.rsqrt.default, aten.pow.Tensor_Scalar):
        for root in graph.find_nodes(op="call_function", target=target):
            normalized = _normalized(root)
            if normalized is None:
                continue
            quotient, x, epsilon = normalized
            size = x.meta["val"].shape[-1]
            last, weight = _followed_by(quotient, aten.mul.Tensor, size)
            end, bias = _followed_by(last, aten.add.Tensor, size)
            norm = insert_after(end, aten.layer_norm.default, (x, [size], weight, bias, epsilon))
            end.replace_all_uses_with(norm)
            found += 1
    return found


def _normalized(root: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node, float] | None:
    """The quotient, x, and epsilon."""
    power = number(root.args[1]) if root.target is aten.pow.Tensor_Scalar else None
    divides = root.target is aten.sqrt.default or power == 0.5
    total = called(root.args[0], aten.add.Tensor, aten.add.Scalar)
    if total is None or total.kwargs or not only_user(root) or not only_user(total):
        return None
    if not divides and root.target is aten.pow.Tensor_Scalar and power != -0.5:
        return None
    epsilon = number(total.args[1])
    quotient = called(next(iter(root.users)), aten.div.Tensor if divides else aten.mul.Tensor)
    if quotient is None or epsilon is None:
        return None
    centered = called(next((part for part in quotient.args if part is not root), None), aten.sub.Tensor)
    if centered is None or centered.kwargs or (divides and quotient.args[1] is not root):
        return None
    x: Any = centered.args[0]
    if not _is_mean_of(centered.args[1], x) or not _is_variance(total.args[0], x, centered):
        return None
    dims = dims_of(x)
    fits = dims is not None and isinstance(dims[-1], int) and dims_of(quotient) == dims
    return (quotient, x, epsilon) if fits and x.meta["val"].dtype in (torch.float32, torch.float64) else None


def _is_last(axes: Any, x: torch.fx.Node) -> bool:
    return axes in ([-1], [x.meta["val"].dim() - 1])


def _is_mean_of(node: Any, x: torch.fx.Node) -> bool:
    mean = called(node, aten.mean.dim)
    return mean is not None and not mean.kwargs and mean.args[0] is x and _is_last(mean.args[1], x) and _keeps(mean, 2)


def _keeps(node: torch.fx.Node, position: int) -> bool:
    return (node.args[position] if len(node.args) > position else node.kwargs.get("keepdim", False)) is True


def _is_variance(node: Any, x: torch.fx.Node, centered: torch.fx.Node) -> bool:
    """Whether it is the mean of the squared differences from the mean."""
    whole = called(node, aten.var.correction)
    if whole is not None:
        axes = whole.args[1] if len(whole.args) > 1 else whole.kwargs.get("dim")
        exact = whole.kwargs.get("correction") == 0 and whole.kwargs.get("keepdim") is True
        return bool(whole.args[0] is x and _is_last(axes, x) and exact)
    whole = called(node, aten.var.dim)
    if whole is not None:
        return bool(whole.args[0] is x and _is_last(whole.args[1], x) and whole.args[2:] == (False, True))
    mean = called(node, aten.mean.dim)
    if mean is None or mean.kwargs or not _is_last(mean.args[1], x) or not _keeps(mean, 2):
        return False
    square = called(mean.args[0], aten.pow.Tensor_Scalar, aten.mul.Tensor, aten.square.default)
    if square is None or not _is_centered(square.args[0], x, centered):
        return False
    if square.target is aten.pow.Tensor_Scalar:
        return number(square.args[1]) == 2
    return square.target is aten.square.default or square.args[1] is square.args[0]


def _is_centered(node: Any, x: torch.fx.Node, centered: torch.fx.Node) -> bool:
    if node is centered:
        return True
    other = called(node, aten.sub.Tensor)
    return other is not None and not other.kwargs and other.args[0] is x and _is_mean_of(other.args[1], x)


def _followed_by(node: torch.fx.Node, target: Any, size: int) -> tuple[torch.fx.Node, Any]:
    """The only reader, if it joins the node with a vector of the size of the last axis, and that vector."""
    user = called(next(iter(node.users), None), target)
    if user is None or not only_user(node) or user.kwargs or len(user.args) != 2:
        return node, None
    others = [argument for argument in user.args if argument is not node]
    if len(others) != 1 or dims_of(others[0]) != (size,) or dims_of(user) != dims_of(node):
        return node, None
    vector: Any = others[0]
    same = vector.meta["val"].dtype == node.meta["val"].dtype == user.meta["val"].dtype
    return (user, vector) if same else (node, None)
