"""Blocks of GGUF as integers with scales and offsets, which represent the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..quantization.quantized_weight import QuantizedWeight
from ..quantization.stored_forms import StoredForm
from ._extra import import_extra
from ._gguf_file import StoredBlocks

__all__ = ["FORMS", "decoded", "integers"]

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
    scales, least = import_extra("gguf.quants", "gguf").Q4_K.get_scale_min(flat)
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
    gguf = import_extra("gguf", "gguf")
    return gguf.dequantize(rows, gguf.GGMLQuantizationType[type_name])


def integers(stored: StoredBlocks, rows: npt.NDArray[np.int64] | None, *, codes: bool = True) -> QuantizedWeight:
    """Read a matrix as integers, scales in float32 and offsets.

    Args:
        stored: The matrix, of a type in ``FORMS``.
        rows: The rows to read, in order; None for all.
        codes: Whether the integers are needed; otherwise they are empty.

    Raises:
        ValueError: If a scale is infinite or not a number.
    """
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
