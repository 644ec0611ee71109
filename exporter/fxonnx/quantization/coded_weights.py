"""Weights that a checkpoint has as codes for which ONNX Runtime has no operator: bitsandbytes and NVFP4."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from fxonnx_translations._builder.dtypes import from_torch
from fxonnx_translations._builder.initializers import DerivedTensor

from .._json_text import parse_json
from .packed_weights import LoadableTensor

__all__ = ["CodedWeight", "coded_weights"]

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


def coded_weights(tensors: Mapping[str, LoadableTensor]) -> dict[str, CodedWeight]:
    """Find the weights as codes among the tensors of a checkpoint, by FQN of the weight.

    Args:
        tensors: The tensors by name.

    Raises:
        ValueError: If the shape of one is not known.
    """
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
