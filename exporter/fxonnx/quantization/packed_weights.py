"""Weights that a checkpoint has as integers: GPTQ, AWQ and compressed-tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import onnx_ir as ir
import torch

from fxonnx_translations._builder.dtypes import from_torch, to_torch_dtype
from fxonnx_translations._builder.initializers import DerivedTensor, TorchTensor, values_of

from .._paths import parse_json
from ..errors import ArgumentError, kind_of
from .quantized_weight import QuantizedWeight, WeightScheme, blocks_of

__all__ = [
    "METHODS",
    "PackedFormat",
    "PackedSource",
    "PackedTensor",
    "PackedWeight",
    "packed_modules",
    "packed_rows",
    "packed_weights",
    "parts_of",
    "read_packed_format",
    "read_packed_weights",
    "requantized",
]

_CONFIGS = ("config.json", "quantize_config.json")
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Position in a word of AWQ of each of the 8 output features."""


_PARTS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "gptq": ("qweight", "qzeros", "scales", "g_idx"),
        "awq": ("qweight", "qzeros", "scales"),
        "compressed-tensors": (
            *("weight_packed", "weight_scale", "weight_shape"),
            *("weight_zero_point", "weight_g_idx"),
        ),
        "int-quantized": ("weight", "weight_scale", "weight_zero_point", "weight_g_idx"),
    }
)
"""Names of the tensors of a weight, the codes first."""


_COMPRESSED: Mapping[str, str] = MappingProxyType(
    {"pack-quantized": "compressed-tensors", "int-quantized": "int-quantized", "naive-quantized": "int-quantized"}
)
"""Format of compressed-tensors to the method of ``PackedFormat``."""

_GROUPS = ("g_idx", "weight_g_idx")
_NOT_CONSECUTIVE = "groups are not consecutive input features (desc_act, actorder)"
_NOT_BLOCKS = "groups are not blocks of input features in any order"


class LoadableTensor(Protocol):
    """A tensor in a file."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""

    def load(self) -> torch.Tensor:
        """Read the tensor."""


class PackedSource(Protocol):
    """A weight that a file has as integers."""

    @property
    def name(self) -> str:
        """FQN of the weight."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of output and input features."""

    def quantized(self, dtype: torch.dtype, *, codes: bool = True, is_permuted: bool = False) -> QuantizedWeight:
        """See ``PackedWeight``."""

    def order(self) -> torch.Tensor:
        """See ``PackedWeight``."""

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """See ``PackedWeight``."""


@dataclass(frozen=True)
class PackedFormat:
    """The format of a quantized checkpoint.

    Attributes:
        method: "gptq", "awq", "compressed-tensors", or "int-quantized", compressed-tensors with one integer in a byte.
        bits: 4 or 8.
        block_size: Number of weights that share a scale; 0 for all weights of an output feature.
        symmetric: Whether the zero points are all ``2 ** (bits - 1)``.
        zero_offset: Number to add to stored zero points.
    """

    method: str
    bits: int
    block_size: int
    symmetric: bool
    zero_offset: int = 0

    @property
    def model_block_size(self) -> int | None:
        """A power of two that divides the blocks; None for the default of an element type."""
        if not self.block_size:
            return None if self.bits == 8 else 128
        return self.block_size & -self.block_size


@dataclass(frozen=True)
class PackedWeight:
    """A quantized weight in a checkpoint.

    Attributes:
        name: FQN of the weight that it represents.
        format: The format of the checkpoint.
        parts: Last component of the name to tensor.
    """

    name: str
    format: PackedFormat
    parts: Mapping[str, LoadableTensor]

    @property
    def path(self) -> Path:
        """The file."""
        return next(iter(self.parts.values())).path

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of output and input features."""
        per_word = 32 // self.format.bits
        if self.format.method == "gptq":
            return self.parts["qweight"].shape[1], self.parts["qweight"].shape[0] * per_word
        if self.format.method == "awq":
            return self.parts["qweight"].shape[1] * per_word, self.parts["qweight"].shape[0]
        if self.format.method == "int-quantized":
            return self.parts["weight"].shape[0], self.parts["weight"].shape[1]
        rows, columns = self.load("weight_shape").tolist()
        return int(rows), int(columns)

    def initializer(self, name: str, dtype: torch.dtype) -> PackedTensor:
        """The weight as an initializer, for a model that has it in an element type."""
        return PackedTensor(name, self, from_torch(dtype))

    def quantized(self, dtype: torch.dtype, *, codes: bool = True, is_permuted: bool = False) -> QuantizedWeight:
        """Read the weight.

        Args:
            dtype: dtype of the scales.
            codes: Whether the codes are needed; otherwise they are empty.
            is_permuted: Whether to sort the input features by their groups, as ``order`` does.

        Raises:
            ValueError: If the tensors do not have the format, or the order is needed.
        """
        groups = self._groups()
        if groups is None:
            return self._read(dtype, codes=codes)
        if not is_permuted:
            raise ValueError(f"its {_NOT_CONSECUTIVE}")
        found = self._read(dtype, codes=codes)
        return replace(found, codes=found.codes[:, self.order()]) if codes else found

    def order(self) -> torch.Tensor:
        """The input features in the order of their groups.

        Raises:
            ValueError: If these are not blocks.
        """
        groups = self._groups()
        if groups is None:
            return torch.arange(self.shape[1])
        if not _has_blocks(groups, self.format.block_size):
            raise ValueError(f"its {_NOT_BLOCKS}")
        return groups.argsort(stable=True)

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """Compute the weight, whose groups may be any input features.

        Raises:
            ValueError: If the tensors do not have the format.
        """
        found, groups = self._read(dtype), self._groups()
        if groups is None:
            return found.dequantize()
        middle = 2 ** (found.bits - 1)
        points = torch.full(found.scales.shape, middle) if found.zero_points is None else found.zero_points.long()
        scales = found.scales.to(torch.promote_types(dtype, torch.float32))
        return ((found.codes.long() - points[:, groups]) * scales[:, groups]).to(dtype)

    def _read(self, dtype: torch.dtype, *, codes: bool = True) -> QuantizedWeight:
        rows, columns = self.shape
        found, scales, points = _READERS[self.format.method](self, codes)
        size = self.format.block_size or columns
        blocks = -(-columns // size)
        if scales.shape != (rows, blocks) or (points is not None and points.shape != scales.shape):
            raise ValueError(f"it has scales of shape {list(scales.shape)}, expected {[rows, blocks]}")
        if points is not None and bool((points == 2 ** (self.format.bits - 1)).all()):
            points = None
        return QuantizedWeight(found[:, :columns], scales.to(dtype), points, self.format.bits, size)

    def load(self, name: str) -> torch.Tensor:
        """Read one of the tensors.

        Raises:
            ValueError: If the checkpoint lacks it.
        """
        if name not in self.parts:
            raise ValueError(f"the checkpoint has no {self.name.removesuffix('weight')}{name}")
        return self.parts[name].load()

    def _groups(self) -> torch.Tensor | None:
        """The group of each input feature; None if groups are consecutive features."""
        name = next((name for name in _GROUPS if name in self.parts), None)
        return None if name is None else _other_groups(self.load(name), self.format.block_size)


class PackedTensor(DerivedTensor):
    """A weight that is read from its integers each time its bytes are requested.

    Args:
        name: Initializer name.
        packed: The weight in the checkpoint.
        dtype: Element type of the weight in the model.
    """

    is_packed = True

    def __init__(self, name: str, packed: PackedSource, dtype: ir.DataType) -> None:
        self.packed = packed
        self._scale_dtype = to_torch_dtype(dtype)
        super().__init__(name, (), self._dequantized, dtype, packed.shape)

    def quantized(self, *, codes: bool = True, is_permuted: bool = False) -> QuantizedWeight:
        """Read the integers; see ``QuantizedTensor``."""
        try:
            return self.packed.quantized(self._scale_dtype, codes=codes, is_permuted=is_permuted)
        except ValueError as error:
            raise ValueError(f"{self.packed.name!r} in {self.packed.path}: {error}") from error

    def _dequantized(self) -> torch.Tensor:
        try:
            return self.packed.dequantized(self._scale_dtype)
        except ValueError as error:
            raise ValueError(f"{self.packed.name!r} in {self.packed.path}: {error}") from error


def packed_rows(tensor: TorchTensor | DerivedTensor, *, is_transposed: bool) -> list[PackedTensor]:
    """Return the packed weights whose output features are a tensor's, in order; none for other tensors.

    Args:
        tensor: The tensor.
        is_transposed: Whether it has the shape (in_features, out_features).

    Raises:
        ValueError: If it is computed from packed weights in another way.
    """
    packed = list(_packed_sources(tensor))
    if not packed or packed == [tensor]:
        return packed
    shapes = [one.packed.shape for one in packed]
    count, columns = reversed(tuple(tensor.shape.numpy())) if is_transposed else tuple(tensor.shape.numpy())
    # Groups of an odd number of output features cannot be joined in bytes.
    is_even = all(rows % 2 == 0 for rows, _ in shapes)
    if is_even and sum(rows for rows, _ in shapes) == count and all(shape[1] == columns for shape in shapes):
        values = values_of(tensor)
        if torch.equal(values.t() if is_transposed else values, torch.cat([values_of(one) for one in packed])):
            return packed
    raise ValueError(f"it is computed from {packed[0].packed.name!r}, which is quantized in the checkpoint")


def _packed_sources(tensor: Any) -> Iterator[PackedTensor]:
    if isinstance(tensor, PackedTensor):
        yield tensor
    elif isinstance(tensor, DerivedTensor):
        for source in tensor.sources:
            yield from _packed_sources(source)


def requantized(tensor: PackedTensor, weight: QuantizedWeight, columns: int, scheme: WeightScheme) -> QuantizedWeight:
    """Return the same weight in the scheme of a model: smaller blocks, more bits, zero points or offsets.

    Args:
        tensor: The tensor that the weight was read from.
        weight: The weight.
        columns: Number of input features.
        scheme: The scheme of the model.

    Raises:
        ValueError: If the scheme cannot represent the weight.
    """
    count, size = blocks_of(columns, scheme.block_size)
    points, offsets, middle = weight.zero_points, weight.offsets, 2 ** (weight.bits - 1)
    is_divided = weight.scales.shape[1] == 1 or weight.block_size % size == 0
    has_bits = weight.bits == scheme.bits or (weight.bits < scheme.bits and points is None)
    has_form = (points is None or not scheme.symmetric) and (offsets is None or scheme.has_offsets)
    if not (has_bits and is_divided and has_form):
        form = "no zero points" if points is None else "zero points"
        raise ValueError(
            f"{tensor.packed.name!r} in {tensor.packed.path} has {weight.bits} bits in blocks of {weight.block_size} "
            f"with {form}, the model has {scheme.bits} bits in blocks of {size}; "
            "QuantizeConfig.from_checkpoint(directory) is the configuration of the checkpoint"
        )
    scales = weight.scales
    if scales.shape[1] != count:
        blocks = torch.arange(count) * size // weight.block_size
        scales, points = scales[:, blocks], None if points is None else points[:, blocks]
        offsets = None if offsets is None else offsets[:, blocks]
    if scheme.has_offsets and offsets is None:
        offsets = torch.zeros_like(scales)
    codes = weight.codes
    if scheme.bits > weight.bits:
        codes, middle = codes + (2 ** (scheme.bits - 1) - middle), 2 ** (scheme.bits - 1)
    if not scheme.symmetric and points is None:
        points = torch.full(scales.shape, middle, dtype=torch.uint8)
    return QuantizedWeight(codes, scales, points, scheme.bits, size, offsets)


def packed_weights(tensors: Mapping[str, LoadableTensor], packed_format: PackedFormat) -> dict[str, PackedWeight]:
    """Find the quantized weights among the tensors of a checkpoint, by FQN of the weight."""
    codes, *others = _PARTS[packed_format.method]
    found = {}
    for module in _modules(tensors, packed_format):
        names = {part: f"{module}.{part}" for part in (codes, *others)}
        parts = {part: tensors[name] for part, name in names.items() if name in tensors}
        found[f"{module}.weight"] = PackedWeight(f"{module}.weight", packed_format, parts)
    return found


def read_packed_weights(directory: Path, tensors: Mapping[str, LoadableTensor]) -> dict[str, PackedWeight]:
    """The weights that the tensors of a quantized checkpoint represent, by FQN; none of other checkpoints.

    Args:
        directory: The directory of the checkpoint.
        tensors: Its tensors.

    Raises:
        ArgumentError: If the configuration of the checkpoint is invalid.
    """
    packed_format = read_packed_format(directory, "weights")
    return {} if packed_format is None else packed_weights(tensors, packed_format)


def parts_of(weight: PackedWeight) -> list[str]:
    """Names of the tensors in the checkpoint that represent a weight."""
    return [weight.name.removesuffix("weight") + part for part in weight.parts]


def packed_modules(directory: Path, packed_format: PackedFormat) -> tuple[list[str], list[str]]:
    """List the modules of a checkpoint whose weights are quantized.

    Args:
        directory: The directory of its safetensors files.
        packed_format: Its format.

    Returns:
        All of them, and those whose groups are not consecutive input features.

    Raises:
        ArgumentError: If a file cannot be read, or groups are not blocks.
    """
    names, permuted = [], []
    for path in sorted(directory.glob("*.safetensors")):
        for name, is_permuted in _names_in(path, packed_format):
            names.append(name)
            permuted += [name.rpartition(".")[0]] if is_permuted else []
    return sorted(_modules(names, packed_format)), sorted(permuted)


def _names_in(path: Path, packed_format: PackedFormat) -> list[tuple[str, bool]]:
    """Names of tensors, and whether they are groups that are not consecutive input features."""
    from safetensors import SafetensorError, safe_open

    size = packed_format.block_size
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            groups = {name: _other_groups(file.get_tensor(name), size) for name in names if name.endswith(_GROUPS)}
            for name, found in groups.items():
                if found is not None and not _has_blocks(found, size):
                    raise ArgumentError(
                        "directory",
                        f"{name!r} in {path}: {_NOT_BLOCKS}",
                        hint='pass quantize="int4" to round the dequantized weights to nearest',
                    )
            return [(name, groups.get(name) is not None) for name in names]
    except SafetensorError as error:
        raise ArgumentError("directory", f"{path} is not a safetensors file: {error}") from error


def _other_groups(groups: torch.Tensor, size: int) -> torch.Tensor | None:
    """The group of each input feature; None if groups are consecutive features, for which all may also be -1."""
    found = groups.to(torch.int64)
    is_consecutive = not size or bool((found == -1).all()) or torch.equal(found, torch.arange(len(found)) // size)
    return None if is_consecutive else found


def _has_blocks(groups: torch.Tensor, size: int) -> bool:
    """Whether groups are blocks of consecutive input features once these are sorted by them."""
    return torch.equal(groups.sort().values, torch.arange(len(groups)) // size)


def _modules(names: Iterable[str], packed_format: PackedFormat) -> list[str]:
    codes, scales, *_ = _PARTS[packed_format.method]
    if packed_format.method == "int-quantized":  # other weights have names like its codes
        codes = scales
    suffix = f".{codes}"
    return [name.removesuffix(suffix) for name in names if name.endswith(suffix)]


def read_packed_format(directory: Path, argument: str) -> PackedFormat | None:
    """Read the format of a checkpoint from the configuration in its directory.

    Args:
        directory: The directory.
        argument: The user's argument, for messages.

    Returns:
        The format; None if the checkpoint is not quantized, or by a method whose weights are not packed integers.

    Raises:
        ArgumentError: If the format is not supported.
    """
    for name in _CONFIGS:
        path = directory / name
        if not path.is_file():
            continue
        try:
            config = parse_json(path.read_bytes())
        except ValueError as error:
            raise ArgumentError(argument, f"{path} is not a JSON file: {error}") from error
        if not isinstance(config, dict):
            raise ArgumentError(argument, f"{path} is not a configuration: it has {kind_of(config)}")
        found = config.get("quantization_config") if name == _CONFIGS[0] else config
        if isinstance(found, dict):
            return _format(found, path, argument)
    return None


def _format(config: Mapping[str, Any], path: Path, argument: str) -> PackedFormat | None:
    method = config.get("quant_method", "gptq" if path.name == _CONFIGS[1] else None)
    reader = METHODS.get(str(method))
    if reader is None or config.get("format") in ("float-quantized", "nvfp4-pack-quantized"):  # scaled, or as codes
        return None
    try:
        found = reader(config)
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(
            argument,
            f"{path} has weights of {method} in a format that is not supported: {error}",
            hint="supported are 4 and 8 bits per weight with scales for blocks or for output features",
        ) from error
    if found.bits not in (4, 8):
        raise ArgumentError(argument, f"{path} has weights of {found.bits} bits; 4 and 8 are supported")
    return found


def _block_size(size: Any) -> int:
    return 0 if size is None or int(size) <= 0 else int(size)


def _read_gptq(config: Mapping[str, Any]) -> PackedFormat:
    version = config.get("checkpoint_format") or "gptq"
    if version not in ("gptq", "gptq_v2"):
        raise ValueError(f"checkpoint_format is {version!r}")
    # The first version stores zero points less 1.
    offset = int(version == "gptq")
    return PackedFormat(
        "gptq", int(config["bits"]), _block_size(config.get("group_size")), bool(config.get("sym", False)), offset
    )


def _read_awq(config: Mapping[str, Any]) -> PackedFormat:
    version = str(config.get("version") or "gemm").lower()
    bits = int(config.get("bits", config.get("w_bit", 4)))
    if version != "gemm" or bits != 4:
        raise ValueError(f"version is {version!r} with {bits} bits")
    size = _block_size(config.get("group_size", config.get("q_group_size", 128)))
    return PackedFormat("awq", bits, size, symmetric=not config.get("zero_point", True))


def _read_compressed(config: Mapping[str, Any]) -> PackedFormat:
    method = _COMPRESSED.get(str(config.get("format")))
    if method is None:
        raise ValueError(f"format is {config.get('format')!r}, not {' or '.join(map(repr, _COMPRESSED))}")
    strategies = ("group", "channel") if method == "compressed-tensors" else ("group", "channel", "tensor")
    formats = {}
    for group in config["config_groups"].values():
        weights = group["weights"]
        if weights.get("type", "int") != "int" or weights.get("strategy") not in strategies:
            raise ValueError(f"type {weights.get('type')!r}, strategy {weights.get('strategy')!r}")
        size = _block_size(weights.get("group_size")) if weights["strategy"] == "group" else 0
        formats[PackedFormat(method, int(weights["num_bits"]), size, weights.get("symmetric", True))] = 1
    if len(formats) != 1:
        raise ValueError(f"{len(formats)} formats of weights in one checkpoint")
    found = next(iter(formats))
    if method == "int-quantized" and found.bits != 8:
        raise ValueError(f"{found.bits} bits in a byte")
    return found


METHODS: Mapping[str, Callable[[Mapping[str, Any]], PackedFormat]] = MappingProxyType(
    {"gptq": _read_gptq, "awq": _read_awq, "compressed-tensors": _read_compressed}
)
"""``quant_method`` of a checkpoint to the function that reads its configuration."""


# ---- unpacking

_Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
_NO_CODES = torch.empty(0, 0, dtype=torch.uint8)


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Split 32-bit words along the last axis into codes, the lowest bits first."""
    found = words.contiguous().view(torch.uint8)
    return found if bits == 8 else torch.stack([found & 15, found >> 4], dim=-1).flatten(-2)


def _gptq_parts(weight: PackedWeight, codes: bool) -> _Parts:
    bits = weight.format.bits
    found = _unpacked(weight.load("qweight").t(), bits) if codes else _NO_CODES
    points = (_unpacked(weight.load("qzeros"), bits) + weight.format.zero_offset) & (2**bits - 1)
    scales = weight.load("scales")
    return found, scales.t(), points[:, : scales.shape[1]].t()


def _awq_parts(weight: PackedWeight, codes: bool) -> _Parts:
    def ordered(words: torch.Tensor) -> torch.Tensor:
        found = _unpacked(words, 4)
        return found.reshape(len(found), -1, 8)[:, :, list(_AWQ_ORDER)].flatten(1).t()

    points = ordered(weight.load("qzeros")) if "qzeros" in weight.parts else None
    found = ordered(weight.load("qweight")) if codes else _NO_CODES
    return found, weight.load("scales").t(), points


def _compressed_parts(weight: PackedWeight, codes: bool) -> _Parts:
    bits = weight.format.bits
    found = _unpacked(weight.load("weight_packed"), bits) if codes else _NO_CODES
    scales = weight.load("weight_scale")
    points: torch.Tensor | None = None
    if "weight_zero_point" in weight.parts:
        points = weight.load("weight_zero_point")
        if points.dtype == torch.int32:
            points = _unpacked(points.t(), bits).t()[: scales.shape[0]]
        else:
            points = (points.to(torch.int16) + 2 ** (bits - 1)).to(torch.uint8)
    return found, scales, points


def _byte_parts(weight: PackedWeight, codes: bool) -> _Parts:
    """Signed integers of 8 bits, whose scales may be one for all."""
    found = (weight.load("weight").to(torch.int16) + 128).to(torch.uint8) if codes else _NO_CODES
    scales = _of_each_row(weight.load("weight_scale"), weight.shape[0])
    if "weight_zero_point" not in weight.parts:
        return found, scales, None
    points = _of_each_row(weight.load("weight_zero_point"), weight.shape[0])
    return found, scales, (points.to(torch.int16) + 128).to(torch.uint8)


def _of_each_row(values: torch.Tensor, rows: int) -> torch.Tensor:
    """Scales or zero points, [rows, blocks]."""
    values = values if values.ndim == 2 else values.reshape(-1, 1)
    return values.expand(rows, -1) if len(values) == 1 else values


_READERS: Mapping[str, Callable[[PackedWeight, bool], _Parts]] = MappingProxyType(
    {
        "gptq": _gptq_parts,
        "awq": _awq_parts,
        "compressed-tensors": _compressed_parts,
        "int-quantized": _byte_parts,
    }
)
