"""Checks of loaded ONNX models, whose files may have any content."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

__all__ = ["check_model"]


def check_model(model: ir.Model, path: Path) -> None:
    """Check what no reader of a model may rely on otherwise: dims, the places of external data, and the order of nodes.

    Nodes that only are in another order than they are computed in are sorted.

    Args:
        model: The model.
        path: Its file; external data lies in its directory.

    Raises:
        ValueError: If dims are negative, external data is outside of the directory or of its file, or a node reads a
            value that nothing computes or that depends on the node.
    """
    for name, tensor in _tensors(model):
        dims = tensor.shape.numpy()
        if any(dim < 0 for dim in dims):
            raise ValueError(f"the tensor {name!r} has the dims {list(dims)}")
        if isinstance(tensor, ir.ExternalTensor):
            problem = _problem_of_external(tensor, path.absolute().parent)
            if problem:
                raise ValueError(f"the external data of {name!r} {problem}")
    _check_order(model.graph)
    for function in model.functions.values():
        _check_order(function)


def _tensors(model: ir.Model) -> Iterator[tuple[str, ir.TensorProtocol]]:
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if value.const_value is not None:
                yield name, value.const_value
    owners: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for graph_or_function in owners:
        for node in ir.traversal.RecursiveGraphIterator(graph_or_function):
            for attribute in node.attributes.values():
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.TENSOR:
                    yield f"{node.op_type}.{attribute.name}", attribute.as_tensor()
                elif attribute.type == ir.AttributeType.TENSORS:
                    yield from ((f"{node.op_type}.{attribute.name}", each) for each in attribute.as_tensors())


def _problem_of_external(tensor: ir.ExternalTensor, directory: Path) -> str:
    """The problem with the location of external data; "" if there is none. Its reader reports a missing file."""
    location = os.fspath(tensor.location)
    if not location or "\0" in location:
        return f"has the location {location!r}"
    file = directory / location
    # A link in the directory may lead out of it, and the directory itself may be reached by a link.
    inside = os.path.realpath(directory)
    if Path(location).is_absolute() or os.path.commonpath([inside, os.path.realpath(file)]) != inside:
        return f"is outside of the model's directory: {location}"
    if file.exists() and not file.is_file():
        return f"is not a file: {location}"
    offset, length = tensor.offset or 0, tensor.nbytes if tensor.length is None else tensor.length
    if offset < 0 or length != tensor.nbytes:
        return f"has the offset {offset} and the length {length}, and its dtype and dims require {tensor.nbytes} bytes"
    if file.is_file() and offset + length > file.stat().st_size:
        return f"ends after its file: {location}"
    return ""


def _check_order(graph: ir.Graph | ir.Function) -> None:
    if not _is_sorted(graph):
        try:
            graph.sort()
        except ValueError:
            raise ValueError("nodes depend on each other in a cycle") from None


def _is_sorted(graph: ir.Graph | ir.Function) -> bool:
    """Whether all nodes, also in subgraphs, read what was computed before them.

    Raises:
        ValueError: If a value is computed nowhere.
    """
    known: set[ir.Value] = set()
    result = True

    def enter(entered: ir.Graph | ir.Function | ir.GraphView) -> None:
        known.update(entered.inputs)
        if isinstance(entered, ir.Graph):
            known.update(entered.initializers.values())

    for node in ir.traversal.RecursiveGraphIterator(graph, enter_graph=enter):
        for value in node.inputs:
            if value is not None and value not in known:
                if value.producer() is None:
                    raise ValueError(
                        f"the node {node.name or node.op_type!r} reads {value.name!r}, which nothing computes"
                    )
                result = False
        known.update(node.outputs)
    return result
