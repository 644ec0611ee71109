"""Inlining: the flat graph of a model with functions, with the names that an export without functions gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx_ir as ir

from .regions import subgraphs

__all__ = ["FLAT", "PARTS", "FlatNames", "flat_shapes", "inlined", "names_of"]

FLAT = "fxonnx.flat"
"""Key of ``ir.Model.meta``: the ``FlatNames`` of the model."""
PARTS = "fxonnx.parts"
"""Key of ``ir.Node.meta``: the ``Parts`` of the node."""

Parts: TypeAlias = int | Sequence[Any]
"""Position of a node in the flat graph, or for a call the parts of the nodes that it stands for.

In the body of a function, positions are those in the list of parts of a call.
"""


@dataclass(frozen=True)
class _ValueNames:
    """Name, shape and metadata of a value in the flat graph."""

    name: str | None
    shape: ir.Shape | None
    metadata: Mapping[str, str]

    @staticmethod
    def of(value: ir.Value) -> _ValueNames:
        return _ValueNames(value.name, value.shape, dict(value.metadata_props))

    def write(self, value: ir.Value) -> None:
        value.name = self.name
        value.shape = None if self.shape is None else self.shape.copy()
        value.metadata_props.clear()
        value.metadata_props.update(self.metadata)


@dataclass(frozen=True)
class _NodeNames:
    """Name and metadata of a node in the flat graph, of its outputs and of the nodes of its subgraphs."""

    name: str | None
    metadata: Mapping[str, str]
    outputs: Sequence[_ValueNames]
    subgraphs: Sequence[tuple[str | None, Sequence[_ValueNames], Sequence[_NodeNames]]]

    @staticmethod
    def of(node: ir.Node) -> _NodeNames:
        return _NodeNames(
            node.name,
            dict(node.metadata_props),
            [_ValueNames.of(value) for value in node.outputs],
            [
                (graph.name, [_ValueNames.of(value) for value in graph.inputs], [_NodeNames.of(each) for each in graph])
                for graph in subgraphs(node)
            ],
        )

    def write(self, node: ir.Node) -> None:
        node.name = self.name
        node.metadata_props.clear()
        node.metadata_props.update(self.metadata)
        for names, value in zip(self.outputs, node.outputs, strict=True):
            names.write(value)
        for (graph_name, inputs, nodes), graph in zip(self.subgraphs, subgraphs(node), strict=True):
            graph.name = graph_name
            for names, value in zip(inputs, graph.inputs, strict=True):
                names.write(value)
            for inner_names, inner in zip(nodes, graph, strict=True):
                inner_names.write(inner)

    def shapes(self) -> Iterator[ir.Shape]:
        for names in self.outputs:
            yield from () if names.shape is None else (names.shape,)
        for _, inputs, nodes in self.subgraphs:
            yield from (names.shape for names in inputs if names.shape is not None)
            for inner in nodes:
                yield from inner.shapes()


@dataclass(frozen=True)
class FlatNames:
    """The names in the flat graph of a model.

    Attributes:
        nodes: Those of the nodes, in order.
        initializers: Names of the initializers, in order.
    """

    nodes: Sequence[_NodeNames]
    initializers: Sequence[str]


def names_of(graph: ir.Graph) -> FlatNames:
    """Record the names of a flat graph, and the position of each node in its metadata."""
    for position, node in enumerate(graph):
        node.meta[PARTS] = position
    return FlatNames([_NodeNames.of(node) for node in graph], list(graph.initializers))


def flat_shapes(model: ir.Model) -> Iterator[ir.Shape]:
    """The shapes recorded for the flat graph of a model with functions."""
    flat: FlatNames | None = model.meta.get(FLAT)
    for names in () if flat is None else flat.nodes:
        yield from names.shapes()


def inlined(model: ir.Model) -> ir.Model:
    """The flat form of a model: the one that an export with ``functions="none"`` gives.

    Args:
        model: The model, not modified. Weights and dims have been replaced and renamed in the flat form as well.
    """
    flat: FlatNames | None = model.meta.get(FLAT)
    if flat is None or not model.functions:
        return model
    copy = model.clone()
    inliner = _Inliner(copy, flat)
    inliner.run()
    domains = {function.domain for function in copy.functions.values()}
    copy.functions.clear()
    for domain in domains:
        del copy.graph.opset_imports[domain]
    return copy


class _Inliner:
    """Inlining of the functions of a copy of a model."""

    def __init__(self, model: ir.Model, flat: FlatNames) -> None:
        self._functions = model.functions
        self._graph = model.graph
        self._flat = flat
        self._literals: dict[str, ir.Value] = dict(model.graph.initializers)

    def run(self) -> None:
        positions: dict[ir.Node, int] = {}
        nodes = list(self._graph)
        for node in nodes:
            if PARTS in node.meta:
                self._inline(node, node.meta[PARTS], positions)
        if all(PARTS in node.meta for node in nodes):
            ordered = sorted(self._graph, key=positions.__getitem__)
            self._graph.remove(ordered)
            self._graph.extend(ordered)
        else:
            # Nodes have been added after the export.
            self._graph.sort()
        order = {name: position for position, name in enumerate(self._flat.initializers)}
        values = sorted(self._literals.values(), key=lambda value: order.get(str(value.name), len(order)))
        self._graph.initializers.clear()
        for value in values:
            self._graph.register_initializer(value)

    def _inline(self, node: ir.Node, parts: Parts, positions: dict[ir.Node, int]) -> None:
        """Replace a call by the nodes of its function; restore the names of other nodes."""
        if isinstance(parts, int):
            positions[node] = parts
            self._flat.nodes[parts].write(node)
            return
        body = self._functions[node.op_identifier()].graph.clone()
        for formal, argument in zip(body.inputs, node.inputs, strict=True):
            if argument is not None:
                formal.replace_all_uses_with(argument)
        results = list(body.outputs)
        body.outputs.clear()
        inner_nodes = [inner for inner in body if not self._replace_literal(inner)]
        body.remove(list(body))
        self._graph.insert_before(node, inner_nodes)
        for output, result in zip(list(node.outputs), results, strict=True):
            output.replace_all_uses_with(result, replace_graph_outputs=True)
        self._graph.remove(node, safe=True)
        for inner in inner_nodes:
            self._inline(inner, _resolved(inner.meta[PARTS], parts), positions)

    def _replace_literal(self, node: ir.Node) -> bool:
        """Replace a literal of a function by the initializer of the flat graph; False for other nodes."""
        if PARTS in node.meta:
            return False
        value = node.outputs[0]
        name = str(value.name)
        if name not in self._literals:
            tensor = node.attributes["value"].as_tensor()
            self._literals[name] = ir.Value(name=name, type=value.type, shape=value.shape, const_value=tensor)
        value.replace_all_uses_with(self._literals[name])
        return True


def _resolved(parts: Parts, call: Sequence[Parts]) -> Parts:
    """The parts of a node in the body of a function, for one call of it."""
    return call[parts] if isinstance(parts, int) else [_resolved(part, call) for part in parts]
