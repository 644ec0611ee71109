"""Typed views of FX nodes, whose targets and arguments torch types as unions of all that a node may have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch.fx import Node

from fxonnx_translations._torch_compat import OpOverload

__all__ = ["function_of", "input_of", "item_index", "operator_of", "result_index", "schema_of", "written_arguments"]


def function_of(node: Node) -> Callable[..., Any]:
    """The function or operator of a call."""
    return cast(Callable[..., Any], node.target)


def operator_of(node: Node) -> OpOverload[Any, Any]:
    """The operator of a call of an operator."""
    return cast(OpOverload[Any, Any], node.target)


def schema_of(node: Node) -> torch.FunctionSchema:
    """The schema of the operator of a call."""
    return operator_of(node)._schema


def input_of(node: Node, position: int = 0) -> Node:
    """An argument that is a node."""
    return cast(Node, node.args[position])


def item_index(getitem: Node) -> int:
    """The position that a ``getitem`` reads in several results."""
    return cast(int, getitem.args[1])


def written_arguments(schema: torch.FunctionSchema, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the arguments that a call of an operator writes; None for those that are absent."""
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[position] if position < len(args) else kwargs.get(argument.name)


def result_index(node: Node, count: int) -> int:
    """The index of a result among the tensors that an operator returns, of which some may be None.

    Args:
        node: The ``getitem`` node.
        count: The number of tensors.
    """
    source, index = node.args[:2]
    values = source.meta.get("val") if isinstance(source, Node) else None
    if not isinstance(index, int) or not isinstance(values, (list, tuple)) or len(values) == count:
        return cast(int, index)
    return sum(isinstance(value, torch.Tensor) for value in values[:index])
