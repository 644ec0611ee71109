"""Outlining: repeated regions of a graph become functions (FunctionProto) that the graph calls."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from fxonnx_translations._builder.name_allocator import NameAllocator

from .inlining import FLAT, PARTS, names_of
from .metadata import call_metadata
from .regions import (
    FULL_NAME,
    REGIONS,
    SCOPES,
    Interface,
    Region,
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

__all__ = ["REGION_DOMAIN", "REPEATED_DOMAIN", "outline"]

REGION_DOMAIN = "fxonnx.regions"
REPEATED_DOMAIN = "fxonnx.repeated"
_LEAST_NODES = 3
"""Minimum number of nodes of a function for repeated modules."""
_MOST_TRIMMED, _MOST_ATTEMPTS = 3, 50
"""Limits of the search for nodes at the boundary of a region by which it differs from the others."""
_LEAST_NESTED_SHARE = 5
"""A function in the body of another one must save at least this fraction, as its inverse, of the body's nodes."""


def outline(model: ir.Model, *, repeated: bool) -> None:
    """Replace equal regions by calls of one function for each kind, in place.

    Regions are compared as lowered, so that the model computes the same with and without functions.

    Args:
        model: The complete model; its nodes have their scopes as ``REGIONS`` and ``SCOPES``.
        repeated: Whether repeated modules become functions, as marked regions do.
    """
    model.meta[FLAT] = names_of(model.graph)
    outliner = _Outliner(model)
    outliner.run_marked(model.graph)
    if repeated:
        outliner.run(model.graph)
    graph = model.graph
    unused = [name for name, value in graph.initializers.items() if not value.uses() and value not in graph.inputs]
    for name in unused:
        del graph.initializers[name]


@dataclass(frozen=True)
class _Function:
    """A function and how to call it.

    Attributes:
        domain: Its domain.
        name: Its name.
        order: The order of its inputs, as positions among the regions'.
        outputs: Its outputs, as positions among the values of the regions.
    """

    domain: str
    name: str
    order: Sequence[int]
    outputs: Sequence[int]


class _Outliner:
    """The functions of one model."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._names = {domain: NameAllocator() for domain in (REGION_DOMAIN, REPEATED_DOMAIN)}
        self._functions: dict[tuple[str, str, Structure], _Function] = {}

    def run_marked(self, graph: ir.Graph) -> None:
        """Outline the marked regions of the main graph, innermost regions first."""
        depths = {depth for node in graph for depth in range(len(node.meta.get(REGIONS, ())))}
        for depth in sorted(depths, reverse=True):
            found = (region for region in find_regions(graph, REGIONS) if region.depth == depth)
            for regions in _by_name(found).values():
                for kind in _partition(list(graph), regions, least_nodes=1):
                    self._replace(graph, kind, REGION_DOMAIN, is_wanted=True)

    def run(self, graph: ir.Graph, *, least_share: int | None = None) -> None:
        """Outline the repeated modules of the main graph or of the body of a function, outermost modules first."""
        bodies = []
        size = sum(node.op_type != "Constant" for node in graph)
        for class_name, regions in sorted(_by_name(find_regions(graph, SCOPES)).items(), key=_outermost):
            # Regions in regions that have been replaced are not regions of the graph any more.
            present = [region for region in regions if all(node.graph is graph for node in region.nodes)]
            if len(present) < 2 and not any(name == class_name for _, name, _ in self._functions):
                continue
            kinds = _partition(list(graph), present, _LEAST_NODES)
            for kind in sorted(kinds, key=lambda kind: (kind[0].region.depth, -_saved_nodes(kind))):
                members = [
                    member for member in _disjoint(kind) if all(node.graph is graph for node in member.region.nodes)
                ]
                if not members or len(members[0].region.nodes) == size:
                    continue
                saved = _saved_nodes(members)
                is_wanted = saved > 0 and (least_share is None or saved * least_share >= size)
                body = self._replace(graph, members, REPEATED_DOMAIN, is_wanted=is_wanted)
                bodies += [] if body is None else [body]
        for body in bodies:
            self.run(body, least_share=_LEAST_NESTED_SHARE)
            body.remove([node for node in body if node.op_type == "Constant" and not node.outputs[0].uses()])

    def _replace(self, graph: ir.Graph, kind: Sequence[Interface], domain: str, *, is_wanted: bool) -> ir.Graph | None:
        """Replace isomorphic regions by calls of one function; return the body of a new function, or None."""
        nodes = list(graph)
        members = [member for member in kind if nodes_after(nodes, member.region.nodes) is not None]
        outputs = sorted({index for member in members for index in member.used_outside()})
        if not outputs:
            return None
        class_name = members[0].region.scope.name
        key = (domain, class_name, members[0].structure)
        known = self._functions.get(key)
        if known is not None and set(outputs) <= set(known.outputs):
            for member in members:
                if _replace_by_call(graph, member, known):
                    _release(member)
            graph.opset_imports[domain] = 1
            return None
        if not is_wanted:
            return None
        name = self._names[domain].unique(re.sub(r"\W", "_", class_name.rpartition(".")[2]))
        function = self._functions[key] = _Function(domain, name, _input_order(members[0]), outputs)
        return self._outline(graph, members, function)

    def _outline(self, graph: ir.Graph, members: Sequence[Interface], function: _Function) -> ir.Graph:
        first = members[0]
        shapes = [_common_shape([member.values[index] for member in members]) for index in range(len(first.values))]
        arguments = [[member.input(index) for member in members] for index in function.order]
        formals = _formal_inputs(first, arguments)
        replaced = [member for member in members if _replace_by_call(graph, member, function)]
        body = _new_body(first, dict(zip((values[0] for values in arguments), formals, strict=True)), self._model)
        for value, shape in zip(first.values, shapes, strict=True):
            value.shape = shape
        body.outputs.extend(first.values[index] for index in function.outputs)
        for member in replaced[1:]:
            _release(member)
        added = ir.Function(function.domain, function.name, graph=body, attributes=())
        self._model.functions[added.identifier()] = added
        for importing in (self._model.graph, graph):
            importing.opset_imports[function.domain] = 1
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


def _by_name(regions: Iterable[Region]) -> dict[str, list[Region]]:
    """The regions of each class or marked function."""
    found: dict[str, list[Region]] = {}
    for region in regions:
        found.setdefault(region.scope.name, []).append(region)
    return found


def _outermost(regions: tuple[str, Sequence[Region]]) -> int:
    return min(region.depth for region in regions[1])


def _partition(nodes: Sequence[ir.Node], regions: Sequence[Region], least_nodes: int) -> list[list[Interface]]:
    """Partition regions into kinds, after values have been excluded that other regions share."""
    order = {region.scope: position for position, region in enumerate(regions)}
    best: list[list[Interface]] = []
    for sizes_only in (True, False):
        hoisted = invariant_nodes(nodes, regions, sizes_only=sizes_only)
        kinds: dict[Any, list[Interface]] = {}
        for region in regions:
            own = replace(region, nodes=[node for node in region.nodes if node not in hoisted])
            if len(own.nodes) >= least_nodes and nodes_after(nodes, own.nodes) is not None:
                interface = interface_of(own)
                kinds.setdefault(interface.structure, []).append(interface)
        _adopt(kinds)
        # A function has the names and metadata of its first call.
        found = [sorted(kind, key=lambda member: order[member.region.scope]) for kind in kinds.values()]
        if not best or _saved_in_total(found) > _saved_in_total(best):
            best = found
    return best


def _saved_nodes(kind: Sequence[Interface]) -> int:
    """The number of nodes by which a function for these regions makes the model smaller."""
    return (len(kind) - 1) * len(kind[0].region.nodes) - len(kind) if kind else 0


def _adopt(kinds: dict[Structure, list[Interface]]) -> None:
    """Move regions to the largest kind that differ from it by few nodes at their inputs or outputs, without these.

    Patterns and CSE move such nodes across the boundary of modules: the first block may cast or reshape its input, and
    the others take the result of the block before.
    """
    largest = max(kinds.values(), key=_saved_nodes, default=[])
    if len(largest) < 2:
        return
    expected = largest[0]
    for structure, kind in list(kinds.items()):
        if kind is largest:
            continue
        trimmed = [_trimmed(member.region, expected) for member in kind]
        largest += [member for member in trimmed if member is not None]
        kinds[structure] = [member for member, found in zip(kind, trimmed, strict=True) if found is None]
        if not kinds[structure]:
            del kinds[structure]


def _trimmed(region: Region, expected: Interface) -> Interface | None:
    """The region without a few nodes at its inputs and outputs, if it then is isomorphic to another one."""
    surplus = Counter(node.op_type for node in region.nodes)
    surplus.subtract(Counter(node.op_type for node in expected.region.nodes))
    if min(surplus.values()) < 0 or not 0 < surplus.total() <= _MOST_TRIMMED:
        return None
    own = set(region.nodes)
    candidates = [node for node in region.nodes if surplus[node.op_type] and _is_at_boundary(node, own)]
    for trimmed in itertools.islice(itertools.combinations(candidates, surplus.total()), _MOST_ATTEMPTS):
        found = interface_of(replace(region, nodes=[node for node in region.nodes if node not in trimmed]))
        if found.structure == expected.structure:
            return found
    return None


def _is_at_boundary(node: ir.Node, region: Container[ir.Node]) -> bool:
    """Whether a node uses no value of its region, or computes none that the region uses."""
    uses = any(value is not None and value.producer() in region for value in node.inputs)
    return not uses or not any(user in region for user in node.successors())


def _saved_in_total(kinds: Sequence[Sequence[Interface]]) -> int:
    return sum(max(0, _saved_nodes(kind)) for kind in kinds)


def _input_order(interface: Interface) -> list[int]:
    """The order of a function's inputs: computed values first, then weights."""
    indices = range(len(interface.sources))
    return sorted(indices, key=lambda index: is_weight(interface.input(index)))


def _formal_inputs(first: Interface, arguments: Sequence[Sequence[ir.Value]]) -> list[ir.Value]:
    """The inputs of a function; weights have their names relative to the module."""
    names = NameAllocator()
    for value in first.values:
        names.unique(str(value.name))
    scopes = first.region.enclosing()
    prefix = f"{scopes[-1].path}." if scopes else ""
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


def _replace_by_call(graph: ir.Graph, member: Interface, function: _Function) -> bool:
    """Replace the nodes of a region by a call; False if the call and the region would depend on each other."""
    following = nodes_after(list(graph), member.region.nodes)
    if following is None:
        return False
    inside = set(all_nodes(member.region.nodes))
    values = []
    for index in function.outputs:
        old = member.values[index]
        new = ir.Value(name=old.name, type=old.type, shape=None if old.shape is None else old.shape.copy())
        if old.is_graph_output():
            # The metadata of a graph output does not apply to the output of the function.
            new.metadata_props.update(old.metadata_props)
            old.metadata_props.clear()
        for user, position in tuple(old.uses()):
            if user not in inside:
                user.replace_input_with(position, new)
        graph.outputs[:] = [new if value is old else value for value in graph.outputs]
        values.append(new)
    nodes, scopes = member.region.nodes, member.region.enclosing()
    call = ir.Node(
        function.domain,
        function.name,
        [member.input(index) for index in function.order],
        outputs=values,
        name=f"node_{values[0].name}",
        metadata_props=call_metadata(
            [(scope.key, scope.name) for scope in scopes],
            str(values[0].name),
            f"{function.domain}::{function.name}",
            [node.metadata_props for node in nodes],
        ),
    )
    call.meta[PARTS] = [node.meta[PARTS] for node in nodes]
    for key, depth in member.region.depths().items():
        call.meta[key] = nodes[0].meta.get(key, ())[:depth]
    graph.insert_after(member.region.nodes[-1], call)
    if following:
        graph.remove(following)
        graph.insert_after(call, following)
    graph.remove(member.region.nodes)
    return True


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
    for position, node in enumerate(first.region.nodes):
        node.meta[PARTS] = position
    for key, depth in first.region.inner_depths().items():
        for node in first.region.nodes:
            node.meta[key] = node.meta.get(key, ())[depth:]
    nodes = [*constants.values(), *first.region.nodes]
    domains = {"", *(node.domain for node in all_nodes(nodes))}
    imports = {domain: version for domain, version in model.graph.opset_imports.items() if domain in domains}
    return ir.Graph(list(formals.values()), [], nodes=nodes, opset_imports=imports)


def _release(member: Interface) -> None:
    """Detach the nodes of a region from the values that they used."""
    for node in all_nodes(member.region.nodes):
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
