"""Save graphs of one model, whose weights are stored once."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

__all__ = ["save_with_shared_weights"]

_LEAST_BYTES = 1024
"""Smaller weights are stored in the graph."""
_END = 256
"""Bytes at both ends by which weights are found before they are compared."""


def save_with_shared_weights(model: ir.Model, path: Path) -> None:
    """Save a graph with external data; weights that another graph in the directory stores are references to it.

    Args:
        model: The graph; not changed.
        path: File of the graph. The weights are in the file with the suffix ``.data``, which may be empty.
    """
    values = [value for graph in model.graphs() for value in graph.initializers.values()]
    originals = {value: value.const_value for value in values}
    stored = _stored_weights(path)
    try:
        new: list[ir.Value] = []
        for value in values:
            tensor = value.const_value
            if tensor is None or tensor.nbytes < _LEAST_BYTES:
                continue
            data = tensor.tobytes()
            same = next((each for each in stored.get(_key(tensor, data), ()) if each.tobytes() == data), None)
            if same is None:
                new.append(value)
            else:
                value.const_value = _reference(same, tensor)
        tensors = [value.const_value for value in new if value.const_value is not None]
        weights = f"{path.name}.data"
        (path.parent / weights).write_bytes(b"")
        made = ir.external_data.convert_tensors_to_external(tensors, path.parent, weights) if tensors else []
        for value, external in zip(new, made, strict=True):
            value.const_value = external
        ir.save(model, str(path))
    finally:
        for value, tensor in originals.items():
            value.const_value = tensor


_Key: TypeAlias = tuple[ir.DataType, tuple[int, ...], bytes, bytes]


def _key(tensor: ir.TensorProtocol, data: Any) -> _Key:
    """Element type, shape, and the first and last bytes."""
    return tensor.dtype, tuple(tensor.shape.numpy()), bytes(data[:_END]), bytes(data[-_END:])


def _stored_weights(path: Path) -> dict[_Key, list[ir.ExternalTensor]]:
    """The weights that other graphs in the directory store in files of their own."""
    found: dict[_Key, list[ir.ExternalTensor]] = {}
    for other in sorted(path.parent.glob("*.onnx")):
        for graph in ir.load(str(other)).graphs() if other.name != path.name else ():
            for value in graph.initializers.values():
                tensor = value.const_value
                if isinstance(tensor, ir.ExternalTensor):
                    key = _key(tensor, tensor.numpy().reshape(-1).view(np.uint8))
                    found.setdefault(key, []).append(tensor)
    return found


def _reference(stored: ir.ExternalTensor, tensor: ir.TensorProtocol) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        stored.location,
        stored.offset,
        stored.length,
        stored.dtype,
        shape=stored.shape,
        name=tensor.name or "",
        base_dir=stored.base_dir,
    )
