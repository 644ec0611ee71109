"""Putting new nodes into the graph being rewritten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch.fx import Graph, Node

from ..._provenance import copy_provenance, source_line
from ...errors import PrepareError

__all__ = ["Emitter", "bind", "refuse", "same_size"]


def bind(node: Node) -> dict[str, Any]:
    """The arguments of an operator call by schema name, in the schema's order; absent ones as its defaults."""
    bound = {}
    for position, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if position < len(node.args):
            bound[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            bound[argument.name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            bound[argument.name] = argument.default_value
    return bound


def _known(size: int | torch.SymInt) -> Any:
    """A size as a number or an expression of symbols."""
    return size if isinstance(size, int) else size.node.expr


def same_size(left: int | torch.SymInt, right: int | torch.SymInt) -> bool:
    """Whether two sizes are known to be equal; asks no questions that would add a guard."""
    return bool(_known(left) == _known(right))


def refuse(node: Node, problem: str, *, hint: str | None = None) -> NoReturn:
    """Reports a node that has no functional form.

    Raises:
        PrepareError: Always; names the operator, the node and the user's source line.
    """
    raise PrepareError(f"{node.target}: {problem}\n  node: {node.format_node()}\n  at: {source_line(node)}", hint=hint)


class Emitter:
    """Adds nodes in front of an anchor, the node that is being rewritten.

    Attributes:
        anchor: New nodes go in front of this one.
        emitted: Every node that was added.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._sizes: dict[Any, Node] = {}
        self.anchor = next(iter(graph.nodes))
        self.emitted: list[Node] = []

    def call(
        self, target: Callable[..., Any], args: tuple[Any, ...], *, val: Any, origin: Node, kwargs: Any = None
    ) -> Node:
        """Adds one call.

        Args:
            target: The operator.
            args: Positional arguments.
            val: The fake tensor (or SymInt) the call results in.
            origin: The node whose place in the user's model the new node inherits.
            kwargs: Keyword arguments.
        """
        with self._graph.inserting_before(self.anchor):
            node = self._graph.call_function(target, args, kwargs)
        node.meta["val"] = val
        copy_provenance(node, origin)
        self.emitted.append(node)
        return node

    def note_size(self, node: Node) -> None:
        """Remembers a node that computes a symbolic size, for :meth:`size` to find."""
        val = node.meta.get("val")
        if isinstance(val, torch.SymInt):
            self._sizes.setdefault(_known(val), node)

    def size(self, size: int | torch.SymInt, dim: int, witness: Callable[[], Node]) -> int | Node:
        """A size as an argument: a number, or a node that computes it.

        Args:
            size: The size.
            dim: Where a tensor has this size.
            witness: Gives the node of such a tensor; asked only when no node is known that computes the size.
        """
        known = _known(size)
        if isinstance(known, int) or known.is_number:
            return int(known)
        if known not in self._sizes:
            node = witness()
            self.note_size(self.call(torch.ops.aten.sym_size.int, (node, dim), val=size, origin=node))
        return self._sizes[known]

    def shape(self, val: torch.Tensor, witness: Callable[[], Node]) -> Sequence[int | Node]:
        """The shape of a fake tensor as an argument; the witness is a node of this shape."""
        return [self.size(size, dim, witness) for dim, size in enumerate(val.shape)]
