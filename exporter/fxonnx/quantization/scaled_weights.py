"""Weights that a checkpoint has as numbers with scales or codes for which ONNX Runtime has no operator."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from fxonnx_translations._builder.dtypes import from_torch
from fxonnx_translations._builder.initializers import DerivedTensor

from .._paths import parse_json
from ..errors import ArgumentError
from .packed_weights import LoadableTensor, PackedWeight, read_packed_weights

__all__ = ["CodedWeight", "ScaledWeight", "read_quantized_weights", "scales_of_weights"]

# ---- 8-bit floats


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
        coded = _coded_weights(tensors)
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


# ---- codes


_STATE = re.compile(r"(?P<name>.+)\.quant_state\.bitsandbytes__(nf4|fp4)")
_FLOAT4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_FLOAT4_BLOCK = 16
_LARGEST_INT8 = 127


@dataclass(frozen=True)
class CodedWeight:
    """A weight in a checkpoint, as codes.

    Attributes:
        name: FQN of the weight.
        form: Name of the form, for messages.
        tensors: Kind of part to tensor, the codes first.
        parts: The names of the tensors in the checkpoint.
        shape: Shape of the weight.
    """

    name: str
    form: str
    tensors: Mapping[str, LoadableTensor]
    parts: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def path(self) -> Path:
        """The file."""
        return self.tensors["codes"].path

    @property
    def bytes(self) -> int:
        """Number of bytes in the checkpoint."""
        dtypes = {kind: getattr(tensor, "dtype", torch.uint8) for kind, tensor in self.tensors.items()}
        return sum(math.prod(tensor.shape) * dtypes[kind].itemsize for kind, tensor in self.tensors.items())

    def initializer(self, name: str, dtype: torch.dtype) -> DerivedTensor:
        """The weight as an initializer, which is computed each time its bytes are requested.

        Args:
            name: Initializer name.
            dtype: Element type of the weight in the model.
        """
        return DerivedTensor(name, (), partial(self.dequantized, dtype), from_torch(dtype), self.shape)

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """Compute the weight.

        Args:
            dtype: dtype of the result.

        Raises:
            ValueError: If the parts do not fit each other.
        """
        parts = {kind: tensor.load() for kind, tensor in self.tensors.items()}
        try:
            return _READERS[self.form](parts).reshape(self.shape).to(dtype)
        except (RuntimeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(f"its parts in {self.form} do not fit each other: {error}") from error


def _coded_weights(tensors: Mapping[str, LoadableTensor]) -> dict[str, CodedWeight]:
    """Find the weights as codes among the tensors of a checkpoint, by FQN of the weight."""
    return {weight.name: weight for name in tensors for weight in _weight_of(name, tensors)}


def _weight_of(name: str, tensors: Mapping[str, LoadableTensor]) -> Iterator[CodedWeight]:
    """The weight to which a part belongs that only its form has."""
    state = _STATE.fullmatch(name)
    module, _, last = name.rpartition(".")
    weight = state["name"] if state else f"{module}.weight"
    if state and weight in tensors:
        quant_state: Any = parse_json(bytes(tensors[name].load().tolist()))
        kinds = {"absmax": "absmax", "quant_map": "quant_map"}
        kinds |= {"nested_absmax": "nested_absmax", "nested_quant_map": "nested_quant_map"}
        others = {kind: f"{weight}.{part}" for kind, part in kinds.items()} | {"state": name}
        yield _coded(weight, "bitsandbytes in 4 bits", others, tensors, tuple(map(int, quant_state["shape"])))
    elif last == "SCB" and _dtype_of(tensors, weight) == torch.int8:
        others = {"scales": name, "format": f"{module}.weight_format"}
        yield _coded(weight, "bitsandbytes in 8 bits", others, tensors, tuple(tensors[weight].shape))
    elif last == "weight_global_scale" and f"{module}.weight_packed" in tensors:
        yield _float4(weight, f"{module}.weight_packed", {"divisor": name}, tensors)
    elif last == "weight_scale_2" and _dtype_of(tensors, f"{module}.weight_scale") == torch.float8_e4m3fn:
        yield _float4(weight, weight, {"factor": name}, tensors)


def _float4(weight: str, codes: str, others: Mapping[str, str], tensors: Mapping[str, LoadableTensor]) -> CodedWeight:
    """A weight of 4-bit floats, two in a byte, with scales of blocks in 8-bit floats and one for all of them."""
    rows, columns = tensors[codes].shape
    scales = {"scales": f"{weight}_scale", "smoothing": f"{weight.removesuffix('weight')}pre_quant_scale"}
    return _coded(weight, "NVFP4", {"codes": codes, **scales, **others}, tensors, (rows, 2 * columns))


def _coded(
    weight: str, form: str, others: Mapping[str, str], tensors: Mapping[str, LoadableTensor], shape: tuple[int, ...]
) -> CodedWeight:
    names = {"codes": weight, **others}
    found = {kind: tensors[name] for kind, name in names.items() if name in tensors}
    return CodedWeight(weight, form, found, tuple(names.values()), shape)


def _dtype_of(tensors: Mapping[str, LoadableTensor], name: str) -> Any:
    return getattr(tensors.get(name), "dtype", None)


def _of_table(parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Codes of a table, the first one in the upper bits of a byte, with scales of blocks that may be codes again."""
    state: Any = parse_json(bytes(parts["state"].tolist()))
    codes = parts["codes"].flatten().view(torch.uint8)
    values = parts["quant_map"].float()[torch.stack([codes >> 4, codes & 15], dim=-1).flatten().long()]
    scales = parts["absmax"]
    if "nested_absmax" in parts:
        blocks = torch.arange(len(scales)) // int(state["nested_blocksize"])
        found = parts["nested_quant_map"].float()[scales.long()] * parts["nested_absmax"].float()[blocks]
        scales = found + float(state["nested_offset"])
    values = values[: math.prod(state["shape"])]  # an odd number of codes is padded
    return values * scales.float()[torch.arange(len(values)) // int(state["blocksize"])]


def _of_rows(parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Integers, of which the largest one is the largest absolute value of its row."""
    if int(parts.get("format", torch.tensor(0)).max()) != 0:
        raise ValueError("its weight_format is not 0, rows")
    return parts["codes"].float() * (parts["scales"].float() / _LARGEST_INT8)[:, None]


def _of_float4(parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """4-bit floats, the first one in the lower bits of a byte."""
    if "smoothing" in parts:
        raise ValueError("it has a pre_quant_scale, by which the input would be multiplied")
    table = torch.tensor([*_FLOAT4, *(-value for value in _FLOAT4)])
    codes = parts["codes"].view(torch.uint8)
    values = table[torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2).long()]
    scales = parts["scales"].float()
    scales = scales / parts["divisor"].float() if "divisor" in parts else scales * parts["factor"].float()
    if scales.shape != (values.shape[0], values.shape[1] // _FLOAT4_BLOCK):
        raise ValueError(f"it has scales of shape {[*scales.shape]} for codes of {[*values.shape]}")
    return values * scales.repeat_interleave(_FLOAT4_BLOCK, 1)


_READERS: Mapping[str, Callable[[Mapping[str, torch.Tensor]], torch.Tensor]] = MappingProxyType(
    {"bitsandbytes in 4 bits": _of_table, "bitsandbytes in 8 bits": _of_rows, "NVFP4": _of_float4}
)
"""Form to the function that computes a weight of its parts."""
