"""ONNX models of any exporter, whose files may have any content: loading, checks, types, and the origin of nodes."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ._paths import is_file, missing_file, path_of
from ._provenance import innermost_frame
from .errors import ArgumentError

__all__ = ["check_external_data", "is_sequence", "load_model", "origin_of", "text_list", "type_text", "weight_values"]


def load_model(model: Any) -> ir.Model:
    """Load a model; external data is read on access. A model in memory is returned as it is.

    Raises:
        ArgumentError: If the file does not exist or is not a valid ONNX model; see ``check_model``.
    """
    if isinstance(model, ir.Model):
        return model
    if not isinstance(model, (str, os.PathLike)):
        import onnx

        if isinstance(model, onnx.ModelProto):
            return ir.serde.deserialize_model(model)
        problem = f"expected a path or an ONNX model, got {type(model).__name__}"
        raise ArgumentError("model", problem, hint="pass a path, an onnx_ir.Model or a ModelProto")
    path = path_of(model, "model")
    if not is_file(path, "model"):
        raise missing_file(path, "model")
    try:
        # onnx_ir checks the places of external data only where it knows the directory.
        loaded = ir.load(path.absolute())
    except Exception as error:
        raise ArgumentError("model", f"{path} cannot be loaded as an ONNX model: {_reason(error)}") from error
    if not loaded.opset_imports:
        raise ArgumentError("model", f"{path} is not an ONNX model: it imports no opset")
    try:
        _check_model(loaded, path)
    except ValueError as error:
        raise ArgumentError("model", f"{path} is not a valid ONNX model: {error}") from error
    return loaded


def _reason(error: BaseException) -> str:
    """The first error of a chain: onnx_ir's last one only names the object that it could not read."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return str(error)


def check_external_data(model: ir.Model) -> None:
    """Check that the files with the weights of a loaded model exist, which loading it does not need.

    Raises:
        ArgumentError: If one does not.
    """
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor) and not os.path.isfile(tensor.path):
            problem = f"the weight {name!r} cannot be read: file {tensor.path} does not exist"
            raise ArgumentError("model", problem, hint=_BESIDE)


_BESIDE = "the file of external data belongs next to the model"


def weight_values(name: str, tensor: ir.TensorProtocol) -> np.ndarray:
    """Read the elements of a tensor of a loaded model.

    Args:
        name: Its name.
        tensor: The tensor.

    Raises:
        ArgumentError: If its file cannot be read, or has too few or too many bytes for its dtype and dims.
    """
    try:
        return tensor.numpy()
    except (OSError, TypeError, ValueError) as error:
        external = isinstance(tensor, ir.ExternalTensor)
        hint = _BESIDE if external else None
        raise ArgumentError("model", f"the weight {name!r} cannot be read: {error}", hint=hint) from error


def text_list(text: str) -> list[str]:
    """Parse the text of a list in the metadata of a node, ``['', 'encoder', 'x']``; [] if it is something else."""
    try:
        found = ast.literal_eval(text)
    except (SyntaxError, TypeError, ValueError, MemoryError, RecursionError):  # another exporter's text
        return []
    is_list = isinstance(found, list) and all(isinstance(each, str) and each.count(".") < _MAX_DEPTH for each in found)
    return found if is_list else []


_MAX_DEPTH = 100
"""Depth of modules; a page about a model nests as deeply."""


def origin_of(node: ir.Node) -> tuple[str, str]:
    """Return the module path and source line of a node, from the metadata keys of torch.onnx; "" where unknown.

    Without metadata, the module follows from names as ``/features/features.0/Conv``.
    """
    metadata = node.metadata_props
    scopes = text_list(metadata.get("pkg.torch.onnx.name_scopes", "[]"))
    if not metadata and (node.name or "").startswith("/"):
        return _path_of_scopes(str(node.name).split("/")[1:-1]), ""
    return scopes[-2] if len(scopes) > 1 else "", innermost_frame(metadata.get("pkg.torch.onnx.stack_trace", "")) or ""


def _path_of_scopes(scopes: Sequence[str]) -> str:
    """The FQN of the scopes in a name of the TorchScript exporter, ``layer1.0.conv1`` of layer1, layer1.0, conv1."""
    path = last = ""
    for scope in scopes:
        # The children of a Sequential repeat its name; fxonnx writes the FQN of each module.
        if path and scope.startswith(f"{path}."):
            path = scope
        elif last and scope.startswith(f"{last}."):
            path = path[: len(path) - len(last)] + scope
        else:
            path = f"{path}.{scope}" if path else scope
        last = scope
    return path


def _check_model(model: ir.Model, path: Path) -> None:
    """Check what no reader of a model may rely on otherwise: dims, the places of external data, and the order of nodes.

    Nodes that only are in another order than they are computed in are sorted.
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
    """Whether all nodes, also in subgraphs, read what was computed before them."""
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


def is_sequence(value: ir.Value) -> bool:
    """Whether a graph input or output is a list of tensors; its dtype and shape are an item's."""
    return isinstance(value.type, ir.SequenceType)


def type_text(value: ir.Value, text: str) -> str:
    """The type of a graph input or output, for messages.

    Args:
        value: The graph input or output.
        text: The type of the tensor, or of an item of the list.
    """
    return f"seq({text})" if is_sequence(value) else text
