"""Weights that a checkpoint has in 8-bit floats with scales: ModelOpt, compressed-tensors, fbgemm and DeepSeek."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fxonnx_translations._builder.dtypes import from_torch
from fxonnx_translations._builder.initializers import DerivedTensor

from .._json_text import parse_json
from ..errors import ArgumentError
from .coded_weights import CodedWeight, coded_weights
from .packed_weights import LoadableTensor, PackedWeight, read_packed_weights

__all__ = ["ScaledWeight", "read_quantized_weights", "scales_of_weights"]

_SUFFIXES = ("_scale", "_scale_inv")
"""After the name of the weight, the name of its scales, by which all of these formats multiply."""

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)

_QUANTIZED_PARTS = re.compile(
    r"(weight|proj|blocks|experts)_(scale|scale_inv|scale_2|scales|zero_point|packed|shape|g_idx)$"
    r"|\.(qweight|qzeros|scales|g_idx|weight\.(absmax|quant_map|nested_absmax|quant_state\..*|_data|_scale|_shift))$"
    r"|\.(SCB|W_q|meta)$"
)
"""Names of tensors that weights are computed from. Scales of activations and caches are not among them."""


@dataclass(frozen=True)
class ScaledWeight:
    """A weight in a checkpoint, in 8-bit floats with scales.

    Attributes:
        name: FQN of the weight.
        weight: Its numbers.
        scales: One scale, one for each output feature, or one for each block.
        suffix: The end of the name of the scales.
        blocks: Size of a block along the last axes, from the configuration; none if it has none.
    """

    name: str
    weight: LoadableTensor
    scales: LoadableTensor
    suffix: str
    blocks: tuple[int, ...] = ()

    @property
    def path(self) -> Path:
        """The file."""
        return self.weight.path

    @property
    def parts(self) -> tuple[str, str]:
        """Names of the tensors in the checkpoint, the weight first."""
        return self.name, f"{self.name}{self.suffix}"

    def initializer(self, name: str, dtype: torch.dtype) -> DerivedTensor:
        """The weight as an initializer, which is computed each time its bytes are requested.

        Args:
            name: Initializer name.
            dtype: Element type of the weight in the model.
        """
        return DerivedTensor(name, (), partial(self.dequantized, dtype), from_torch(dtype), self.weight.shape)

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """Compute the weight.

        Args:
            dtype: dtype of the result.

        Raises:
            ValueError: If the scales do not fit the weight.
        """
        weight, scales = self.weight.load().to(torch.float32), self.scales.load()
        if not scales.is_floating_point():
            raise ValueError(f"its scales are {scales.dtype}")
        scales = scales.to(torch.float32)
        if scales.ndim == 1 and weight.ndim == 2 and scales.numel() > 1:
            scales = scales[:, None]
        scales = scales.reshape([1] * weight.ndim) if scales.numel() == 1 else scales
        if scales.ndim != weight.ndim:
            raise ValueError(f"its scales have the shape {[*scales.shape]}, the weight {[*weight.shape]}")
        for axis, (size, count) in enumerate(zip(weight.shape, scales.shape, strict=True)):
            if count not in (1, size):
                scales = scales.repeat_interleave(self._block(axis - weight.ndim, size, count), axis)
                scales = scales.narrow(axis, 0, size)
        return (weight * scales).to(dtype)

    def _block(self, axis: int, size: int, count: int) -> int:
        if -axis > len(self.blocks):
            # Not the quotient: the last block may be smaller.
            raise ValueError(f"it has {count} scales for {size} weights along an axis, in blocks of an unknown size")
        block = self.blocks[axis]
        if -(-size // block) != count:
            raise ValueError(f"it has {count} scales for {size} weights along an axis, in blocks of {block}")
        return block


def read_quantized_weights(
    directory: Path, tensors: Mapping[str, LoadableTensor]
) -> dict[str, PackedWeight | ScaledWeight | CodedWeight]:
    """The weights that the tensors of a quantized checkpoint represent, by FQN; none of other checkpoints.

    Args:
        directory: The directory of the checkpoint.
        tensors: Its tensors.

    Raises:
        ArgumentError: If the configuration of the checkpoint is invalid.
    """
    try:
        coded = coded_weights(tensors)
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(
            "weights", f"{directory} has weights of bitsandbytes without their shape: {error}"
        ) from error
    parts = {part for weight in coded.values() for part in weight.parts}
    others = {name: tensor for name, tensor in tensors.items() if name not in parts}
    return {**read_packed_weights(directory, others), **_scaled_weights(directory, others), **coded}


def _scaled_weights(directory: Path, tensors: Mapping[str, LoadableTensor]) -> dict[str, ScaledWeight]:
    found = [
        (name, suffix)
        for suffix in _SUFFIXES
        for name, tensor in tensors.items()
        if f"{name}{suffix}" in tensors and getattr(tensor, "dtype", None) in _FLOAT8
    ]
    scaled = {name for name, _ in found}
    others = [name for name, tensor in tensors.items() if getattr(tensor, "dtype", None) in _FLOAT8]
    unscaled = sorted(set(others) - scaled - {f"{name}{suffix}" for name, suffix in found})
    if found and unscaled:
        raise ArgumentError("weights", f"{directory} has no scales for {unscaled[0]}, but for other weights")
    blocks = _block_sizes(directory) if found else ()
    return {
        name: ScaledWeight(name, tensors[name], tensors[f"{name}{suffix}"], suffix, blocks) for name, suffix in found
    }


def _block_sizes(directory: Path) -> tuple[int, ...]:
    path = directory / "config.json"
    try:
        config: Any = parse_json(path.read_bytes()) if path.is_file() else {}
        quantization = config.get("quantization_config") or {}
        stored = quantization.get("weight_block_size")
        sizes = {tuple(map(int, stored))} if stored else set()
        for group in (quantization.get("config_groups") or {}).values():
            weights = group.get("weights") or {}
            if weights.get("block_structure"):
                sizes.add(tuple(map(int, weights["block_structure"])))
            elif weights.get("strategy") == "group":
                sizes.add((int(weights["group_size"]),))
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ArgumentError("weights", f"{path} has no valid weight_block_size: {error}") from error
    found = sizes.pop() if len(sizes) == 1 else ()
    if sizes or any(size < 1 for size in found):
        raise ArgumentError("weights", f"{path} has no valid weight_block_size: {sorted({*sizes, found})}")
    return found


def scales_of_weights(names: Iterable[str]) -> list[str]:
    """The names of tensors that only quantized weights have: scales, zero points and packed codes.

    Args:
        names: Names of tensors of a checkpoint.
    """
    return sorted(name for name in names if _QUANTIZED_PARTS.search(name))
