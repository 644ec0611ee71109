"""ONNX models of any exporter: loading, and the origin of their nodes."""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ._provenance import innermost_frame
from .errors import ArgumentError, did_you_mean

__all__ = ["load_model", "origin_of"]


def load_model(model: Any) -> ir.Model:
    """Load a model; external data is read on access. A model in memory is returned as it is.

    Raises:
        ArgumentError: If the file does not exist or is not an ONNX model.
    """
    if isinstance(model, ir.Model):
        return model
    if not isinstance(model, (str, os.PathLike)):
        import onnx

        if isinstance(model, onnx.ModelProto):
            return ir.serde.deserialize_model(model)
        problem = f"expected a path or an ONNX model, got {type(model).__name__}"
        raise ArgumentError("model", problem, hint="pass a path, an onnx_ir.Model or a ModelProto")
    path = Path(model)
    if not path.is_file():
        hint = did_you_mean(path.name, (other.name for other in path.parent.glob("*.onnx")))
        raise ArgumentError("model", f"file {path} does not exist", hint=hint)
    try:
        loaded = ir.load(path)
    except Exception as error:
        raise ArgumentError("model", f"{path} cannot be loaded as an ONNX model: {error}") from error
    if not loaded.opset_imports:
        raise ArgumentError("model", f"{path} is not an ONNX model: it imports no opset")
    return loaded


def origin_of(node: ir.Node) -> tuple[str, str]:
    """Return the module path and source line of a node, from the metadata keys of torch.onnx; "" where unknown.

    Without metadata, the module is that of names as ``/features/features.0/Conv``.
    """
    metadata = node.metadata_props
    try:
        scopes = ast.literal_eval(metadata.get("pkg.torch.onnx.name_scopes", "[]"))
    except (SyntaxError, ValueError):  # another exporter's text
        scopes = []
    if not metadata and (node.name or "").startswith("/"):
        return _path_of_scopes(str(node.name).split("/")[1:-1]), ""
    module = str(scopes[-2]) if isinstance(scopes, list) and len(scopes) > 1 else ""
    return module, innermost_frame(metadata.get("pkg.torch.onnx.stack_trace", "")) or ""


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
