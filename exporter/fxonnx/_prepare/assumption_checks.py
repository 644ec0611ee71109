"""The conditions of a program that follows its example, as bool tensors of the graph."""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from .graph_utils import fake_mode_of

__all__ = ["Check", "insert_checks", "replaced_check"]

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


@dataclass(frozen=True)
class Check:
    """One condition that other inputs than the example may not satisfy.

    Attributes:
        node: A bool tensor of rank 0.
        condition: The condition in torch's symbols.
    """

    node: torch.fx.Node
    condition: str


def insert_checks(graph: torch.fx.Graph) -> list[Check]:
    """Insert the conditions of all assertions of a captured graph before its output."""
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

    return [
        Check(as_tensor(node.args[0]), _text_of(node.args[0])) for node in asserted if not _is_unlimited(node.args[0])
    ]


def replaced_check(check: Check, node: torch.fx.Node) -> Check:
    """A check whose tensor another node computes, after passes."""
    return replace(check, node=node)


def _is_unlimited(condition: Any) -> bool:
    """Whether a condition compares a number with the end of a range that has none."""
    arguments = condition.args if isinstance(condition, torch.fx.Node) else ()
    return any(isinstance(one, int) and abs(one) >= sys.maxsize for one in arguments)


def _text_of(condition: Any) -> str:
    value = condition.meta.get("val") if isinstance(condition, torch.fx.Node) else condition
    return str(value.node.expr if isinstance(value, torch.SymBool) else value)
