"""The places at which outputs of a graph become dependent on the guards: the smallest tensors on the way to them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import onnx_ir as ir

from fxonnx_translations._builder.builder import Builder
from fxonnx_translations._builder.op_schema import schema_info

from .finalize import subgraphs
from .regions import REGIONS, SCOPES

__all__ = ["GuardPlace", "ancestors", "can_expand", "find_places"]

_SHAPE_READERS = frozenset({"Shape", "Size"})
"""Operators whose results do not depend on the elements of their input: a runtime need not compute them."""
_NODE_COST = 8192
"""The bytes that a runtime copies in the time that it needs to run a small node."""
_INPUT = 8
"""The cost of a copy of an output, in copies of an input, at which a model fails before it computes anything."""
_INNER = 3
"""The cost of a copy between two operators, which a runtime may not fuse then, in copies of an input or output."""


@dataclass(frozen=True)
class GuardPlace:
    """A tensor on the way to outputs, which depend on the guards once the uses of the tensor do.

    Attributes:
        value: The tensor.
        readers: The nodes of the main graph that use it, perhaps in a subgraph; none for an output of the graph.
        outputs: The positions of the outputs that depend on the uses, as the bits of a number.
        cost: The cost of a copy, in bytes.
    """

    value: ir.Value
    readers: tuple[ir.Node, ...]
    outputs: int
    cost: int


def find_places(
    builder: Builder, before: Collection[ir.Node], size_of: Callable[[ir.Value], int | None]
) -> list[GuardPlace]:
    """Choose tensors such that every output of a graph depends on one of them.

    Args:
        builder: The builder of the finished graph.
        before: The nodes that compute the conditions, which cannot depend on the guards.
        size_of: The bytes of a tensor at the example sizes, or None if they are not known.
    """
    graph = builder.graph
    places: list[GuardPlace] = []
    readers = _readers(graph)
    reached = _reached_outputs(graph, readers)
    reads_inputs = _depend_on_inputs(graph)
    for value in _values(graph):
        size = size_of(value) if value in reads_inputs and _is_copied(value, builder) else None
        if size is None:
            continue
        free = tuple(
            reader for reader in readers.get(value, ()) if reader not in before and reader.op_type not in _SHAPE_READERS
        )
        outputs = reduce(operator.or_, (reached[reader] for reader in free), 0)
        if outputs and not _is_in_region(value, free):
            is_input = value.producer() is None
            cost = size // _INPUT + _NODE_COST if is_input else _INNER * (size + _NODE_COST)
            places.append(GuardPlace(value, free, outputs, cost))
    for index, value in enumerate(graph.outputs):
        places.append(GuardPlace(value, (), 1 << index, (size_of(value) or 0) + _NODE_COST))
    return _cover(places, (1 << len(graph.outputs)) - 1)


def ancestors(values: Sequence[ir.Value]) -> set[ir.Node]:
    """The nodes that compute values, with those that compute the outer values of their subgraphs."""
    found: set[ir.Node] = set()
    pending = [value.producer() for value in values]
    while pending:
        node = pending.pop()
        if node is not None and node not in found:
            found.add(node)
            pending.extend(value.producer() for value in _sources(node))
    return found


def _cover(places: Sequence[GuardPlace], wanted: int) -> list[GuardPlace]:
    """Tensors of low cost on which all outputs depend: the cheapest one for each new output, repeatedly."""
    chosen: list[GuardPlace] = []
    while wanted:
        best = min(
            (place for place in places if place.outputs & wanted),
            key=lambda place: place.cost / (place.outputs & wanted).bit_count(),
        )
        chosen.append(best)
        wanted &= ~best.outputs
    return chosen


def _is_in_region(value: ir.Value, readers: Sequence[ir.Node]) -> bool:
    """Whether uses are between nodes that may become a function, which a node without a region would split."""
    producer = value.producer()
    return producer is not None and any(
        node.meta.get(key) for node in (producer, *readers) for key in (REGIONS, SCOPES)
    )


def can_expand(value: ir.Value, builder: Builder) -> bool:
    """Whether a value is a tensor of a known rank, of an element type that Expand has at the opset."""
    schema = schema_info("Expand", builder.opset_version) or schema_info("Reshape", builder.opset_version)
    is_typed = isinstance(value.type, ir.TensorType) and value.dtype is not None and value not in builder.unranked
    return is_typed and schema is not None and value.dtype is not None and schema.can_return(value.dtype)


def _is_copied(value: ir.Value, builder: Builder) -> bool:
    """Whether Expand copies the tensor at the opset, with a kernel of the target; scalars would get an axis."""
    has_kernel = value.dtype not in builder.missing_kernels.get("Expand", ())
    return has_kernel and bool(builder.recorded_dims(value)) and can_expand(value, builder)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from (value for value in graph.inputs if not value.is_initializer())
    for node in graph:
        yield from node.outputs


def _sources(node: ir.Node) -> list[ir.Value]:
    """The inputs of a node, with the outer values of its subgraphs."""
    found = [value for value in node.inputs if value is not None]
    for body in subgraphs(node):
        for inner in body:
            found += _sources(inner)
        # Not +=, for which onnx_ir's outputs have an operator that raises.
        found.extend(body.outputs)
    return found


def _readers(graph: ir.Graph) -> Mapping[ir.Value, Sequence[ir.Node]]:
    found: dict[ir.Value, dict[ir.Node, None]] = {}
    for node in graph:
        for value in _sources(node):
            found.setdefault(value, {})[node] = None
    return {value: list(nodes) for value, nodes in found.items()}


def _reached_outputs(graph: ir.Graph, readers: Mapping[ir.Value, Sequence[ir.Node]]) -> dict[ir.Node, int]:
    """The outputs that depend on the elements of a node's results, as the bits of a number."""
    positions: dict[ir.Value, int] = {}
    for index, value in enumerate(graph.outputs):
        positions[value] = positions.get(value, 0) | 1 << index
    found: dict[ir.Node, int] = {}
    for node in reversed(graph):
        reached = 0
        for value in node.outputs:
            reached |= positions.get(value, 0)
            for reader in readers.get(value, ()):
                if reader.op_type not in _SHAPE_READERS:
                    reached |= found[reader]
        found[node] = reached
    return found


def _depend_on_inputs(graph: ir.Graph) -> set[ir.Value]:
    """The values that depend on the elements of the inputs, and not on their sizes alone."""
    found = {value for value in graph.inputs if not value.is_initializer()}
    for node in graph:
        if node.op_type not in _SHAPE_READERS and not found.isdisjoint(_sources(node)):
            found.update(node.outputs)
    return found
