"""Fuse decomposed layer norms: ``(x - mean(x)) / sqrt(var(x) + eps) * weight + bias``."""

from __future__ import annotations

from typing import Any

import torch

from .matches import Matches, Mismatch, check_uses
from .matching import FLOATS, as_call, dims_of, has_one_user, insert_after, known_number

__all__ = ["fuse_layer_norm"]

aten = torch.ops.aten

_DEVIATIONS = (aten.std.correction, aten.std.dim)
_VARIANCES = (aten.var.correction, aten.var.dim)
_SQUARES = (aten.pow.Tensor_Scalar, aten.mul.Tensor, aten.square.default)


def fuse_layer_norm(graph: torch.fx.Graph) -> Matches:
    """Fuse norms over the last axis to ``aten.layer_norm``, with weight and bias if they follow.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        The matches and near misses.
    """
    found = Matches()
    for target in _DEVIATIONS:
        for deviation in graph.find_nodes(op="call_function", target=target):
            found.attempt(deviation, _reject_deviation, _divides_centered)
    for target in (aten.sqrt.default, aten.rsqrt.default, aten.pow.Tensor_Scalar):
        for root in graph.find_nodes(op="call_function", target=target):
            normalized = found.attempt(root, _normalized, _is_of_variance)
            if normalized is None:
                continue
            quotient, x, epsilon = normalized
            size = x.meta["val"].shape[-1]
            last, weight = _affine_user(quotient, aten.mul.Tensor, size)
            end, bias = _affine_user(last, aten.add.Tensor, size)
            norm = insert_after(end, aten.layer_norm.default, (x, [size], weight, bias, epsilon))
            end.replace_all_uses_with(norm)
            found.fused.append(norm)
    return found


def _divides_centered(deviation: torch.fx.Node) -> bool:
    """Whether a centered tensor is divided by a standard deviation, possibly with epsilon."""
    totals = (as_call(user, aten.add.Tensor, aten.add.Scalar) for user in deviation.users)
    for divisor in (deviation, *(total for total in totals if total is not None)):
        for user in divisor.users:
            quotient = as_call(user, aten.div.Tensor)
            if quotient is not None and quotient.args[1] is divisor and _is_product_with_centered(quotient.args[0]):
                return True
    return False


def _is_product_with_centered(node: Any) -> bool:
    """Whether a node is a tensor minus a mean, or the product of one with a weight."""
    product = as_call(node, aten.mul.Tensor)
    candidates = [as_call(part, aten.sub.Tensor) for part in ([node] if product is None else product.args)]
    return any(each is not None and as_call(each.args[1], aten.mean.dim) is not None for each in candidates)


def _reject_deviation(deviation: torch.fx.Node) -> None:
    raise Mismatch("the input is divided by a standard deviation, where the operator adds epsilon to the variance")


def _is_of_variance(root: torch.fx.Node) -> bool:
    """Whether a root is that of a variance by which a tensor is divided."""
    total = as_call(root.args[0], aten.add.Tensor, aten.add.Scalar)
    variance = root.args[0] if total is None else total.args[0]
    mean = as_call(variance, aten.mean.dim)
    square = None if mean is None else as_call(mean.args[0], *_SQUARES)
    is_variance = as_call(variance, *_VARIANCES) is not None or (
        square is not None and as_call(square.args[0], aten.sub.Tensor) is not None
    )
    return is_variance and any(as_call(user, aten.div.Tensor, aten.mul.Tensor) is not None for user in root.users)


def _normalized(root: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node, float]:
    """Match the normalization with its root; returns the quotient, x and epsilon."""
    power = known_number(root.args[1]) if root.target is aten.pow.Tensor_Scalar else None
    divides = root.target is aten.sqrt.default or power == 0.5
    if not divides and root.target is aten.pow.Tensor_Scalar and power != -0.5:
        raise Mismatch("the power of the variance is not a square root")
    total = as_call(root.args[0], aten.add.Tensor, aten.add.Scalar)
    epsilon = None if total is None or total.kwargs else known_number(total.args[1])
    if total is None or epsilon is None:
        raise Mismatch("no constant epsilon is added to the variance")
    check_uses(root, "the root of the variance")
    check_uses(total, "the variance")
    quotient = as_call(next(iter(root.users)), aten.div.Tensor if divides else aten.mul.Tensor)
    others = () if quotient is None else tuple(part for part in quotient.args if part is not root)
    centered = as_call(others[0], aten.sub.Tensor) if others else None
    if quotient is None or centered is None or centered.kwargs or (divides and quotient.args[1] is not root):
        raise Mismatch("the root of the variance does not divide the input minus its mean")
    x: Any = centered.args[0]
    _check_mean(centered.args[1], x)
    _check_variance(total.args[0], x, centered)
    dims = dims_of(x)
    if dims is None or not isinstance(dims[-1], int) or dims_of(quotient) != dims:
        raise Mismatch("the size of the normalized axis is dynamic, or the result has another shape than the input")
    if x.meta["val"].dtype not in FLOATS:
        raise Mismatch(f"the operator does not accept {x.meta['val'].dtype}")
    return quotient, x, epsilon


def _check_last_axis(axes: Any, x: torch.fx.Node) -> None:
    if axes not in ([-1], [x.meta["val"].dim() - 1]):
        raise Mismatch("the normalized axis is not the last one")


def _is_mean_of(node: Any, x: torch.fx.Node) -> bool:
    try:
        _check_mean(node, x)
    except Mismatch:
        return False
    return True


def _check_mean(node: Any, x: torch.fx.Node) -> None:
    """Check that a node is the mean of x over the last axis."""
    mean = as_call(node, aten.mean.dim)
    if mean is None or mean.kwargs or mean.args[0] is not x:
        raise Mismatch("the subtracted tensor is not the mean of the input")
    _check_last_axis(mean.args[1], x)
    if not _keeps_dim(mean, 2):
        raise Mismatch("the mean does not keep the reduced axis")


def _keeps_dim(node: torch.fx.Node, position: int) -> bool:
    return (node.args[position] if len(node.args) > position else node.kwargs.get("keepdim", False)) is True


def _check_variance(node: Any, x: torch.fx.Node, centered: torch.fx.Node) -> None:
    """Check that a node is the biased variance of x over the last axis."""
    whole = as_call(node, *_VARIANCES)
    if whole is not None:
        if whole.args[0] is not x:
            raise Mismatch("the variance is that of another tensor")
        if whole.target is aten.var.dim:
            axes, options = whole.args[1], whole.args[2:]
            is_biased, keeps = options[:1] == (False,), options[1:] == (True,)
        else:
            axes = whole.args[1] if len(whole.args) > 1 else whole.kwargs.get("dim")
            is_biased, keeps = whole.kwargs.get("correction") in (0,), whole.kwargs.get("keepdim") is True
        _check_last_axis(axes, x)
        if not is_biased:
            raise Mismatch("the variance is the unbiased one, divided by the number of elements minus 1")
        if not keeps:
            raise Mismatch("the variance does not keep the reduced axis")
        return
    mean = as_call(node, aten.mean.dim)
    square = None if mean is None or mean.kwargs else as_call(mean.args[0], *_SQUARES)
    if mean is None or square is None or not _is_centered(square.args[0], x, centered):
        raise Mismatch("the sum under the root is not the variance of the input and epsilon")
    _check_last_axis(mean.args[1], x)
    if not _keeps_dim(mean, 2):
        raise Mismatch("the variance does not keep the reduced axis")
    is_power = square.target is aten.pow.Tensor_Scalar and known_number(square.args[1]) != 2
    if is_power or (square.target is aten.mul.Tensor and square.args[1] is not square.args[0]):
        raise Mismatch("the mean is not one of squares")


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
