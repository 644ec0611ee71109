"""Rewrite ``x * rsqrt(y)`` to ``x / sqrt(y)``: ONNX has no rsqrt, so that a division saves a node."""

from __future__ import annotations

import torch

from .matches import Matches
from .matching import as_call, has_one_user, insert_after

__all__ = ["replace_rsqrt"]

aten = torch.ops.aten


def replace_rsqrt(graph: torch.fx.Graph) -> Matches:
    """Replace multiplications with a reciprocal square root by divisions by the square root.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        The rewritten products.
    """
    found = Matches()
    for root in graph.find_nodes(op="call_function", target=aten.rsqrt.default):
        val = root.meta["val"]
        product = as_call(next(iter(root.users), None), aten.mul.Tensor)
        if product is None or not product.users or not has_one_user(root) or not val.is_floating_point():
            continue
        others = [argument for argument in product.args if argument is not root]
        if len(others) != 1 or not isinstance(others[0], torch.fx.Node):
            continue
        other = others[0].meta.get("val")
        if not isinstance(other, torch.Tensor) or other.dtype != val.dtype:
            continue
        square_root = insert_after(root, aten.sqrt.default, (root.args[0],))
        quotient = insert_after(product, aten.div.Tensor, (others[0], square_root))
        product.replace_all_uses_with(quotient)
        found.fused.append(quotient)
    return found
