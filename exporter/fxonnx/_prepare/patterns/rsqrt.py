"""``x * rsqrt(y)``, for which ONNX has no operator: a division by the root is one node less."""

from __future__ import annotations

import torch

from .matching import called, insert_after, only_user

__all__ = ["divide_by_root"]

aten = torch.ops.aten


def divide_by_root(graph: torch.fx.Graph) -> int:
    """Divides by square roots instead of multiplying with their reciprocals.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        How many products were rewritten.
    """
    found = 0
    for root in graph.find_nodes(op="call_function", target=aten.rsqrt.default):
        val = root.meta["val"]
        product = called(next(iter(root.users), None), aten.mul.Tensor)
        if product is None or not product.users or not only_user(root) or not val.is_floating_point():
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
        found += 1
    return found
