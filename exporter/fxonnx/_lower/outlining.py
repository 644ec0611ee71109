"""Outlining: repeated regions of a graph become functions (FunctionProto) that the graph calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from fxonnx_translations._builder.name_allocator import NameAllocator

from .metadata import call_metadata
from .regions import (
    FULL_NAME,
    SCOPES,
    Interface,
    Region,
    Scope,
    Structure,
    all_nodes,
    find_regions,
    full_name_of,
    interface_of,
    invariant_nodes,
    is_weight,
    literal_of,
    nodes_after,
)

__all__ = ["REPEATED_DOMAIN", "outline_repeated"]

REPEATED_DOMAIN = "fxonnx.repeated"
_LEAST_NODES = 3
"""Minimum number of nodes of a function."""
_LEAST_NESTED_SHARE = 5
"""A function in the body of another one must save at least this fraction, as its inverse, of the body's nodes."""


def outline_repeated(model: ir.Model) -> None:
    """Replace equal calls of modules by calls of one function for each kind, in place.

    Regions are compared as lowered, so that the model computes the same with and without functions. The
    outermost repeated modules become functions, and then those in their bodies.

    Args:
        model: The complete model; the nodes have their scopes as ``SCOPES``.
    """
    _Outliner(model).run(model.graph)
    graph = model.graph
    unused = [name for name, value in graph.initializers.items() if not value.uses() and value not in graph.inputs]
    for name in unused:
        del graph.initializers[name]


@dataclass(frozen=True)
class _Function:
    """A function and how to call it.

    Attributes:
        name: Its name in ``REPEATED_DOMAIN``.
        order: The order of its inputs, as positions among those of the regions.
        outputs: Its outputs, as positions among the values of the regions.
    """

    name: str
    order: Sequence[int]
    outputs: Sequence[int]


class _Outliner:
    """The functions of one model."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._names = NameAllocator()
        self._functions: dict[tuple[str, Structure], _Function] = {}

    def run(self, graph: ir.Graph, *, least_share: int | None = None) -> None:
        """Outline the repeated regions of the main graph or of the body of a function, outermost modules first."""
        bodies = []
        size = sum(node.op_type != "Constant" for node in graph)
        for kind in sorted(_kinds(list(graph)), key=lambda kind: (kind[0].region.depth, -_saved_nodes(kind))):
            # Regions in regions that have been replaced, and overlapping ones, are not regions of the graph any more.
            members = [member for member in _disjoint(kind) if all(node.graph is graph for node in member.region.nodes)]
            is_worthwhile = least_share is None or _saved_nodes(members) * least_share >= size
            if members and len(members[0].region.nodes) < size and is_worthwhile:
                body = self._replace(graph, members)
                bodies += [] if body is None else [body]
        for body in bodies:
            self.run(body, least_share=_LEAST_NESTED_SHARE)
            body.remove([node for node in body if node.op_type == "Constant" and not node.outputs[0].uses()])

    def _replace(self, graph: ir.Graph, members: Sequence[Interface]) -> ir.Graph | None:
        """Replace isomorphic regions by calls of one function; return its body if it is a new function."""
        key = (members[0].region.scope.name, members[0].structure)
        known = self._functions.get(key)
        outputs = sorted({index for member in members for index in member.used_outside()})
        if known is not None and set(outputs) <= set(known.outputs):
            for member in members:
                _replace_by_call(graph, member, known)
                _release(member)
            graph.opset_imports[REPEATED_DOMAIN] = 1
            return None
        if _saved_nodes(members) <= 0 or not outputs:
            return None
        name = self._names.unique(re.sub(r"\W", "_", key[0].rpartition(".")[2]))
        function = self._functions[key] = _Function(name, _input_order(members[0]), outputs)
        return self._outline(graph, members, function)

    def _outline(self, graph: ir.Graph, members: Sequence[Interface], function: _Function) -> ir.Graph:
        first = members[0]
        shapes = [_common_shape([member.values[index] for member in members]) for index in range(len(first.values))]
        arguments = [[member.input(index) for member in members] for index in function.order]
        formals = _formal_inputs(first, arguments)
        for member in members:
            _replace_by_call(graph, member, function)
        body = _new_body(first, dict(zip((values[0] for values in arguments), formals, strict=True)), self._model)
        for value, shape in zip(first.values, shapes, strict=True):
            value.shape = shape
        body.outputs.extend(first.values[index] for index in function.outputs)
        for member in members[1:]:
            _release(member)
        added = ir.Function(REPEATED_DOMAIN, function.name, graph=body, attributes=())
        self._model.functions[added.identifier()] = added
        for importing in (self._model.graph, graph):
            importing.opset_imports[REPEATED_DOMAIN] = 1
        return body


def _disjoint(kind: Sequence[Interface]) -> list[Interface]:
    """The regions that do not overlap a previous one."""
    taken: set[ir.Node] = set()
    found = []
    for member in kind:
        if taken.isdisjoint(member.region.nodes):
            taken.update(member.region.nodes)
            found.append(member)
    return found


def _kinds(nodes: Sequence[ir.Node]) -> list[list[Interface]]:
    """The kinds of regions: isomorphic regions of modules of one class."""
    by_class: dict[str, list[Region]] = {}
    for region in find_regions(nodes):
        by_class.setdefault(region.scope.name, []).append(region)
    return [kind for regions in by_class.values() for kind in _partition(nodes, regions)]


def _partition(nodes: Sequence[ir.Node], regions: Sequence[Region]) -> list[list[Interface]]:
    """Partition regions into kinds, after values have been excluded that other regions share."""
    best: list[list[Interface]] = []
    for sizes_only in (True, False):
        hoisted = invariant_nodes(nodes, regions, sizes_only=sizes_only)
        kinds: dict[Any, list[Interface]] = {}
        for region in regions:
            own = Region(region.scope, region.depth, [node for node in region.nodes if node not in hoisted])
            if len(own.nodes) >= _LEAST_NODES and nodes_after(nodes, own.nodes) is not None:
                interface = interface_of(own)
                kinds.setdefault(interface.structure, []).append(interface)
        found = list(kinds.values())
        if not best or sum(map(_saved_nodes, found)) > sum(map(_saved_nodes, best)):
            best = found
    return best


def _saved_nodes(kind: Sequence[Interface]) -> int:
    """The number of nodes by which a function for these regions makes the model smaller."""
    return (len(kind) - 1) * len(kind[0].region.nodes) - len(kind) if kind else 0


def _input_order(interface: Interface) -> list[int]:
    """The order of a function's inputs: computed values first, then weights."""
    indices = range(len(interface.sources))
    return sorted(indices, key=lambda index: is_weight(interface.input(index)))


def _formal_inputs(first: Interface, arguments: Sequence[Sequence[ir.Value]]) -> list[ir.Value]:
    """The inputs of a function; weights have their names relative to the module."""
    names = NameAllocator()
    for value in first.values:
        names.unique(str(value.name))
    prefix = f"{first.region.scope.path}."
    formals = []
    for values in arguments:
        full_name = full_name_of(values[0])
        name = names.unique(full_name.removeprefix(prefix))
        formal = ir.Value(name=name, type=values[0].type, shape=_common_shape(values))
        if is_weight(values[0]):
            formal.meta[FULL_NAME] = full_name
        formals.append(formal)
    return formals


def _common_shape(values: Sequence[ir.Value]) -> ir.Shape | None:
    """The dims that all values share; the others are unknown."""
    shapes = [value.shape for value in values]
    if any(shape is None for shape in shapes):
        return None
    dims = zip(*(shape for shape in shapes if shape is not None), strict=True)
    return ir.Shape([each[0] if all(dim == each[0] for dim in each) else None for each in dims])


def _replace_by_call(graph: ir.Graph, member: Interface, function: _Function) -> None:
    """Move the nodes of a region out of the graph and insert a call in their place."""
    inside = set(all_nodes(member.region.nodes))
    values = []
    for index in function.outputs:
        old = member.values[index]
        new = ir.Value(name=old.name, type=old.type, shape=None if old.shape is None else old.shape.copy())
        if old.is_graph_output():
            # What describes a graph output does not describe the output of the function.
            new.metadata_props.update(old.metadata_props)
            old.metadata_props.clear()
        for user, position in tuple(old.uses()):
            if user not in inside:
                user.replace_input_with(position, new)
        graph.outputs[:] = [new if value is old else value for value in graph.outputs]
        values.append(new)
    nodes, depth = member.region.nodes, member.region.depth
    scopes: Sequence[Scope] = nodes[0].meta[SCOPES]
    call = ir.Node(
        REPEATED_DOMAIN,
        function.name,
        [member.input(index) for index in function.order],
        outputs=values,
        name=f"node_{values[0].name}",
        metadata_props=call_metadata(
            [(scope.key, scope.name) for scope in scopes[: depth + 1]],
            str(values[0].name),
            f"{REPEATED_DOMAIN}::{function.name}",
            [node.metadata_props for node in nodes],
        ),
    )
    call.meta[SCOPES] = scopes[:depth]
    following = nodes_after(list(graph), member.region.nodes)
    graph.insert_after(member.region.nodes[-1], call)
    if following:
        graph.remove(following)
        graph.insert_after(call, following)
    graph.remove(member.region.nodes)


def _new_body(first: Interface, formals: Mapping[ir.Value, ir.Value], model: ir.Model) -> ir.Graph:
    """The body of a function, made of the nodes of its first region."""
    own = set(first.values)
    constants: dict[ir.Value, ir.Node] = {}
    for node in all_nodes(first.region.nodes):
        for index, value in enumerate(node.inputs):
            if value is None or value in own:
                continue
            literal = literal_of(value)
            if literal is None:
                node.replace_input_with(index, formals[value])
                continue
            if value not in constants:
                copy = ir.Value(name=value.name, type=value.type, shape=value.shape)
                attribute = ir.AttrTensor("value", literal)
                constants[value] = ir.Node("", "Constant", [], [attribute], outputs=[copy], name=f"node_{value.name}")
            node.replace_input_with(index, constants[value].outputs[0])
    for node in first.region.nodes:
        node.meta[SCOPES] = node.meta[SCOPES][first.region.depth + 1 :]
    nodes = [*constants.values(), *first.region.nodes]
    domains = {"", *(node.domain for node in all_nodes(nodes))}
    imports = {domain: version for domain, version in model.graph.opset_imports.items() if domain in domains}
    return ir.Graph(list(formals.values()), [], nodes=nodes, opset_imports=imports)


def _release(member: Interface) -> None:
    """Detach the nodes of a region from the values that they used."""
    for node in all_nodes(member.region.nodes):
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
