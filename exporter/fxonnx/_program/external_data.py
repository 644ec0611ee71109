"""Where tensors outside of the model file are: in a side file of raw bytes or of safetensors, or in files of others."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import onnx_ir as ir

from fxonnx_translations._builder.dtypes import to_torch_dtype

from .checkpoints import DTYPES

__all__ = ["REFERENCE", "SUFFIXES", "ExternalData", "Form", "Side", "arrange"]

REFERENCE: Final = "reference"
"""``external_data=REFERENCE``: the model points into the safetensors files its weights are in."""

ExternalData: TypeAlias = bool | Literal["safetensors", "reference"] | None
"""Whether weights go to a side file; None: if they are large. Of raw bytes, or of safetensors, or to none of ours."""

Form: TypeAlias = Literal["raw", "safetensors"]
SUFFIXES: Mapping[Form, str] = {"raw": "data", "safetensors": "safetensors"}
ALIGNMENT = 4096  # the ONNX specification asks for page-aligned offsets, so that the file can be mapped
_HEADER_ALIGNMENT = 8


@dataclass(frozen=True)
class Side:
    """A side file.

    Attributes:
        offsets: Name of the initializer to where its bytes begin.
        head: The bytes at the beginning of the file.
        tensors: Offset and tensor, in order.
    """

    offsets: Mapping[str, int]
    head: bytes
    tensors: tuple[tuple[int, ir.TensorProtocol], ...]


def arrange(tensors: Mapping[str, ir.TensorProtocol], form: Form) -> Side:
    """Arranges tensors in a side file.

    Args:
        tensors: By the names of the initializers.
        form: Raw bytes, each at a new page; or safetensors, which have no gaps: larger elements come first, so that
            every tensor begins at a multiple of its element size.
    """
    if form == "raw":
        offsets, end = {}, 0
        for name, tensor in tensors.items():
            offsets[name] = -(-end // ALIGNMENT) * ALIGNMENT
            end = offsets[name] + tensor.nbytes
        return Side(offsets, b"", tuple((offsets[name], tensor) for name, tensor in tensors.items()))
    order = sorted(tensors, key=lambda name: -_itemsize(tensors[name]))
    header, end = {}, 0
    for name in order:
        header[name] = _entry(tensors[name], end)
        end += tensors[name].nbytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode() if order else b""
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    head = struct.pack("<Q", len(text)) + text
    offsets = {name: len(head) + header[name]["data_offsets"][0] for name in order}  # type: ignore[index]
    return Side(offsets, head, tuple((offsets[name], tensors[name]) for name in order))


_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def _itemsize(tensor: ir.TensorProtocol) -> int:
    return max(1, int(tensor.dtype.itemsize))


def _entry(tensor: ir.TensorProtocol, start: int) -> dict[str, object]:
    dtype, shape = "U8", [tensor.nbytes]
    # What torch has no dtype for, or several elements in a byte, is bytes there.
    if tensor.dtype.itemsize >= 1 and (name := _NAMES.get(to_torch_dtype(tensor.dtype))) is not None:
        dtype, shape = name, [int(size) for size in tensor.shape.numpy()]
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, start + tensor.nbytes]}
