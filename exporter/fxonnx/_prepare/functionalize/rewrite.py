"""Functionalize a graph: one pass over its nodes that replaces mutations by functional calls."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, map_arg

from ..._nodes import input_of, item_index, operator_of, schema_of
from ..sizes import same_size
from .aliases import (
    Alias,
    AliasInfo,
    Memory,
    MemoryEffects,
    analyze_aliases,
    argument_at,
    memory_effects,
    replace_resizes,
    returns_new_tensors,
    storage_id,
    view_overload,
)
from .emit import Emitter, refuse
from .inplace_ops import InplaceRewriter, replace_resized
from .view_inverses import MultiOutputView, OperatorView

__all__ = ["Mutation", "functionalize"]

aten = torch.ops.aten

# Operators that read shape and dtype only: their inputs need not be up to date.
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
    """A placeholder that the program mutates.

    Attributes:
        target: Name of the placeholder.
        value: The node with its final content, of the placeholder's shape and dtype unless it is resized.
        writer: The last node that wrote to it.
    """

    target: str
    value: Node
    writer: Node


def functionalize(graph: Graph, scratch: Collection[str] = ()) -> list[Mutation]:
    """Rewrite a graph in place so that no operator mutates its arguments.

    Outputs get the final content of their memory, since torch returns aliases. Placeholders and outputs keep their
    order. The subgraphs of higher-order operators are replaced by functional copies.

    Args:
        graph: A graph as captured by torch.export, with fake tensors in ``meta["val"]``.
        scratch: Names of the placeholders that operators may resize: those of buffers and constants.

    Returns:
        A record for each mutated placeholder (input, parameter, buffer or constant), in order.

    Raises:
        PrepareError: If a mutation has no functional form; the text names the operator and the user's source line.
    """
    _functionalize_subgraphs(graph)
    replace_resizes(graph)
    effects = memory_effects(graph)
    if effects is None:
        return []
    resized = replace_resized(graph, scratch)
    rewriter = _Functionalizer(graph, (memory_effects(graph) or {}) if resized else effects)
    rewriter.run(resized)
    return rewriter.mutations


def _functionalize_subgraphs(graph: Graph) -> None:
    owner = graph.owning_module
    if owner is None:
        return
    for node in graph.find_nodes(op="get_attr"):
        path, _, name = str(node.target).rpartition(".")
        body = getattr(owner.get_submodule(path), name, None)
        if not isinstance(body, GraphModule) or not _has_writes(body):
            continue
        copy = Graph()
        copy.output(copy.graph_copy(body.graph, {}))
        functional = GraphModule(body, copy)
        mutations = functionalize(functional.graph)
        if mutations:
            user = next(iter(node.users), node)
            refuse(user, f"its subgraph {node.target} writes to its argument {mutations[0].target}")
        # Submodules are shared with the captured program; only the module of this graph may change.
        node.target = str(node.target).replace(".", "_")
        setattr(owner, node.target, functional)


def _has_writes(module: GraphModule) -> bool:
    graphs = [part.graph for part in module.modules() if isinstance(part, GraphModule)]
    return any(memory_effects(graph) is not None for graph in graphs)


class _Functionalizer:
    """The state of one functionalization: aliases of nodes, and the last writer of each storage."""

    def __init__(self, graph: Graph, effects: Mapping[Any, MemoryEffects]) -> None:
        self.mutations: list[Mutation] = []
        self._graph = graph
        self._alias_info: AliasInfo = analyze_aliases(graph, effects)
        self._aliases: dict[Node, Alias] = {}
        self._lists: dict[Node, list[Alias | None]] = {}
        self._owners: list[tuple[Node, Alias]] = []
        self._last_writer: dict[Alias, Node] = {}
        self._emitter = Emitter(graph)
        self._memory = Memory(self._emitter, self._resolve)
        self._inplace = InplaceRewriter(self._emitter, self._memory, self._resolve)

    def run(self, resized: Sequence[tuple[Node, Node]]) -> None:
        """Rewrite the whole graph."""
        for node in list(self._graph.nodes):
            self._emitter.anchor = node
            if node.op == "placeholder":
                self._visit_placeholder(node)
            elif node.op == "output":
                self._visit_output(node, resized)
            elif self._alias_info.writes(node):
                self._visit_write(node)
            else:
                self._visit(node)
        self._eliminate_dead_code()

    def _resolve(self, node: Node) -> Node:
        alias = self._aliases.get(node)
        return node if alias is None else self._memory.read(alias)

    def _witness(self, node: Node) -> Node:
        alias = self._aliases.get(node)
        return node if alias is None else self._memory.witness_of(alias)

    def _visit_placeholder(self, node: Node) -> None:
        val = self._alias_info.values[node]
        if not self._alias_info.is_written(val):
            return
        for other, owner in self._owners:
            if storage_id(owner.val) != storage_id(val):
                continue
            if _same_view(val, owner.val):
                if not node.users:
                    # A further name of one tensor, which the program reads and writes by the first one.
                    return
                self._aliases[node] = owner
                break
            if node.users and other.users and not _is_disjoint(val, owner.val):
                refuse(
                    self._first_write(node),
                    f"it writes to memory that {other.name} and {node.name} share; they are separate in an ONNX model",
                    hint="export with a clone() of one of them, or write to a copy in forward",
                )
        owner = self._aliases.setdefault(node, Alias.owner(node, val))
        self._owners.append((node, owner))

    def _first_write(self, owner: Node) -> Node:
        """The first node that writes to the storage of a placeholder."""
        values = self._alias_info.values
        node: Node
        for node in self._graph.nodes:
            for position in self._alias_info.writes(node):
                written = argument_at(node, position)
                if isinstance(written, Node) and storage_id(values[written]) == storage_id(values[owner]):
                    return node
        return owner

    def _visit_output(self, output: Node, resized: Sequence[tuple[Node, Node]]) -> None:
        self._map_arguments(output)
        self.mutations += [
            Mutation(old.name, self._resolve(new), new) for old, new in resized if old.op == "placeholder"
        ]
        for node, owner in self._owners:
            value = self._memory.read(owner)
            if (value, owner) not in self._owners:
                self.mutations.append(Mutation(node.name, value, self._last_writer[owner.owner_alias]))

    def _map_arguments(self, node: Node) -> None:
        if any(source in self._aliases for source in node.all_input_nodes):
            node.args, node.kwargs = map_arg((node.args, dict(node.kwargs)), self._resolve)

    def _visit(self, node: Node) -> None:
        effects = self._alias_info.effects.get(node.target)
        if effects is not None and effects.is_view:
            node.target = view_overload(operator_of(node))
        elif node.target is aten.view.default:
            # The functional value may have other strides than the mutated tensor, which view could reject.
            node.target = aten.reshape.default
        val = self._alias_info.values[node]
        if node.target is operator.getitem and node.args[0] in self._lists:
            self._list_item(node, val)
        elif self._alias_info.is_written(val):
            self._alias(node, val)
        elif isinstance(val, (list, tuple)) and any(map(self._alias_info.is_written, val)):
            self._list_result(node, val)
        elif node.target in _METADATA_READERS:
            node.args, node.kwargs = map_arg((node.args, dict(node.kwargs)), self._witness)
        else:
            self._map_arguments(node)
        self._emitter.note_size(node)

    def _parent(self, node: Node, val: torch.Tensor) -> Node | None:
        """The argument of a node that shares storage with its result, or None."""
        key = storage_id(val)
        for source in node.all_input_nodes:
            if source in self._aliases and storage_id(self._aliases[source].val) == key:
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

    def _list_result(self, node: Node, vals: Sequence[Any]) -> None:
        pieces: list[Alias | None] = []
        self._lists[node] = pieces
        for index, val in enumerate(vals):
            source = self._parent(node, val) if self._alias_info.is_written(val) else None
            if source is None:
                pieces.append(None)
                continue
            parent = self._aliases[source]
            alias = Alias(parent, MultiOutputView(node, vals, index, source), val)
            # The operator is not moved, so that its results reflect the writes up to here.
            alias.version = parent.log.version
            pieces.append(alias)
        self._map_arguments(node)

    def _list_item(self, node: Node, val: Any) -> None:
        pieces = self._lists[input_of(node)]
        index = item_index(node)
        if pieces[index] is None and self._alias_info.is_written(val):
            pieces[index] = Alias.owner(node, val)
        alias = pieces[index]
        if alias is not None:
            self._aliases[node] = alias
            alias.value = alias.value or node

    def _visit_write(self, node: Node) -> None:
        positions = tuple(at for at in self._alias_info.writes(node) if argument_at(node, at) is not None)
        schema = schema_of(node)
        name = schema.name.partition("::")[2]
        if name in _RESIZING:
            refuse(node, "it changes the storage of a tensor, not only its content")
        aliases = [self._writable(node, argument_at(node, position)) for position in positions]
        self._last_writer.update((alias.owner_alias, node) for alias in aliases)
        # Decompositions use prims::copy_to for copy_.
        if positions == (0,) and (name.endswith("_") or name == "copy_to"):
            self._aliases[node] = aliases[0]
            value = self._inplace.in_place(node, aliases[0])
            if value is not aliases[0].value or aliases[0].version != aliases[0].log.version:
                self._memory.write(aliases[0], value)
            return
        named = {schema.arguments[position].name: alias for position, alias in zip(positions, aliases, strict=True)}
        returns_others = returns_new_tensors(schema)
        values = (
            self._inplace.mutated_arguments(node, named) if returns_others else self._inplace.out_variant(node, named)
        )
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
            refuse(node, f"it writes to {target}, which is not a single tensor")
        for step in alias.path_from(alias.owner_alias):
            if step.view.repeats_elements():
                refuse(node, f"it writes through {step.view.node}, a view with overlapping elements")
        return alias

    def _eliminate_dead_code(self) -> None:
        """Erase unused views, and computations whose results were overwritten."""
        ours = {*self._aliases, *self._lists, *self._emitter.emitted} - {mutation.value for mutation in self.mutations}
        for node in reversed(self._graph.nodes):
            if node in ours and not node.users and node.op == "call_function" and not _is_random(node):
                self._graph.erase_node(node)


def _is_random(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _same_view(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors of one storage have the same elements in the same positions."""
    return (
        left.dtype == right.dtype
        and left.dim() == right.dim()
        and left.is_conj() == right.is_conj()
        and left.is_neg() == right.is_neg()
        and all(map(same_size, (*left.shape, *left.stride()), (*right.shape, *right.stride())))
        and same_size(left.storage_offset(), right.storage_offset())
    )


def _is_disjoint(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors of one storage are known to occupy disjoint ranges of it."""
    ranges = []
    for val in (left, right):
        numbers = (val.storage_offset(), *val.shape, *val.stride())
        if not all(isinstance(number, int) for number in numbers):
            return False
        reach = sum((size - 1) * stride for size, stride in zip(val.shape, val.stride(), strict=True))
        ranges.append((val.storage_offset(), val.storage_offset() + reach))
    (first, last), (other_first, other_last) = ranges
    return last < other_first or other_last < first
