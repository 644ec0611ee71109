"""GGUF files: a header whose every count and offset is checked, and blocks as integers with scales and offsets."""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..errors import ArgumentError
from .core import QuantizedWeight, StoredForm
from .extras import import_extra

__all__ = ["FORMS", "GgufFile", "StoredBlocks", "decoded", "integers", "read_gguf", "write_header"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS: Mapping[int, str] = MappingProxyType(
    {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
)
"""Type of a value to its format; 8 is a string and 9 an array."""
_UINT32, _STRING, _ARRAY = 4, 8, 9
_FLOAT32 = 0
_BLOCKS: Mapping[int, tuple[str, int, int]] = MappingProxyType(
    {
        **{0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2)},
        **{2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34)},
        **{12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210)},
    }
)
"""Type of a tensor to its name, the numbers in a block and the bytes of a block."""
_OTHER_TYPES: Mapping[int, str] = MappingProxyType(
    {
        **{10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 9: "Q8_1", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S"},
        **{20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0"},
        **{39: "MXFP4", 40: "NVFP4", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"},
    }
)
_MOST_TENSORS, _MOST_SETTINGS, _LONGEST_NAME = 2**18, 2**14, 2**16
_SMALL_ARRAY = 2**14
"""Length of arrays up to which they are settings of a model; longer ones are parts of the tokenizer."""


@dataclass(frozen=True)
class StoredBlocks:
    """A tensor in the file.

    Attributes:
        name: Its name.
        shape: Its shape, the rows of a matrix first.
        type_name: Its type, for example "Q4_K".
        block_size: Numbers in a block.
        blocks: Bytes of shape (..., blocks of a row, bytes of a block), which are read when they are used.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    block_size: int
    blocks: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class GgufFile:
    """The content of a file.

    Attributes:
        path: The file.
        settings: Key to type and value; of arrays of strings the number of elements.
        tensors: Name to tensor.
    """

    path: Path
    settings: Mapping[str, tuple[int, Any]]
    tensors: Mapping[str, StoredBlocks]

    def setting(self, key: str) -> Any:
        """The value of a setting; None without one."""
        return self.settings.get(key, (0, None))[1]


class _Reader:
    """A position in the bytes of a file, which never leaves them."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.position = data, 0

    def numbers(self, form: str) -> tuple[Any, ...]:
        """Read numbers of a format of ``struct``."""
        start = self._skip(struct.calcsize(form))
        return struct.unpack_from(form, self.data, start)

    def string(self, longest: int | None = None) -> str:
        """Read a string, with its length."""
        (length,) = self.numbers("<Q")
        if longest is not None and length > longest:
            raise ValueError(f"it has a name of {length} bytes")
        start = self._skip(length)
        return self.data[start : start + length].decode("utf-8")

    def value(self, kind: int) -> Any:
        """Read a value of a type; of an array of strings the number of its elements."""
        if kind in _SCALARS:
            return self.numbers(_SCALARS[kind])[0]
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise ValueError(f"it has a value of the unknown type {kind}")
        element, count = self.numbers("<IQ")
        if element in _SCALARS:
            # Before the format is made, whose length is the number of digits only.
            self._check(count * struct.calcsize(_SCALARS[element]))
            return list(self.numbers(f"<{count}{_SCALARS[element][1]}"))
        if element != _STRING:
            raise ValueError(f"it has an array of the unknown type {element}")
        self._check(8 * count)
        for _ in range(count):
            (length,) = self.numbers("<Q")
            self._skip(length)
        return count

    def _check(self, size: int) -> None:
        if size > len(self.data) - self.position:
            raise ValueError("it ends before its content does")

    def _skip(self, size: int) -> int:
        self._check(size)
        start, self.position = self.position, self.position + size
        return start


def read_gguf(path: Path, argument: str = "model") -> GgufFile:
    """Read the header of a file; the tensors are mapped, and read when they are used."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return _parsed(path, data)
    except (OSError, ValueError, struct.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArgumentError(
            argument, f"{path} is not a GGUF file that can be read: {reason}", hint=_hint(reason)
        ) from error


def _hint(reason: str) -> str | None:
    if "type" in reason and "tensor" in reason:
        return f"convert the model to one of {', '.join(name for name, *_ in _BLOCKS.values())} with llama-quantize"
    return None


def _parsed(path: Path, data: mmap.mmap) -> GgufFile:
    reader = _Reader(data)
    if data[:4] != _MAGIC:
        raise ValueError("it does not begin with the letters GGUF")
    reader.numbers("<4s")
    (version,) = reader.numbers("<I")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
        raise ValueError("it is big-endian" if swapped else f"it has version {version}, 2 and 3 are supported")
    tensor_count, setting_count = reader.numbers("<QQ")
    for count, limit, what in ((tensor_count, _MOST_TENSORS, "tensors"), (setting_count, _MOST_SETTINGS, "settings")):
        if count > limit:
            raise ValueError(f"it has {count} {what}, more than {limit}")
    settings: dict[str, tuple[int, Any]] = {}
    for _ in range(setting_count):
        key = reader.string(_LONGEST_NAME)
        (kind,) = reader.numbers("<I")
        if key in settings:
            raise ValueError(f"it has {key} twice")
        settings[key] = (kind, reader.value(kind))
    entries = [_entry(reader) for _ in range(tensor_count)]
    alignment = settings.get("general.alignment", (4, 32))[1]
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"its alignment is {alignment}, which is not a power of two")
    start = -(-reader.position // alignment) * alignment
    tensors: dict[str, StoredBlocks] = {}
    for name, shape, kind, offset in entries:
        if name in tensors:
            raise ValueError(f"it has the tensor {name} twice")
        tensors[name] = _stored(data, name, shape, kind, start + offset)
    return GgufFile(path, settings, tensors)


def _entry(reader: _Reader) -> tuple[str, tuple[int, ...], int, int]:
    """Read the name, shape, type and offset of a tensor."""
    name = reader.string(_LONGEST_NAME)
    (axes,) = reader.numbers("<I")
    if not 1 <= axes <= 4:
        raise ValueError(f"the tensor {name} has {axes} axes")
    shape = reader.numbers(f"<{axes}Q")
    kind, offset = reader.numbers("<IQ")
    # The file has the axis of consecutive numbers first.
    return name, tuple(reversed(shape)), kind, offset


def _stored(data: mmap.mmap, name: str, shape: tuple[int, ...], kind: int, start: int) -> StoredBlocks:
    if kind not in _BLOCKS:
        found = _OTHER_TYPES.get(kind, f"number {kind}")
        raise ValueError(f"the tensor {name} has the type {found}, which is not supported")
    type_name, block_size, block_bytes = _BLOCKS[kind]
    if not all(shape) or shape[-1] % block_size:
        raise ValueError(f"the tensor {name} has the shape {list(shape)}, in blocks of {block_size}")
    size = math.prod(shape) // block_size * block_bytes
    if start + size > len(data):
        raise ValueError(f"the tensor {name} is outside of the file")
    blocks = np.frombuffer(data, np.uint8, size, start)
    return StoredBlocks(
        name, shape, type_name, block_size, blocks.reshape(*shape[:-1], shape[-1] // block_size, block_bytes)
    )


def write_header(file: GgufFile, path: Path, sizes: Mapping[str, int]) -> None:
    """Write a file with the settings of another one and the names of its tensors, without weights and vocabulary."""
    settings: dict[str, tuple[int, Any]] = {key: (_UINT32, size) for key, size in sizes.items()}
    settings |= {key: (kind, value) for key, (kind, value) in file.settings.items() if _is_of_model(key, kind, value)}
    content = bytearray(_MAGIC + struct.pack("<IQQ", 3, len(file.tensors), len(settings)))
    for key, (kind, value) in settings.items():
        content += _text(key)
        if isinstance(value, list):
            content += struct.pack("<I", _ARRAY) + _array(value)
        else:
            content += struct.pack("<I", kind)
            content += _text(value) if kind == _STRING else struct.pack(_SCALARS[kind], value)
    for name in file.tensors:
        content += _text(name) + struct.pack("<IQIQ", 1, 1, _FLOAT32, 0)
    content += bytes(-len(content) % 32 + 32)
    path.write_bytes(content)


def _is_of_model(key: str, kind: int, value: Any) -> bool:
    """Whether a setting is one of the model: not a text of the tokenizer, a long list, or the alignment."""
    if kind == _ARRAY:
        return isinstance(value, list) and 0 < len(value) <= _SMALL_ARRAY and not key.startswith("tokenizer.")
    return key != "general.alignment" and not (kind == _STRING and key.startswith("tokenizer."))


def _array(values: list[Any]) -> bytes:
    """An array of numbers, as 32-bit integers or floats."""
    if all(isinstance(value, int) for value in values):
        return struct.pack(f"<IQ{len(values)}i", 5, len(values), *values)
    return struct.pack(f"<IQ{len(values)}f", 6, len(values), *values)


def _text(text: str) -> bytes:
    encoded = text.encode("utf-8")
    return struct.pack("<Q", len(encoded)) + encoded


_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float32]
_ONE = np.frombuffer(np.float16(1).tobytes(), np.uint8)


@dataclass(frozen=True)
class _Type:
    """How a type of blocks stores integers.

    Attributes:
        form: The form of the weight.
        zero: The integer that the scale multiplies where the code of the form is 0.
        scales: Computes the scales and, if the form has offsets, the least numbers of blocks.
        without_scales: Replaces the scales of blocks by 1 and the least numbers by 0, in place.
    """

    form: StoredForm
    zero: int
    scales: Callable[[_Bytes], tuple[_Floats, _Floats | None]]
    without_scales: Callable[[_Bytes], None]


def _half(blocks: _Bytes, start: int) -> _Floats:
    found: _Floats = np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16).astype(np.float32)
    return found


def _scale(blocks: _Bytes, start: int = 0) -> tuple[_Floats, None]:
    return _half(blocks, start), None


def _unit_scale(blocks: _Bytes) -> None:
    blocks[..., :2] = _ONE


def _scale_and_least(blocks: _Bytes) -> tuple[_Floats, _Floats]:
    return _half(blocks, 0), _half(blocks, 2)


def _unit_scale_and_least(blocks: _Bytes) -> None:
    blocks[..., :2], blocks[..., 2:4] = _ONE, 0


def _scales_of_k(blocks: _Bytes) -> tuple[_Floats, _Floats]:
    """The scales and least numbers of the 8 parts of a block, integers with a common factor each."""
    flat = np.ascontiguousarray(blocks[..., 4:16]).reshape(-1, 12)
    scales, least = import_extra("gguf.quants").Q4_K.get_scale_min(flat)
    shape = (*blocks.shape[:-1], 8)
    of_parts: _Floats = scales.reshape(shape).astype(np.float32) * _half(blocks, 0)
    return of_parts, least.reshape(shape).astype(np.float32) * -_half(blocks, 2)


def _unit_scales_of_k(blocks: _Bytes) -> None:
    blocks[..., :2], blocks[..., 2:4] = _ONE, 0
    blocks[..., 4:16] = (1,) * 4 + (0,) * 4 + (1,) * 4


def _scales_of_6_bits(blocks: _Bytes) -> tuple[_Floats, None]:
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).astype(np.float32)
    return scales * _half(blocks, 208), None


def _unit_scales_of_6_bits(blocks: _Bytes) -> None:
    blocks[..., 192:208], blocks[..., 208:210] = 1, _ONE


_TYPES: Mapping[str, _Type] = MappingProxyType(
    {
        "Q4_0": _Type(StoredForm(4, 32, False, True), -8, _scale, _unit_scale),
        "Q4_1": _Type(StoredForm(4, 32, True, True), 0, _scale_and_least, _unit_scale_and_least),
        "Q5_0": _Type(StoredForm(8, 32, False, True), -128, _scale, _unit_scale),
        "Q5_1": _Type(StoredForm(8, 32, True, True), -112, _scale_and_least, _unit_scale_and_least),
        "Q8_0": _Type(StoredForm(8, 32, False, True), -128, _scale, _unit_scale),
        "Q4_K": _Type(StoredForm(4, 32, True, False), 0, _scales_of_k, _unit_scales_of_k),
        "Q5_K": _Type(StoredForm(8, 32, True, False), -112, _scales_of_k, _unit_scales_of_k),
        "Q6_K": _Type(StoredForm(8, 16, False, False), -128, _scales_of_6_bits, _unit_scales_of_6_bits),
    }
)

FORMS: Mapping[str, StoredForm] = MappingProxyType({name: each.form for name, each in _TYPES.items()})
"""Type of blocks to the form that represents them without a loss: integers of 5 and 6 bits have 8 there."""


def decoded(stored: StoredBlocks) -> torch.Tensor:
    """Compute the numbers of a tensor in float32."""
    flat = np.ascontiguousarray(stored.blocks).reshape(-1, stored.blocks.shape[-2] * stored.blocks.shape[-1])
    return torch.from_numpy(np.array(_decoded(flat, stored.type_name)).reshape(stored.shape))


def _decoded(rows: _Bytes, type_name: str) -> Any:
    gguf = import_extra("gguf")
    return gguf.dequantize(rows, gguf.GGMLQuantizationType[type_name])


def integers(stored: StoredBlocks, rows: npt.NDArray[np.int64] | None, *, codes: bool = True) -> QuantizedWeight:
    """Read a matrix as integers, scales in float32 and offsets."""
    kind = _TYPES[stored.type_name]
    blocks = np.array(stored.blocks if rows is None else stored.blocks[rows])
    count, columns = stored.shape
    scales, least = (
        None if each is None else torch.from_numpy(each.reshape(count, -1)) for each in kind.scales(blocks)
    )
    if scales is None or not bool(torch.isfinite(scales).all()) or (least is not None and not least.isfinite().all()):
        raise ValueError("it has scales that are not finite")
    # The code of a weight is its integer less ``zero``, the middle code stands for 0.
    offsets = None if least is None else least + scales * (2 ** (kind.form.bits - 1) + kind.zero)
    found = torch.empty(0, dtype=torch.uint8)
    if codes:
        kind.without_scales(blocks)
        numbers = _decoded(blocks.reshape(count, -1), stored.type_name)
        found = (torch.from_numpy(numbers).reshape(count, columns) - kind.zero).to(torch.uint8)
    return QuantizedWeight(found, scales, None, kind.form.bits, kind.form.block_size, offsets)
