"""The conditions of a program that follows its example, as one bool tensor of the graph."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from .graph_utils import fake_mode_of

__all__ = ["insert_check"]

aten = torch.ops.aten

_OPERATORS: Mapping[Any, Any] = MappingProxyType(
    {
        operator.eq: aten.eq.Tensor,
        operator.ne: aten.ne.Tensor,
        operator.lt: aten.lt.Tensor,
        operator.le: aten.le.Tensor,
        operator.gt: aten.gt.Tensor,
        operator.ge: aten.ge.Tensor,
        operator.and_: aten.logical_and.default,
        operator.or_: aten.logical_or.default,
        torch.sym_not: aten.logical_not.default,
    }
)
"""Operators on symbolic numbers to operators on tensors of rank 0."""


def insert_check(graph: torch.fx.Graph) -> torch.fx.Node | None:
    """Insert the conjunction of all assertions of a captured graph before its output.

    Returns:
        A node with a bool tensor of rank 0; None if the program asserts nothing.
    """
    asserted = graph.find_nodes(op="call_function", target=aten._assert_scalar.default)
    mode = fake_mode_of(node.meta.get("val") for node in graph.nodes)

    def insert(target: Any, *args: Any) -> torch.fx.Node:
        with mode:
            val = target(*torch.fx.map_arg(args, lambda node: node.meta["val"]))
        with graph.inserting_before(graph.output_node()):
            node = graph.call_function(target, args)
        node.meta["val"] = val
        return node

    def as_tensor(number: Any) -> torch.fx.Node:
        if isinstance(number, torch.fx.Node):
            if number.target in (aten.item.default, aten._local_scalar_dense.default):
                return insert(aten.view.default, number.args[0], [])
            if number.target in _OPERATORS:
                return insert(_OPERATORS[number.target], *map(as_tensor, number.args))
        return insert(aten.scalar_tensor.default, number)

    check: torch.fx.Node | None = None
    for node in asserted:
        condition = as_tensor(node.args[0])
        check = condition if check is None else insert(aten.logical_and.default, check, condition)
    return check
