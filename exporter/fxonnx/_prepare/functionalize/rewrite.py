"""The walk over the graph that replaces every write by the value it leaves behind."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, map_arg

from .alias_analysis import Effects, Facts, argument_at, find_writes, memory, read_facts, returns_fresh, view_overload
from .aliases import Alias, Memory
from .emit import Emitter, refuse, same_size
from .inplace_ops import Writer
from .view_inverses import OperatorView, PieceView

__all__ = ["Mutation", "functionalize"]

aten = torch.ops.aten

# Readers of shape and dtype only: for them the content need not be brought up to date.
_METADATA_READERS = frozenset(
    {
        aten._assert_tensor_metadata.default,
        aten.sym_size.int,
        aten.sym_stride.int,
        aten.sym_numel.default,
        aten.empty_like.default,
        aten.zeros_like.default,
        aten.ones_like.default,
        aten.full_like.default,
        aten.rand_like.default,
        aten.randn_like.default,
        aten.new_empty.default,
        aten.new_zeros.default,
        aten.new_ones.default,
        aten.new_full.default,
    }
)

_RESIZING = frozenset({"resize_", "resize_as_", "_resize_output_", "set_", "set_data"})


@dataclass(frozen=True)
class Mutation:
    """A placeholder whose memory the program writes to.

    Attributes:
        target: Name of the placeholder.
        value: The node that holds its final content, of the placeholder's shape and dtype.
        writer: The node that wrote to it last.
    """

    target: str
    value: Node
    writer: Node


def functionalize(graph: Graph) -> list[Mutation]:
    """Rewrites a graph in place such that no operator writes to memory.

    Outputs are what their memory holds at the end of the program, as torch returns aliases. Placeholders and outputs
    keep their order. The bodies of higher-order operators are replaced by functional copies.

    Args:
        graph: A graph as torch.export captures it, with fake tensors in ``meta["val"]``.

    Returns:
        A record for each placeholder (input, parameter, buffer or constant) that ends with another content, in order.

    Raises:
        PrepareError: If a write has no functional form; the text names the operator and the user's source line.
    """
    _functionalize_bodies(graph)
    effects = find_writes(graph)
    if effects is None:
        return []
    rewriter = _Rewriter(graph, effects)
    rewriter.run()
    return rewriter.mutations


def _functionalize_bodies(graph: Graph) -> None:
    owner = graph.owning_module
    if owner is None:
        return
    for node in graph.find_nodes(op="get_attr"):
        path, _, name = str(node.target).rpartition(".")
        body = getattr(owner.get_submodule(path), name, None)
        if not isinstance(body, GraphModule) or not _writes_somewhere(body):
            continue
        copy = Graph()
        copy.output(copy.graph_copy(body.graph, {}))
        functional = GraphModule(body, copy)
        mutations = functionalize(functional.graph)
        if mutations:
            user = next(iter(node.users), node)
            refuse(user, f"its body {node.target} writes to its argument {mutations[0].target}")
        # The modules of the graph belong to the program; only the graph's own module may change.
        node.target = str(node.target).replace(".", "_")
        setattr(owner, node.target, functional)


def _writes_somewhere(module: GraphModule) -> bool:
    graphs = [part.graph for part in module.modules() if isinstance(part, GraphModule)]
    return any(find_writes(graph) is not None for graph in graphs)


class _Rewriter:
    def __init__(self, graph: Graph, effects: Mapping[Any, Effects]) -> None:
        self.mutations: list[Mutation] = []
        self._graph = graph
        self._facts: Facts = read_facts(graph, effects)
        self._aliases: dict[Node, Alias] = {}
        self._lists: dict[Node, list[Alias | None]] = {}
        self._owners: list[tuple[Node, Alias]] = []
        self._writers: dict[Alias, Node] = {}
        self._emitter = Emitter(graph)
        self._memory = Memory(self._emitter, self._resolve)
        self._writer = Writer(self._emitter, self._memory, self._resolve)

    def run(self) -> None:
        """Rewrites the whole graph."""
        for node in list(self._graph.nodes):
            self._emitter.anchor = node
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "output":
                self._finish(node)
            elif self._facts.writes(node):
                self._write(node)
            else:
                self._visit(node)
        self._erase_dead()

    def _resolve(self, node: Node) -> Node:
        alias = self._aliases.get(node)
        return node if alias is None else self._memory.read(alias)

    def _glimpse(self, node: Node) -> Node:
        alias = self._aliases.get(node)
        return node if alias is None else self._memory.glimpse(alias)

    def _placeholder(self, node: Node) -> None:
        val = self._facts.values[node]
        if not self._facts.is_written(val):
            return
        for other, owner in self._owners:
            if memory(owner.val) != memory(val):
                continue
            if _same_view(val, owner.val):
                self._aliases[node] = owner
                break
            if node.users and other.users and not _apart(val, owner.val):
                refuse(node, f"it shares memory that is written in place with {other.name}")
        owner = self._aliases.setdefault(node, Alias.owner(node, val))
        self._owners.append((node, owner))

    def _finish(self, output: Node) -> None:
        self._map_arguments(output)
        for node, owner in self._owners:
            value = self._memory.read(owner)
            if (value, owner) not in self._owners:
                self.mutations.append(Mutation(node.name, value, self._writers[owner.owner_alias]))

    def _map_arguments(self, node: Node) -> None:
        if any(source in self._aliases for source in node.all_input_nodes):
            node.args, node.kwargs = map_arg((node.args, dict(node.kwargs)), self._resolve)

    def _visit(self, node: Node) -> None:
        effects = self._facts.effects.get(node.target)
        if effects is not None and effects.is_view:
            node.target = view_overload(node.target)  # type: ignore[arg-type]
        elif node.target is aten.view.default:
            # A value need not have the strides of the memory it replaces, and view insists on them.
            node.target = aten.reshape.default
        val = self._facts.values[node]
        if node.target is operator.getitem and node.args[0] in self._lists:
            self._piece(node, val)
        elif self._facts.is_written(val):
            self._alias(node, val)
        elif isinstance(val, (list, tuple)) and any(map(self._facts.is_written, val)):
            self._list(node, val)
        elif node.target in _METADATA_READERS:
            node.args, node.kwargs = map_arg((node.args, dict(node.kwargs)), self._glimpse)
        else:
            self._map_arguments(node)
        self._emitter.note_size(node)

    def _parent(self, node: Node, val: torch.Tensor) -> Node | None:
        """The argument of a node that lives in the same memory as its result."""
        key = memory(val)
        for source in node.all_input_nodes:
            if source in self._aliases and memory(self._aliases[source].val) == key:
                return source
        return None

    def _alias(self, node: Node, val: torch.Tensor) -> None:
        source = self._parent(node, val)
        if source is None:
            self._map_arguments(node)
            self._aliases[node] = Alias.owner(node, val)
            return
        parent = self._aliases[source]
        if _same_view(val, parent.val):
            self._aliases[node] = parent
            return
        view = OperatorView(node, val, source)
        if node.target is aten.as_strided.default:
            parent = parent.owner_alias
        self._aliases[node] = alias = Alias(parent, view, val)
        if parent.is_untouched:
            self._map_arguments(node)
            view.place()
            alias.value, alias.version = node, 0

    def _list(self, node: Node, vals: Sequence[Any]) -> None:
        pieces: list[Alias | None] = []
        self._lists[node] = pieces
        for index, val in enumerate(vals):
            source = self._parent(node, val) if self._facts.is_written(val) else None
            if source is None:
                pieces.append(None)
                continue
            parent = self._aliases[source]
            alias = Alias(parent, PieceView(node, vals, index, source), val)
            # The operator stays where it is, so it sees what was written up to here.
            alias.version = parent.log.version
            pieces.append(alias)
        self._map_arguments(node)

    def _piece(self, node: Node, val: Any) -> None:
        pieces = self._lists[node.args[0]]  # type: ignore[index]
        index: int = node.args[1]  # type: ignore[assignment]
        if pieces[index] is None and self._facts.is_written(val):
            pieces[index] = Alias.owner(node, val)
        alias = pieces[index]
        if alias is not None:
            self._aliases[node] = alias
            alias.value = alias.value or node

    def _write(self, node: Node) -> None:
        positions = tuple(at for at in self._facts.writes(node) if argument_at(node, at) is not None)
        name = node.target._schema.name.partition("::")[2]  # type: ignore[union-attr]
        if name in _RESIZING:
            refuse(node, "it changes the memory of a tensor, not only what is in it")
        aliases = [self._writable(node, argument_at(node, position)) for position in positions]
        self._writers.update((alias.owner_alias, node) for alias in aliases)
        schema = node.target._schema  # type: ignore[union-attr]
        # copy_to is what decompositions write for copy_.
        if positions == (0,) and (name.endswith("_") or name == "copy_to"):
            self._aliases[node] = aliases[0]
            value = self._writer.in_place(node, aliases[0])
            if value is not aliases[0].value or aliases[0].version != aliases[0].log.version:
                self._memory.write(aliases[0], value)
            return
        named = {schema.arguments[position].name: alias for position, alias in zip(positions, aliases, strict=True)}
        returns_others = returns_fresh(schema)
        values = self._writer.beside(node, named) if returns_others else self._writer.out(node, named)
        for alias, value in zip(aliases, values, strict=True):
            self._memory.write(alias, value)
        if returns_others:
            return
        if len(aliases) == 1:
            self._aliases[node] = aliases[0]
        else:
            self._lists[node] = [*aliases]

    def _writable(self, node: Node, target: Any) -> Alias:
        alias = self._aliases.get(target) if isinstance(target, Node) else None
        if alias is None:
            refuse(node, f"it writes to {target}, which is no single tensor")
        for step in alias.path_from(alias.owner_alias):
            if step.view.repeats_elements():
                refuse(node, f"it writes through {step.view.node}, which shows one element more than once")
        return alias

    def _erase_dead(self) -> None:
        """Erases views nobody looks through any more, and computations whose results were overwritten."""
        ours = {*self._aliases, *self._lists, *self._emitter.emitted} - {mutation.value for mutation in self.mutations}
        for node in reversed(self._graph.nodes):
            if node in ours and not node.users and node.op == "call_function" and not _is_random(node):
                self._graph.erase_node(node)


def _is_random(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _same_view(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors of one memory show the same elements in the same places."""
    return (
        left.dtype == right.dtype
        and left.dim() == right.dim()
        and left.is_conj() == right.is_conj()
        and left.is_neg() == right.is_neg()
        and all(map(same_size, (*left.shape, *left.stride()), (*right.shape, *right.stride())))
        and same_size(left.storage_offset(), right.storage_offset())
    )


def _apart(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors of one memory are known to lie in different parts of it."""
    ranges = []
    for val in (left, right):
        numbers = (val.storage_offset(), *val.shape, *val.stride())
        if not all(isinstance(number, int) for number in numbers):
            return False
        reach = sum((size - 1) * stride for size, stride in zip(val.shape, val.stride(), strict=True))
        ranges.append((val.storage_offset(), val.storage_offset() + reach))
    (first, last), (other_first, other_last) = ranges
    return last < other_first or other_last < first
