"""Tensors that an operator resizes: an ``out=`` tensor of another shape, ``resize_`` of one without elements.

Nothing of the old content is left, so that the resized tensor is a new one, unless the graph uses its memory elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch.fx import Graph, Node

from fxonnx_translations._torch_compat import OpOverload

from ..._nodes import input_of
from ..graph_utils import fake_mode_of
from ..sizes import element_count, same_shape
from .alias_analysis import storage_id
from .inplace_ops import functional_overload

__all__ = ["replace_resized"]

aten = torch.ops.aten


def replace_resized(graph: Graph, scratch: Collection[str]) -> list[tuple[Node, Node]]:
    """Replace operators that resize a tensor by the functional ones, in place.

    Args:
        graph: A graph as captured by torch.export.
        scratch: Names of the placeholders that may be resized: those of buffers and constants.

    Returns:
        The tensors that are resized, each with the node of its new content.
    """
    resized, assigned = [], []
    for node in graph.nodes:
        target = node.target
        if node.op != "call_function" or not isinstance(target, OpOverload):
            continue
        if target is aten.set_.source_Tensor and _is_last_use(node, scratch):
            resized.append((node.args[0], node.args[1]))
            assigned.append(node)
            continue
        old = _resized_tensor(node, target)
        if old is None or not _is_own_memory(old, node, scratch):
            continue
        if target is aten.resize_.default:
            node.target, node.args, node.kwargs = aten.new_empty.default, (old, node.args[1]), {}
            resized.append((old, node))
        elif (functional := functional_overload(target)) is not None:
            resized.append((old, _make_functional(node, functional, old)))
    for node in assigned:
        graph.erase_node(node)
    return resized


def _is_last_use(node: Node, scratch: Collection[str]) -> bool:
    """Whether a tensor becomes another one after its last use, as the capture writes an assigned buffer."""
    old = input_of(node)
    return old.op == "placeholder" and old.name in scratch and not node.users and next(reversed(old.users)) is node


def _resized_tensor(node: Node, target: OpOverload) -> Node | None:
    """The tensor that a call resizes without a use of its content; None if there is none."""
    if target is aten.resize_.default:
        old = input_of(node)
        return old if element_count(old.meta["val"]) == 0 else None
    written = [argument for argument in target._schema.arguments if argument.alias_info is not None]
    if len(written) != 1 or not written[0].is_out:
        return None
    tensor = node.kwargs.get(written[0].name)
    if not isinstance(tensor, Node) or same_shape(node.meta["val"], tensor.meta["val"]):
        return None
    return tensor


def _is_own_memory(old: Node, node: Node, scratch: Collection[str]) -> bool:
    """Whether no other node before, and no node after, uses the memory of a tensor that a node resizes."""
    if old.op == "placeholder" and old.name not in scratch:
        return False
    key, is_before = storage_id(old.meta["val"]), True
    for other in old.graph.nodes:
        if other is node:
            is_before = False
        elif (other is not old and is_before and storage_id(other.meta.get("val")) == key) or (
            not is_before and old in other.all_input_nodes
        ):
            return False
    return key is not None


def _make_functional(node: Node, functional: OpOverload, old: Node) -> Node:
    """Make a functional call of an ``out=`` variant, and return its result in the dtype of the tensor."""
    node.kwargs = {name: argument for name, argument in node.kwargs.items() if argument is not old}
    node.target, wanted = functional, node.meta["val"]
    args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda argument: argument.meta["val"])
    with fake_mode_of((wanted,)):
        val = functional(*args, **kwargs)
    if val.dtype == wanted.dtype:
        return node
    node.meta["val"] = val
    with node.graph.inserting_after(node):
        cast = node.graph.call_function(aten.to.dtype, (node, wanted.dtype))
    cast.meta = {**node.meta, "val": wanted}
    node.replace_all_uses_with(cast, delete_user_cb=lambda user: user is not cast)
    return cast
