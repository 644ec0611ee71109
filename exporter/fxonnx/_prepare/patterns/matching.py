"""What rules ask about nodes."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch

from fxonnx_translations._torch_compat import pytree

from ..._provenance import copy_provenance

__all__ = ["VIEWS", "added", "called", "dims_of", "insert_after", "is_same_type", "number", "only_user"]

aten = torch.ops.aten

VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
"""Operators that only give a tensor another shape."""


def called(node: Any, *targets: Any) -> torch.fx.Node | None:
    """The node, if it is a call of one of the operators."""
    is_call = isinstance(node, torch.fx.Node) and node.op == "call_function" and node.target in targets
    return node if is_call else None


def only_user(node: torch.fx.Node) -> bool:
    """Whether one node reads it."""
    return len(node.users) == 1


def number(value: Any) -> float | None:
    """A number that is known; None for nodes and bools."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def dims_of(node: Any) -> tuple[Any, ...] | None:
    """The shape of the tensor that a node holds; None if it holds none."""
    val = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return tuple(val.shape) if isinstance(val, torch.Tensor) else None


def is_same_type(node: torch.fx.Node) -> bool:
    """Whether it casts to the type that its input has."""
    cast = called(node, aten.to.dtype, aten.to.dtype_layout, aten._to_copy.default, aten.to.device)
    if cast is None or not isinstance(cast.args[0], torch.fx.Node):
        return False
    return bool(cast.args[0].meta["val"].dtype == cast.meta["val"].dtype)


def insert_after(node: torch.fx.Node, target: Any, args: tuple[Any, ...]) -> torch.fx.Node:
    """A call behind a node that computes what the node does, and takes over its name in the user's model."""
    with node.graph.inserting_after(node):
        new = node.graph.call_function(target, args)
    new.meta["val"] = node.meta["val"]
    copy_provenance(new, node)
    return new


def added(before: torch.fx.Node, target: Any, *args: Any, origin: torch.fx.Node | None = None) -> torch.fx.Node:
    """A call in front of a node, which belongs to the part of the user's model that ``origin`` does, or that one."""
    vals = torch.fx.map_arg(args, lambda node: node.meta["val"])
    if target is operator.getitem:
        val = vals[0][vals[1]]
    else:
        tensor = next(val for val in pytree.tree_leaves(vals) if isinstance(val, torch.Tensor))
        with tensor.fake_mode:  # type: ignore[attr-defined]
            val = _reshaped(*vals) if target is torch.ops.aten.reshape.default else target(*vals)
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, args)
    node.meta["val"] = val
    copy_provenance(node, before if origin is None else origin)
    return node


def _reshaped(source: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """The fake result of a reshape. torch's own asks which sizes are 1 at the example, and answers for that alone."""
    is_open = [isinstance(size, int) and size == -1 for size in shape]
    known = math.prod(size for size, unknown in zip(shape, is_open, strict=True) if not unknown)
    rest: Any = math.prod(source.shape) // known if any(is_open) else None
    return source.new_empty([rest if unknown else size for size, unknown in zip(shape, is_open, strict=True)])
