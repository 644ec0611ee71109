"""Fuse the sum of a residual connection and the norm after it to ONNX Runtime's operators for both."""

from __future__ import annotations

from typing import Any

import torch

from .context import PatternContext
from .matches import Matches
from .matching import as_call, dims_of, dtype_of, is_same_dtype_cast
from .onnx_nodes import insert_onnx_op

__all__ = ["fuse_skip_norms"]

aten = torch.ops.aten


def fuse_skip_norms(graph: torch.fx.Graph, context: PatternContext) -> Matches:
    """Fuse to ONNX Runtime's SkipSimplifiedLayerNormalization and SkipLayerNormalization.

    Args:
        graph: A functional graph; changed in place.
        context: The model and the target.

    Returns:
        The matches and near misses.
    """
    found = Matches()
    for node in list(graph.nodes):
        parts = _weighted_norm(node)
        total = None if parts is None else as_call(parts[0], aten.add.Tensor)
        if parts is None or total is None or not _is_residual(total) or dtype_of(node) not in context.skip_norms:
            continue
        _, op_type, weights, epsilon = parts
        if any(dtype_of(weight) != dtype_of(node) for weight in weights):
            continue
        value = node.meta["val"]
        mean = value.new_empty((*value.shape[:-1], 1), dtype=torch.float32)
        inputs: Any = [*total.args, *weights]
        # The sum precedes other users of it, but the weight may be computed after it.
        output, _, _, residual = insert_onnx_op(node, op_type, inputs, {"epsilon": epsilon}, [value, mean, mean, value])
        node.replace_all_uses_with(output)
        _replace_later_uses(total, residual)
        found.fused.append(output)
    return found


def _weighted_norm(node: torch.fx.Node) -> tuple[Any, str, list[Any], float] | None:
    """Match a norm over the last axis with a weight; returns its input, the operator, its weights and epsilon."""
    if node.op != "call_function" or node.kwargs:
        return None
    if node.target is aten.rms_norm.default and len(node.args) == 4:
        x, shape, weight, epsilon = node.args
        op_type, weights = "SkipSimplifiedLayerNormalization", [weight]
    elif node.target is aten.layer_norm.default and len(node.args) >= 5:
        x, shape, weight, bias, epsilon = node.args[:5]
        op_type, weights = "SkipLayerNormalization", [weight, bias]
    else:
        return None
    while isinstance(x, torch.fx.Node) and is_same_dtype_cast(x):
        x = x.args[0]
    given = all(isinstance(one, torch.fx.Node) for one in weights) and isinstance(epsilon, float)
    return (x, op_type, weights, epsilon) if given and len(shape) == 1 else None  # type: ignore[arg-type, return-value]


def _is_residual(total: torch.fx.Node) -> bool:
    """Whether a sum is one of two tensors of equal shape, [batch, length, size]."""
    shapes = [list(map(str, dims_of(argument) or ())) for argument in (*total.args, total)]
    one_dtype = len({dtype_of(argument) for argument in (*total.args, total)}) == 1
    return (
        not total.kwargs
        and len(shapes) == 3
        and len(shapes[0]) == 3
        and shapes[0] == shapes[1] == shapes[2]
        and one_dtype
    )


def _replace_later_uses(total: torch.fx.Node, residual: torch.fx.Node) -> None:
    """Replace the uses of a sum by the operator's last output, if all of them come after it."""
    users = [user for user in total.users if user is not residual.args[0]]
    if all(residual < user for user in users):
        total.replace_all_uses_with(residual)
