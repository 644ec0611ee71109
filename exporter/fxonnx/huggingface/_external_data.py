"""External data as transformers.js reads it: ``model.onnx_data``, ``model.onnx_data_1``, ..., each below 2 GiB."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import onnx

__all__ = ["split_external_data"]

_CHUNK = 2_000_000_000
_BUFFER = 1 << 24


def split_external_data(path: Path, chunk: int = _CHUNK) -> None:
    """Move the external data of a file to files with the names of transformers.js.

    Args:
        path: The ONNX file; unchanged if it has no external data.
        chunk: Bytes of a data file at most, unless a single tensor is larger.
    """
    model = onnx.load(path, load_external_data=False)
    stored = sorted(_stored(model), key=lambda tensor: int(_entries(tensor)["offset"].value))
    if not stored:
        return
    source = path.with_name(_entries(stored[0])["location"].value)
    number, size = 0, 0
    with source.open("rb") as data:
        target = path.with_name(f"{path.name}_data").open("wb")
        try:
            for tensor in stored:
                entries = _entries(tensor)
                length = int(entries["length"].value)
                if size and size + length > chunk:
                    number, size = number + 1, 0
                    target.close()
                    target = path.with_name(f"{path.name}_data_{number}").open("wb")
                data.seek(int(entries["offset"].value))
                for _ in range(0, length, _BUFFER):
                    target.write(data.read(min(_BUFFER, length - (target.tell() - size))))
                entries["location"].value = Path(target.name).name
                entries["offset"].value = str(size)
                size += length
        finally:
            target.close()
    path.write_bytes(model.SerializeToString(deterministic=True))
    os.unlink(source)


def _stored(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The tensors whose data is in another file; weights are initializers of the main graph."""
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield tensor


def _entries(tensor: onnx.TensorProto) -> dict[str, onnx.StringStringEntryProto]:
    return {entry.key: entry for entry in tensor.external_data}
