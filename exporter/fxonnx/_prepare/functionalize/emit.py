"""Insertion of nodes into the graph being functionalized."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch.fx import Graph, Node

from ..._nodes import schema_of
from ..._provenance import source_line
from ...errors import PrepareError, node_line
from ..graph_utils import insert_call
from ..sizes import expression

__all__ = ["Emitter", "arguments_with_defaults", "refuse"]


def arguments_with_defaults(node: Node) -> dict[str, Any]:
    """Bind the arguments of an operator call to schema names, in schema order, with defaults for absent ones."""
    bound = {}
    for position, argument in enumerate(schema_of(node).arguments):
        if position < len(node.args):
            bound[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            bound[argument.name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            bound[argument.name] = argument.default_value
    return bound


def refuse(node: Node, problem: str, *, hint: str | None = None) -> NoReturn:
    """Raise the error for a node without a functional form.

    Raises:
        PrepareError: Always; names the operator, the node and the user's source line.
    """
    shown = node_line(str(node.format_node()))
    raise PrepareError(f"{node.target}: {problem}\n{shown}\n  at: {source_line(node)}", hint=hint)


class Emitter:
    """Inserts nodes before an anchor, the node being rewritten.

    Attributes:
        anchor: The node before which new nodes are inserted.
        emitted: All inserted nodes.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._sizes: dict[Any, Node] = {}
        self.anchor = next(iter(graph.nodes))
        self.emitted: list[Node] = []

    def call(
        self, target: Callable[..., Any], args: tuple[Any, ...], *, val: Any, origin: Node, kwargs: Any = None
    ) -> Node:
        """Insert one call.

        Args:
            target: The operator.
            args: Positional arguments.
            val: The fake tensor (or SymInt) of the result.
            origin: The node whose provenance the new node gets.
            kwargs: Keyword arguments.
        """
        node = insert_call(self.anchor, target, args, kwargs, val=val, origin=origin)
        self.emitted.append(node)
        return node

    def note_size(self, node: Node) -> None:
        """Record a node that computes a symbolic size, for use by :meth:`size`."""
        val = node.meta.get("val")
        if isinstance(val, torch.SymInt):
            self._sizes.setdefault(expression(val), node)

    def size(self, size: int | torch.SymInt, dim: int, witness: Callable[[], Node]) -> int | Node:
        """A size as an argument: a number, or a node that computes it.

        Args:
            size: The size.
            dim: The dim of the witness with this size.
            witness: Returns a tensor node with this size; called only if no recorded node computes the size.
        """
        known = expression(size)
        if isinstance(known, int) or known.is_number:
            return int(known)
        if known not in self._sizes:
            node = witness()
            self.note_size(self.call(torch.ops.aten.sym_size.int, (node, dim), val=size, origin=node))
        return self._sizes[known]

    def shape(self, val: torch.Tensor, witness: Callable[[], Node]) -> Sequence[int | Node]:
        """The shape of a fake tensor as an argument; ``witness`` returns a node of this shape."""
        return [self.size(size, dim, witness) for dim, size in enumerate(val.shape)]
