"""Weights from safetensors files and state_dicts; only the headers of files are read up front."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import torch

from fxonnx_translations._builder.dtypes import from_torch
from fxonnx_translations._builder.initializers import DerivedTensor, derive

from .._extensions import add_on
from .._inner_tensors import unwrapped
from .._paths import is_file, parse_json, path_of
from ..errors import ArgumentError, did_you_mean, kind_of
from .checkpoint_files import check_places, relative_place

__all__ = ["DTYPES", "FileTensor", "StoredTensor", "StoredWeight", "Weights", "read_weight_sources"]

DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "BOOL": torch.bool,
        "U8": torch.uint8,
        "I8": torch.int8,
        "U16": torch.uint16,
        "I16": torch.int16,
        "U32": torch.uint32,
        "I32": torch.int32,
        "U64": torch.uint64,
        "I64": torch.int64,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "F8_E8M0": torch.float8_e8m0fnu,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "F32": torch.float32,
        "F64": torch.float64,
        "C64": torch.complex64,
    }
)
"""Element types of the safetensors format."""

WeightSource: TypeAlias = "str | os.PathLike[str] | Mapping[str, torch.Tensor]"
Weights: TypeAlias = "WeightSource | Sequence[WeightSource]"
"""A safetensors file, the index file of a sharded checkpoint, a directory, a state_dict, or a list of these."""


class StoredWeight(Protocol):
    """A weight in a file."""

    @property
    def path(self) -> Path:
        """The file."""

    def initializer(self, name: str, dtype: torch.dtype) -> DerivedTensor:
        """The weight as an initializer, for a model that has it in an element type."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a safetensors file.

    Attributes:
        path: The file.
        name: Name of the tensor.
        offset: Byte offset in the file.
        dtype: Its element type.
        shape: Its shape.
    """

    path: Path
    name: str
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def initializer(self, name: str, dtype: torch.dtype) -> DerivedTensor:
        """The tensor as an initializer, read each time its bytes are requested.

        Args:
            name: Initializer name.
            dtype: Element type of the weight in the model, to which floating-point numbers are converted.
        """
        tensor = FileTensor(name, self)
        if self.dtype == dtype or not (self.dtype.is_floating_point and dtype.is_floating_point):
            return tensor
        return derive(name, [tensor], partial(torch.Tensor.to, dtype=dtype))

    def load(self) -> torch.Tensor:
        """Read the tensor; complex numbers become real tensors with a last dimension of 2."""
        from safetensors import safe_open

        with safe_open(self.path, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(self.name)
        return torch.view_as_real(tensor) if tensor.is_complex() else tensor


class FileTensor(DerivedTensor):
    """A tensor that is read from its safetensors file every time its bytes are requested.

    Args:
        name: Initializer name.
        stored: Its location in the file.
    """

    def __init__(self, name: str, stored: StoredTensor) -> None:
        self.stored = stored
        shape = (*stored.shape, 2) if stored.dtype.is_complex else stored.shape
        dtype = torch.empty((), dtype=stored.dtype).real.dtype if stored.dtype.is_complex else stored.dtype
        super().__init__(name, (), partial(StoredTensor.load, stored), from_torch(dtype), shape)


def read_weight_sources(weights: Weights) -> dict[str, StoredWeight | torch.Tensor]:
    """Collect the tensors of all sources by name; later sources override earlier ones.

    A checkpoint of GPTQ, AWQ or compressed-tensors also has the weights that its tensors represent, and weights in
    8-bit floats with scales are multiplied by them.

    Raises:
        ArgumentError: If a source is neither a safetensors file nor a state_dict.
    """
    found: dict[str, StoredWeight | torch.Tensor] = {}
    sources = weights if isinstance(weights, Sequence) and not isinstance(weights, str) else [weights]
    for source in sources:
        if isinstance(source, Mapping):
            found.update(unwrapped(source))
        elif isinstance(source, (str, os.PathLike)):
            found.update(_read_checkpoint(path_of(source, "weights")))
        else:
            raise ArgumentError("weights", f"expected paths of safetensors files or state_dicts, got {kind_of(source)}")
    return found


def _read_checkpoint(path: Path) -> dict[str, StoredWeight | torch.Tensor]:
    stored = {name: tensor for file in _files(path) for name, tensor in _header(file).items()}
    quantized = add_on("quantization").read_quantized_weights(path if path.is_dir() else path.parent, stored)
    return {**stored, **quantized}


def _files(path: Path) -> list[Path]:
    exists = is_file(path, "weights")
    if path.is_dir():
        check_places(path, "weights")
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise ArgumentError("weights", f"{path} has no .safetensors files")
        return files
    if not exists:
        hint = did_you_mean(path.name, (other.name for other in path.parent.glob("*")))
        raise ArgumentError("weights", f"file {path} does not exist", hint=hint)
    if path.suffix != ".json":
        return [path]
    try:
        shards = dict.fromkeys(parse_json(path.read_bytes())["weight_map"].values())
        if not all(isinstance(shard, str) for shard in shards):
            raise TypeError("expected names of files")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ArgumentError("weights", f"{path} is not an index of safetensors files: it has no weight_map") from error
    return [relative_place(path, shard, "weights") for shard in shards]


def _header(path: Path) -> dict[str, StoredTensor]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            size = os.fstat(file.fileno()).st_size
            if length > size - 8:
                raise ValueError("its header is longer than the file")
            header: dict[str, Any] = parse_json(file.read(length))
        inner = _names_of_torchao(header.pop("__metadata__", {}))
        return {inner.get(name, name): _stored(path, name, entry, 8 + length, size) for name, entry in header.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ArgumentError(
            "weights",
            f"{path} is not a safetensors file: {error}",
            hint="load other formats with torch.load(path, weights_only=True) and pass the state_dict",
        ) from error


def _names_of_torchao(metadata: Mapping[str, str]) -> dict[str, str]:
    """Map the names of inner tensors in files that torchao writes, as ``fc._weight_qdata``, to ``fc.weight.qdata``."""
    names = {}
    for weight in parse_json(metadata.get("tensor_names", "[]")):
        module, dot, attribute = weight.rpartition(".")
        for inner in parse_json(metadata.get(weight, "{}")).get("_tensor_data_names", ()):
            names[f"{module}{dot}_{attribute}_{inner}"] = f"{weight}.{inner}"
    return names


def _stored(path: Path, name: str, entry: Any, start: int, size: int) -> StoredTensor:
    dtype, shape = DTYPES.get(entry["dtype"]), tuple(map(int, entry["shape"]))
    begin, end = map(int, entry["data_offsets"])
    if dtype is None:
        raise ValueError(f"{name!r} has the unknown dtype {entry['dtype']}")
    if any(dim < 0 for dim in shape):
        raise ValueError(f"{name!r} has the shape {list(shape)}")
    if end - begin != math.prod(shape) * dtype.itemsize or begin < 0 or start + end > size:
        raise ValueError(f"the offsets of {name!r} do not match its shape and dtype")
    return StoredTensor(path, name, start + begin, dtype, shape)
