"""External data: tensors outside of the model file, of their own layout or in existing safetensors files."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import onnx_ir as ir
import torch

from fxonnx_translations._builder.dtypes import to_torch_dtype
from fxonnx_translations._builder.initializers import DerivedTensor

from ..errors import ArgumentError
from .checkpoints import DTYPES, FileTensor

__all__ = [
    "REFERENCE",
    "SUFFIXES",
    "ExternalData",
    "ExternalDataFile",
    "ExternalDataFormat",
    "lay_out_external_data",
    "with_external_references",
]

REFERENCE: Final = "reference"
"""``external_data=REFERENCE``: the model references its weights in existing safetensors files."""

ExternalData: TypeAlias = bool | Literal["safetensors", "reference"] | None
"""True: raw external data; False: one file; None: external data for large models only; else the format."""

ExternalDataFormat: TypeAlias = Literal["raw", "safetensors"]
SUFFIXES: Mapping[ExternalDataFormat, str] = {"raw": "data", "safetensors": "safetensors"}
PAGE_SIZE = 4096  # the ONNX specification recommends page-aligned offsets, for mmap
_HEADER_ALIGNMENT = 8


@dataclass(frozen=True)
class ExternalDataFile:
    """The layout of one external data file.

    Attributes:
        offsets: Initializer name to byte offset.
        header: The bytes before the first tensor.
        tensors: Offset and tensor, in file order.
    """

    offsets: Mapping[str, int]
    header: bytes
    tensors: tuple[tuple[int, ir.TensorProtocol], ...]

    @property
    def size(self) -> int:
        """Bytes of all tensors, without header and alignment."""
        return sum(tensor.nbytes for _, tensor in self.tensors)


def lay_out_external_data(tensors: Mapping[str, ir.TensorProtocol], format: ExternalDataFormat) -> ExternalDataFile:
    """Assign each tensor an offset in an external data file.

    Args:
        tensors: Initializer name to tensor.
        format: "raw": bytes, each tensor page-aligned; "safetensors": without gaps, in order of decreasing element
            size, so that every tensor is aligned to its element size.
    """
    if format == "raw":
        offsets, end = {}, 0
        for name, tensor in tensors.items():
            offsets[name] = -(-end // PAGE_SIZE) * PAGE_SIZE
            end = offsets[name] + tensor.nbytes
        return ExternalDataFile(offsets, b"", tuple((offsets[name], tensor) for name, tensor in tensors.items()))
    order = sorted(tensors, key=lambda name: -_itemsize(tensors[name]))
    entries, end = {}, 0
    for name in order:
        entries[name] = _entry(tensors[name], end)
        end += tensors[name].nbytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}, separators=(",", ":")).encode() if order else b""
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    header = struct.pack("<Q", len(text)) + text
    offsets = {name: len(header) + entries[name]["data_offsets"][0] for name in order}
    return ExternalDataFile(offsets, header, tuple((offsets[name], tensors[name]) for name in order))


_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def _itemsize(tensor: ir.TensorProtocol) -> int:
    return max(1, int(tensor.dtype.itemsize))


def _entry(tensor: ir.TensorProtocol, start: int) -> dict[str, Any]:
    dtype, shape = "U8", [tensor.nbytes]
    # Dtypes that torch lacks and sub-byte dtypes are stored as raw bytes.
    if tensor.dtype.itemsize >= 1 and (name := _NAMES.get(to_torch_dtype(tensor.dtype))) is not None:
        dtype, shape = name, [int(size) for size in tensor.shape.numpy()]
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, start + tensor.nbytes]}


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
