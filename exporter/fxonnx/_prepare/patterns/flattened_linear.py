"""Linear layers that flatten what they are given: ``addmm(bias, x.view(-1, k), weight).view(*x.shape[:-1], n)``."""

from __future__ import annotations

from typing import Any

import torch

from .matching import VIEWS, called, dims_of, insert_after, number, only_user

__all__ = ["unflatten_linear"]

aten = torch.ops.aten


def unflatten_linear(graph: torch.fx.Graph) -> int:
    """Multiplies with the tensor as it is: a product of matrices needs no sizes that are computed at run time.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        How many products were rewritten.
    """
    found = 0
    products = [
        node
        for target in (aten.addmm.default, aten.mm.default)
        for node in graph.find_nodes(op="call_function", target=target)
    ]
    for product in products:
        bias, rows, weight = (None, *product.args) if product.target is aten.mm.default else product.args[:3]
        if any(number(product.kwargs.get(name, 1)) != 1 for name in ("alpha", "beta")):
            continue
        flat = called(rows, *VIEWS)
        end = called(next(iter(product.users), None), *VIEWS)
        if flat is None or end is None or not only_user(product) or not _fits(flat, end, bias, product):
            continue
        whole = insert_after(end, aten.matmul.default, (flat.args[0], weight))
        if bias is not None:
            whole = insert_after(whole, aten.add.Tensor, (whole, bias))
        end.replace_all_uses_with(whole)
        found += 1
    return found


def _fits(flat: torch.fx.Node, end: torch.fx.Node, bias: Any, product: torch.fx.Node) -> bool:
    """Whether the first view only joins the leading axes of a tensor, and the last one only brings them back."""
    given, joined, result = dims_of(flat.args[0]), dims_of(flat), dims_of(end)
    if given is None or joined is None or result is None or len(given) < 3 or len(joined) != 2:
        return False
    columns = product.meta["val"].shape[-1]
    if bias is not None and dims_of(bias) != (columns,):
        return False
    return [*map(str, given[:-1]), str(columns)] == list(map(str, result)) and str(given[-1]) == str(joined[-1])
