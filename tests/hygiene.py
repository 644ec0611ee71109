"""Graph quality checks: no unused, duplicate or redundant nodes, constants and casts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

__all__ = ["check_graph"]

_SMALL = 1024
"""Literals with up to so many elements are stored once; weights may be equal by chance."""


def check_graph(model: ModelProto, weights: Collection[str] = ()) -> None:
    """Run the full ONNX checker, which compares inferred types and shapes with the recorded ones, and our checks.

    Args:
        model: The model.
        weights: Initializers that may have equal values, besides those with a dot in their name.

    Raises:
        AssertionError: Lists all findings.
    """
    onnx.checker.check_model(model, full_check=True)
    graph = model.graph
    wrong = [*_unused(graph), *_twice(graph, weights), *_needless(graph), *_untyped(graph), *_names(graph)]
    assert not wrong, "\n".join(wrong)


def _readers(graph: GraphProto) -> Counter[str]:
    """Count the uses of each value, including those in subgraphs."""
    read = Counter(name for node in graph.node for name in node.input)
    read.update(value.name for value in graph.output)
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                read.update(_readers(body))
    return read


def _unused(graph: GraphProto) -> list[str]:
    read = _readers(graph)
    inputs = {value.name for value in graph.input}
    wrong = [
        f"unused initializer {each.name}" for each in graph.initializer if not read[each.name] | (each.name in inputs)
    ]
    return wrong + [
        f"nothing reads {node.op_type} {node.name}"
        for node in graph.node
        if not any(read[name] for name in node.output)
    ]


def _twice(graph: GraphProto, weights: Collection[str]) -> list[str]:
    seen: dict[tuple[int, tuple[int, ...], bytes], str] = {}
    wrong = []
    for tensor in graph.initializer:
        size = 1
        for dim in tensor.dims:
            size *= dim
        if size > _SMALL or not tensor.raw_data or "." in tensor.name or tensor.name in weights:
            continue
        key = (tensor.data_type, tuple(tensor.dims), tensor.raw_data)
        if key in seen:
            wrong.append(f"constants {seen[key]} and {tensor.name} are equal")
        seen[key] = tensor.name
    return wrong


def _types(graph: GraphProto) -> dict[str, int]:
    values = (*graph.input, *graph.output, *graph.value_info)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    return types | {tensor.name: tensor.data_type for tensor in graph.initializer}


_WIDTHS = {
    **{TensorProto.BOOL: 1, TensorProto.UINT8: 8, TensorProto.INT8: 8, TensorProto.INT32: 32, TensorProto.INT64: 64},
    **{TensorProto.FLOAT16: 11, TensorProto.BFLOAT16: 8, TensorProto.FLOAT: 24, TensorProto.DOUBLE: 53},
}


_FLOATS = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)


def _needless(graph: GraphProto) -> list[str]:
    outputs = {value.name for value in graph.output}
    makers = {name: node for node in graph.node for name in node.output}
    types = _types(graph)
    wrong = []
    for node in graph.node:
        if node.domain:
            continue
        if node.op_type == "Identity" and node.output[0] not in outputs:
            wrong.append(f"Identity {node.name}")
        if node.op_type == "Cast":
            wrong.extend(_casts(node, makers, types))
        before = makers.get(node.input[0]) if node.input else None
        if node.op_type == "Transpose" and before is not None and before.op_type == "Transpose":
            wrong.append(f"two Transposes: {before.name}, {node.name}")
    return wrong


def _casts(node: NodeProto, makers: dict[str, NodeProto], types: dict[str, int]) -> list[str]:
    to, given = types.get(node.output[0]), types.get(node.input[0])
    if to == given:
        return [f"{node.name} casts to the type that it has, {helper.tensor_dtype_to_string(to or 0)}"]
    before = makers.get(node.input[0])
    if before is None or before.op_type != "Cast":
        return []
    source = types.get(before.input[0])
    widened = _WIDTHS.get(source or 0, 99) <= _WIDTHS.get(given or 0, 0)
    if {source, given} in ({TensorProto.INT8, TensorProto.UINT8}, {TensorProto.FLOAT16, TensorProto.BFLOAT16}):
        # Neither dtype can represent all values of the other.
        return []
    if source in _FLOATS and given not in _FLOATS:
        # The first cast rounds.
        return []
    return [f"there and back: {before.name}, {node.name}"] if source == to and widened else []


def _untyped(graph: GraphProto) -> list[str]:
    known = {value.name: value for value in (*graph.value_info, *graph.output)}
    read = _readers(graph)
    wrong = []
    for node in graph.node:
        for name in filter(read.__getitem__, node.output):
            value = known.get(name)
            if value is None or not value.type.WhichOneof("value"):
                wrong.append(f"{name} of {node.op_type} has no type")
            elif value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape"):
                wrong.append(f"{name} of {node.op_type} has no shape")
    return wrong


def _names(graph: GraphProto) -> list[str]:
    graphs = [graph, *_bodies(graph)]
    nodes = Counter(node.name for each in graphs for node in each.node)
    values = Counter(value.name for each in graphs for value in (*each.input, *each.initializer))
    # An initializer may be the default of an input.
    values.subtract({value.name for value in graph.input} & {tensor.name for tensor in graph.initializer})
    values.update(name for each in graphs for node in each.node for name in node.output if name)
    return [
        f"{count} {kind} are called {name!r}"
        for kind, counted in (("nodes", nodes), ("values", values))
        for name, count in counted.items()
        if count > 1 or not name
    ]


def _bodies(graph: GraphProto) -> Iterator[GraphProto]:
    for node in graph.node:
        for attribute in node.attribute:
            bodies = [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs
            for body in bodies:
                yield body
                yield from _bodies(body)
