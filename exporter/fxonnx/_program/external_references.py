"""External references: use weights in existing safetensors files as external data."""

from __future__ import annotations

import onnx_ir as ir
import torch

from fxonnx_translations._builder.initializers import DerivedTensor

from ..errors import ArgumentError
from .checkpoints import FileTensor

__all__ = ["with_external_references"]


def with_external_references(model: ir.Model) -> ir.Model:
    """Copy a model, replacing transposed weights by the stored weight and a ``Transpose`` node.

    Initializers derived from a file by a transpose only can then reference the tensor in the file.

    Args:
        model: The model; it is not modified. Tensors in files are ``FileTensor``.

    Raises:
        ArgumentError: If no initializer is in a file or derived from one.
    """
    copy = model.clone()
    graph = copy.graph
    if not any(map(_is_from_file, graph.initializers.values())):
        raise ArgumentError(
            "external_data",
            "REFERENCE requires weights in safetensors files, but no weight is in one",
            hint="pass them: save(path, weights=<safetensors files>, external_data=fxonnx.REFERENCE)",
        )
    names = {str(value.name) for node in graph for value in (*node.inputs, *node.outputs) if value is not None}
    first = next(iter(graph))
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if not isinstance(tensor, DerivedTensor) or tensor.recipe is not torch.t:
            continue
        source = tensor.sources[0]
        if not isinstance(source, FileTensor):
            continue
        known = graph.initializers.get(str(source.name))
        if known is None:
            if source.name in names:
                continue
            known = ir.Value(
                name=source.name, type=value.type, shape=ir.Shape(source.shape.numpy()), const_value=source
            )
            known.metadata_props.update(_parameter_metadata(value))
            graph.register_initializer(known)
        del graph.initializers[name]
        node = ir.node("Transpose", [known], {"perm": [1, 0]}, name=f"node_{name}", metadata_props={"namespace": name})
        graph.insert_before(first, node)
        ir.convenience.replace_all_uses_with(value, node.outputs[0])
        node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = name, value.type, value.shape
    return copy


def _is_from_file(value: ir.Value) -> bool:
    pending = [value.const_value]
    while pending:
        tensor = pending.pop()
        if isinstance(tensor, FileTensor):
            return True
        if isinstance(tensor, DerivedTensor):
            pending.extend(tensor.sources)
    return False


def _parameter_metadata(derived: ir.Value) -> dict[str, str]:
    kept = {key: text for key, text in derived.metadata_props.items() if not key.startswith("pkg.fxonnx.")}
    return {"pkg.torch.export.graph_signature.InputSpec.kind": "PARAMETER", **kept}
