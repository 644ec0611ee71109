"""Unflatten linear layers: ``addmm(bias, x.view(-1, k), weight).view(*x.shape[:-1], n)`` to ``x @ weight + bias``."""

from __future__ import annotations

from typing import Any

import torch

from .matches import Matches
from .matching import VIEWS, as_call, dims_of, has_one_user, insert_after, known_number

__all__ = ["unflatten_linears"]

aten = torch.ops.aten


def unflatten_linears(graph: torch.fx.Graph) -> Matches:
    """Replace matrix products of flattened tensors by batched ones, which need no sizes computed at run time.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        The rewritten products.
    """
    found = Matches()
    products = [
        node
        for target in (aten.addmm.default, aten.mm.default)
        for node in graph.find_nodes(op="call_function", target=target)
    ]
    for product in products:
        bias, rows, weight = (None, *product.args) if product.target is aten.mm.default else product.args[:3]
        if any(known_number(product.kwargs.get(name, 1)) != 1 for name in ("alpha", "beta")):
            continue
        flat = as_call(rows, *VIEWS)
        end = as_call(next(iter(product.users), None), *VIEWS)
        if flat is None or end is None or not has_one_user(product) or not _fits(flat, end, bias, product):
            continue
        whole = insert_after(end, aten.matmul.default, (flat.args[0], weight))
        if bias is not None:
            whole = insert_after(whole, aten.add.Tensor, (whole, bias))
        end.replace_all_uses_with(whole)
        found.fused.append(whole)
    return found


def _fits(flat: torch.fx.Node, end: torch.fx.Node, bias: Any, product: torch.fx.Node) -> bool:
    """Whether the first view only flattens the leading axes of a tensor, and the last one only restores them."""
    given, joined, result = dims_of(flat.args[0]), dims_of(flat), dims_of(end)
    if given is None or joined is None or result is None or len(given) < 3 or len(joined) != 2:
        return False
    columns = product.meta["val"].shape[-1]
    if bias is not None and dims_of(bias) != (columns,):
        return False
    return [*map(str, given[:-1]), str(columns)] == list(map(str, result)) and str(given[-1]) == str(joined[-1])
