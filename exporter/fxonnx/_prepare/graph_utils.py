"""Utilities for FX graphs: splice a graph into another one, replace and erase nodes, look up attributes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

import torch

from fxonnx_translations._torch_compat import HigherOrderOperator, OpOverload

from .._nodes import item_index
from .._provenance import copy_provenance
from ..errors import PrepareError

__all__ = [
    "STORAGE_DTYPES",
    "eliminate_dead_code",
    "erase_unused",
    "fake_mode_of",
    "find_attribute",
    "getitem_nodes",
    "insert_call",
    "is_impure",
    "module_attribute",
    "nodes_between",
    "replace_node",
    "splice",
    "store_attribute",
    "subgraphs_of",
    "uncomputed",
]

STORAGE_DTYPES = frozenset(
    dtype
    for name in (
        "int8",
        "uint8",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float4_e2m1fn_x2",
        *(f"int{bits}" for bits in range(1, 8)),
        *(f"uint{bits}" for bits in range(1, 8)),
    )
    if isinstance(dtype := getattr(torch, name, None), torch.dtype)
)
"""Dtypes that weights are stored in to save space; they are widened at run time, where they are used."""

SplicedResult = Any
"""The result of a spliced graph: a node, a Python constant, or (nested) lists of them."""


def find_attribute(module: torch.nn.Module, path: str) -> Any:
    """The attribute at a dotted path, as in the target of a ``get_attr`` node; None if it does not exist."""
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def subgraphs_of(owner: torch.nn.Module) -> Iterator[tuple[torch.fx.Node, torch.fx.GraphModule]]:
    """The graph modules that ``get_attr`` nodes of a graph module refer to, such as the branches of ``cond``."""
    graph: Any = owner.graph
    for node in graph.find_nodes(op="get_attr"):
        body = find_attribute(owner, str(node.target))
        if isinstance(body, torch.fx.GraphModule):
            yield node, body


def store_attribute(owner: torch.fx.GraphModule, stem: str, value: Any) -> str:
    """Store a tensor or graph module as an attribute of a graph module.

    Args:
        owner: The graph module to store it in.
        stem: Prefix of the attribute's name.
        value: A tensor or a graph module.

    Returns:
        A new attribute name; the existing one if the same value is already stored under this stem.
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


def getitem_nodes(node: torch.fx.Node) -> list[torch.fx.Node]:
    """``getitem`` nodes for all results of a multi-output node; missing ones are inserted right after it."""
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
            # Moved next to its source, since it may come after the node that needs it now.
            node.append(item)
        result.append(item)
    return result


def insert_call(
    before: torch.fx.Node,
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    val: Any,
    origin: torch.fx.Node | None = None,
) -> torch.fx.Node:
    """Insert a call with its fake value before a node; it has the provenance of ``origin``, by default the node."""
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, args, kwargs)
    node.meta["val"] = val
    copy_provenance(node, before if origin is None else origin)
    return node


def splice(
    graph: torch.fx.Graph,
    before: torch.fx.Node,
    body: torch.fx.Graph,
    inputs: Sequence[Any],
    attribute: Callable[[torch.fx.Node], str],
) -> SplicedResult:
    """Copy the nodes of a graph into another graph.

    Args:
        graph: The graph to copy into.
        before: The node before which they are inserted, and whose provenance they get if they have none.
        body: The graph to copy; not changed.
        inputs: Values for the placeholders of ``body``, in order.
        attribute: Maps a ``get_attr`` node of ``body`` to an attribute name of the module of ``graph``.

    Returns:
        The outputs of ``body`` as nodes of ``graph``.
    """
    placeholders = [node for node in body.nodes if node.op == "placeholder"]
    env: dict[torch.fx.Node, Any] = dict(zip(placeholders, inputs, strict=True))
    result: SplicedResult = None
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


def nodes_between(before: torch.fx.Node, after: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes between two nodes of a graph, in order, without these two."""
    found = []
    node = before.next
    while node is not after:
        found.append(node)
        node = node.next
    return found


def replace_node(node: torch.fx.Node, result: SplicedResult, made: Iterable[torch.fx.Node]) -> None:
    """Replace all uses of a node by a result.

    A newly inserted node takes over the name, value and provenance of the node it replaces, so that names visible to
    the user do not change.

    Args:
        node: The node to replace; if it has several results, their ``getitem`` nodes are erased.
        result: The replacement: a node, a constant, or a list of them if the node has several results.
        made: The newly inserted nodes.
    """
    _replace(node, result, set(made))


def _replace(node: torch.fx.Node, result: SplicedResult, heirs: set[torch.fx.Node]) -> None:
    if isinstance(result, torch.fx.Node):
        node.replace_all_uses_with(result)
        if result in heirs:
            heirs.discard(result)
            result.name = node.name
            result.meta = {**result.meta, **node.meta}
        return
    for user in list(node.users):
        if isinstance(result, (list, tuple)) and user.target is operator.getitem and user.args[0] is node:
            _replace(user, result[item_index(user)], heirs)
            node.graph.erase_node(user)
        else:
            _substitute(user, node, result)


def _substitute(user: torch.fx.Node, node: torch.fx.Node, value: Any) -> None:
    def swap(argument: torch.fx.Node) -> Any:
        return value if argument is node else argument

    user.args = torch.fx.map_arg(user.args, swap)
    user.kwargs = torch.fx.map_arg(user.kwargs, swap)


def is_impure(node: torch.fx.Node) -> bool:
    """Whether a node has side effects: it mutates an argument, defines an unbacked symbol, or is higher-order."""
    target = node.target
    if node.op != "call_function" or node.meta.get("unbacked_bindings"):
        return node.op != "get_attr"
    if isinstance(target, OpOverload):
        return target._schema.is_mutable
    return isinstance(target, HigherOrderOperator)


def erase_unused(nodes: Iterable[torch.fx.Node]) -> None:
    """Erase pure nodes without users, and then their inputs that have no other users, recursively."""
    pending = dict.fromkeys(nodes)
    while pending:
        node, _ = pending.popitem()
        if not node.users and not is_impure(node):
            sources = node.all_input_nodes
            node.graph.erase_node(node)
            pending.update(dict.fromkeys(sources))


def uncomputed(
    node: torch.fx.Node,
    known: Container[torch.fx.Node],
    inputs: Callable[[torch.fx.Node], Iterable[torch.fx.Node]],
) -> list[torch.fx.Node]:
    """The nodes whose results a node's result is computed from, and that are not known yet, in order; the node is last.

    Results that are computed in this order need no recursion, whose depth would be the length of the graph.

    Args:
        node: The node.
        known: The nodes whose results are known.
        inputs: Returns the nodes that a result is computed from directly.
    """
    pending = [node]
    found: dict[torch.fx.Node, None] = {}
    while pending:
        current = pending.pop()
        if current not in found and current not in known:
            found[current] = None
            pending.extend(inputs(current))
    return sorted(found)


def module_attribute(module: torch.nn.Module, node: torch.fx.Node) -> Any:
    """The attribute that a ``get_attr`` node of the module's graph refers to.

    Raises:
        PrepareError: If the attribute does not exist.
    """
    value = find_attribute(module, str(node.target))
    if value is None:
        raise PrepareError(
            f"node {node.name} reads the attribute {node.target!r}, which its graph module does not have"
        )
    return value


def fake_mode_of(values: Iterable[Any]) -> Any:
    """The fake mode of the first fake tensor among the values, or None."""
    for value in values:
        mode = getattr(value, "fake_mode", None)
        if mode is not None:
            return mode
    return None


def eliminate_dead_code(graph: torch.fx.Graph) -> None:
    """Dead code elimination: erase the nodes of a functional graph without users."""
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)
