"""Putting the nodes of one FX graph into another, and replacing a node by what was put in."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from fxonnx_translations._torch_compat import HigherOrderOperator, OpOverload

from .._provenance import copy_provenance
from ..errors import PrepareError

__all__ = [
    "between",
    "drop_dead",
    "erase_unused",
    "fake_mode_of",
    "find_attribute",
    "is_impure",
    "items",
    "lift",
    "module_attribute",
    "replace_node",
    "splice",
]

Result = Any
"""What a spliced graph returns: a node, a Python constant, or (nested) lists of them."""


def find_attribute(module: torch.nn.Module, path: str) -> Any:
    """The attribute a ``get_attr`` node names, or None."""
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def lift(owner: torch.fx.GraphModule, stem: str, value: Any) -> str:
    """Stores a value of a spliced graph as an attribute of the graph module it goes into.

    Args:
        owner: The graph module that gets the attribute.
        stem: How its name begins.
        value: A tensor or a graph module.

    Returns:
        The attribute's name, which was free before; the same one for the same value under the same stem.
    """
    name, count = stem, 0
    while hasattr(owner, name):
        if getattr(owner, name) is value:
            return name
        count += 1
        name = f"{stem}_{count}"
    if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
        owner.register_buffer(name, value, persistent=False)
    else:
        setattr(owner, name, value)
    return name


def items(node: torch.fx.Node) -> list[torch.fx.Node]:
    """``getitem`` nodes for all items of a node that returns a list, made right behind it where missing."""
    found = {user.args[1]: user for user in node.users if user.target is operator.getitem and user.args[0] is node}
    result = []
    for index, val in enumerate(node.meta["val"]):
        item = found.get(index)
        if item is None:
            with node.graph.inserting_after(node):
                item = node.graph.call_function(operator.getitem, (node, index))
            item.meta["val"] = val
            copy_provenance(item, node)
        else:
            # It may stand behind the node that wants it now.
            node.append(item)
        result.append(item)
    return result


def splice(
    graph: torch.fx.Graph,
    before: torch.fx.Node,
    body: torch.fx.Graph,
    inputs: Sequence[Any],
    attribute: Callable[[torch.fx.Node], str],
) -> Result:
    """Copies the nodes of a graph into another one.

    Args:
        graph: Where they go.
        before: The node they stand in front of and whose origin they take when they have none of their own.
        body: Where they come from; not changed.
        inputs: What the placeholders of ``body`` stand for, in their order.
        attribute: Says which attribute a ``get_attr`` node of ``body`` becomes.

    Returns:
        What ``body`` returns, in nodes of ``graph``.
    """
    placeholders = [node for node in body.nodes if node.op == "placeholder"]
    env: dict[torch.fx.Node, Any] = dict(zip(placeholders, inputs, strict=True))
    result: Result = None
    with graph.inserting_before(before):
        for node in body.nodes:
            if node.op == "output":
                result = torch.fx.map_arg(node.args[0], env.__getitem__)
            elif node.op == "get_attr":
                env[node] = graph.get_attr(attribute(node))
                env[node].meta.update(node.meta)
            elif node.op != "placeholder":
                env[node] = copied = graph.node_copy(node, env.__getitem__)
                if "nn_module_stack" not in copied.meta:
                    copy_provenance(copied, before)
    return result


def between(before: torch.fx.Node, after: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes that stand between two nodes of a graph."""
    found = []
    node = before.next
    while node is not after:
        found.append(node)
        node = node.next
    return found


def replace_node(node: torch.fx.Node, result: Result, made: Iterable[torch.fx.Node]) -> None:
    """Puts a result in the place of a node, which nothing reads afterwards.

    A node that was made for the purpose takes over name, value and origin of what it replaces, so that names the user
    sees stay what they were.

    Args:
        node: The node to replace; if it returns several values, the ``getitem`` nodes reading them are erased.
        result: What stands in for it: a node, a constant, or a list of them if the node returns several values.
        made: The nodes that were made for the purpose.
    """
    _replace(node, result, set(made))


def _replace(node: torch.fx.Node, result: Result, heirs: set[torch.fx.Node]) -> None:
    if isinstance(result, torch.fx.Node):
        node.replace_all_uses_with(result)
        if result in heirs:
            heirs.discard(result)
            result.name = node.name
            result.meta = {**result.meta, **node.meta}
        return
    for user in list(node.users):
        if isinstance(result, (list, tuple)) and user.target is operator.getitem and user.args[0] is node:
            _replace(user, result[user.args[1]], heirs)  # type: ignore[index]
            node.graph.erase_node(user)
        else:
            _substitute(user, node, result)


def _substitute(user: torch.fx.Node, node: torch.fx.Node, value: Any) -> None:
    def swap(argument: torch.fx.Node) -> Any:
        return value if argument is node else argument

    user.args = torch.fx.map_arg(user.args, swap)
    user.kwargs = torch.fx.map_arg(user.kwargs, swap)


def is_impure(node: torch.fx.Node) -> bool:
    """Whether a node does more than compute its value: it writes to an argument, or defines a symbol."""
    target = node.target
    if node.op != "call_function" or node.meta.get("unbacked_bindings"):
        return node.op != "get_attr"
    if isinstance(target, OpOverload):
        return target._schema.is_mutable
    return isinstance(target, HigherOrderOperator)


def erase_unused(nodes: Iterable[torch.fx.Node]) -> None:
    """Erases those of the nodes that nothing reads, then what only they read, and so on; never what is impure."""
    pending = dict.fromkeys(nodes)
    while pending:
        node, _ = pending.popitem()
        if not node.users and not is_impure(node):
            sources = node.all_input_nodes
            node.graph.erase_node(node)
            pending.update(dict.fromkeys(sources))


def module_attribute(module: torch.nn.Module, node: torch.fx.Node) -> Any:
    """What a ``get_attr`` node of the module's graph reads.

    Raises:
        PrepareError: If there is no such attribute.
    """
    value = find_attribute(module, str(node.target))
    if value is None:
        raise PrepareError(
            f"node {node.name} reads the attribute {node.target!r}, which its graph module does not have"
        )
    return value


def fake_mode_of(values: Iterable[Any]) -> Any:
    """The fake mode of the first FakeTensor among the values, or None."""
    for value in values:
        mode = getattr(value, "fake_mode", None)
        if mode is not None:
            return mode
    return None


def drop_dead(graph: torch.fx.Graph) -> None:
    """Erases the nodes of a functional graph that nothing reads."""
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)
