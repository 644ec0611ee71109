"""Packed parameters of quantized modules, unpacked to buffers of their modules during the capture.

torch.export cannot trace packed parameters, which are opaque objects of C++. ``PackedParameters`` takes their place:
the integers, scales and biases that it refers to are buffers with the names of the module's parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from .affine_tensor import AffineTensor, Parameters, dequantize, unsupported

__all__ = ["Geometry", "PackedCell", "PackedParameters", "packed_at_run_time", "unpack_parameters", "unpacked"]


@dataclass(frozen=True)
class Geometry:
    """Sizes of a convolution."""

    stride: Sequence[int]
    padding: Sequence[int]
    output_padding: Sequence[int]
    dilation: Sequence[int]
    groups: int
    transposed: bool


@dataclass(frozen=True)
class PackedParameters:
    """Weight and bias of a quantized module.

    Attributes:
        weight: Returns the weight: quantized, or in half precision.
        bias: Returns the bias, or None.
        geometry: Sizes of a convolution.
        pairs: Returns the integers of an embedding of 4 bits, two per byte; see ``unpacked``.
    """

    weight: Callable[[], Tensor]
    bias: Callable[[], Tensor | None]
    geometry: Geometry | None = None
    pairs: Callable[[], Tensor] | None = None


@dataclass(frozen=True)
class PackedCell:
    """Parameters of one direction of one layer of a recurrent module.

    Attributes:
        input: The linear map of the input.
        hidden: The linear map of the hidden state.
        reduce_range: Whether activations are quantized to 7 bits.
    """

    input: PackedParameters
    hidden: PackedParameters
    reduce_range: bool


@dataclass(frozen=True)
class _Owner:
    """A module and the names of the buffers that unpacked parameters become.

    Attributes:
        module: The module.
        weight: Name of the weight.
        bias: Name of the bias.
    """

    module: nn.Module
    weight: str = "weight"
    bias: str = "bias"

    def packed(self, weight: Tensor, bias: Tensor | None, geometry: Geometry | None = None) -> PackedParameters:
        """Register weight and bias."""
        if weight.is_quantized:
            read: Callable[[], Tensor] = _add_quantized(self.module, self.weight, weight)
        else:
            read = _add(self.module, self.weight, weight.half())
        return PackedParameters(read, _nothing if bias is None else _add(self.module, self.bias, bias), geometry)


def unpack_parameters(model: nn.Module) -> bool:
    """Replace packed parameters and quantized tensors in the modules of a model by buffers.

    Args:
        model: The model, which ``preserve_model`` restores.

    Returns:
        Whether the model has any, or other modules of torch.ao.
    """
    modules = dict(model.named_modules())
    found = False
    for path, module in modules.items():
        if type(module).__module__.startswith("torch.ao.nn."):
            found = True
            _round_reference_weight(module)
            if hasattr(module, "forward_packed"):
                module.__dict__["forward_packed"] = _reject_packed_sequence
        for name, value in (*vars(module).items(), *module._parameters.items(), *module._buffers.items()):
            if type(value) is torch.ScriptObject:
                kind = value._type().qualified_name().rpartition(".")[2]
                if kind in _UNPACK:
                    found = True
                    module.__dict__[name] = _UNPACK[kind](value, _owner(modules, path, name))
            elif isinstance(value, Tensor) and value.is_quantized:
                found = True
                module._parameters.pop(name, None)
                module._buffers.pop(name, None)
                module.__dict__[name] = AffineTensor.stored(_as_pair(_add_quantized(module, name, value)))
    return found


def _reject_packed_sequence(*args: Any) -> NoReturn:
    raise unsupported("a dynamically quantized LSTM or GRU", "on a PackedSequence")


def _round_reference_weight(module: nn.Module) -> None:
    """Quantize the weight of a module of ``convert_to_reference_fx``, which ``forward`` would quantize."""
    rounded = getattr(module, "get_quantized_weight", None)
    if rounded is None or getattr(module, "is_decomposed", True) or not isinstance(module.weight, nn.Parameter):
        return
    weight = rounded()
    if weight.is_quantized:
        module._parameters.pop("weight")
        for name in ("weight_scale", "weight_zero_point"):
            module._buffers.pop(name)
        read = _add_quantized(module, "weight", weight)
        module.__dict__["get_weight"] = lambda: dequantize(read())


def packed_at_run_time(weight: Tensor, bias: Tensor | None, geometry: Geometry | None = None) -> PackedParameters:
    """Pack parameters in ``forward``."""
    return PackedParameters(lambda: weight, lambda: bias, geometry)


def _owner(modules: dict[str, nn.Module], path: str, name: str) -> _Owner:
    """The module and names under which the user knows the parameters."""
    parts = path.split(".")
    if name == "param" and len(parts) > 1 and parts[-2] == "_all_weight_values":
        # A layer of a recurrent module: its cell has two weights and two biases.
        layer = modules[".".join(parts[:-2])]
        number, reverse = divmod(int(parts[-1]), 2 if getattr(layer, "bidirectional", False) else 1)
        suffix = f"_l{number}" + ("_reverse" if reverse else "")
        return _Owner(layer, f"weight_{{}}{suffix}", f"bias_{{}}{suffix}")
    if parts[-1] == "_packed_params":
        return _Owner(modules[".".join(parts[:-1])])
    if name.startswith("_packed_weight_"):
        kind = name.removeprefix("_packed_weight_")
        return _Owner(modules[path], f"weight_{kind}", f"bias_{kind}")
    prefix = re.sub(r"_?packed_(weight|params)(_\d+)?$", "", name).strip("_")
    return _Owner(modules[path], *(f"{prefix}_{kind}".strip("_") for kind in ("weight", "bias")))


def _linear(packed: Any, owner: _Owner) -> PackedParameters:
    return owner.packed(*packed.unpack())


def _convolution(packed: Any, owner: _Owner) -> PackedParameters:
    weight, bias = packed.unpack()
    geometry = Geometry(
        packed.stride(),
        packed.padding(),
        packed.output_padding(),
        packed.dilation(),
        packed.groups(),
        bool(packed.transpose()),
    )
    if type(owner.module).__name__ in _ONE_DIM:
        weight = weight.squeeze(2)
    return owner.packed(weight, bias, geometry)


def _embedding(packed: Any, owner: _Owner) -> PackedParameters:
    weight = packed.unpack().detach()
    if weight.dtype != torch.quint4x2 or weight.shape[-1] % 2:
        return owner.packed(weight, None)
    first, second = _codes(weight).chunk(2, dim=-1)
    pairs = _add(owner.module, owner.weight, first | second << 4)
    parameters = _add_channels(owner.module, owner.weight, weight)
    return PackedParameters(lambda: AffineTensor.of(unpacked(pairs()), parameters()), _nothing, pairs=pairs)


def unpacked(pairs: Tensor) -> Tensor:
    """Return integers of 4 bits: the first half of each row is in the low bits, the second half in the high bits."""
    return torch.cat((pairs & 15, pairs >> 4), dim=-1)


def _cell(packed: Any, owner: _Owner) -> PackedCell:
    (_, _, _, numbers, linears), _ = packed.__getstate__()
    inputs, hidden = (
        _linear(linear, _Owner(owner.module, owner.weight.format(kind), owner.bias.format(kind)))
        for linear, kind in zip(linears, ("ih", "hh"), strict=True)
    )
    return PackedCell(inputs, hidden, bool(numbers and numbers[0]))


_ONE_DIM = frozenset({"Conv1d", "ConvReLU1d", "ConvTranspose1d"})
_UNPACK: dict[str, Callable[[Any, _Owner], PackedParameters | PackedCell]] = {
    "LinearPackedParamsBase": _linear,
    "Conv2dPackedParamsBase": _convolution,
    "Conv3dPackedParamsBase": _convolution,
    "EmbeddingPackedParamsBase": _embedding,
    "CellParamsBase": _cell,
}


def _add(module: nn.Module, name: str, value: Tensor) -> Callable[[], Tensor]:
    """Register a buffer and return a function that reads it: tracing replaces it by a fake tensor."""
    while name in module._buffers or name in module._parameters or name in module._modules:
        name += "_"
    # Not register_buffer: the classes of torch have methods of these names, which hide the buffers.
    module._buffers[name] = value.detach()
    return lambda: module._buffers[name]  # type: ignore[return-value]


def _add_quantized(module: nn.Module, name: str, value: Tensor) -> Callable[[], AffineTensor]:
    """Register the integers of a quantized tensor, and scales and zero points if there is one per channel."""
    value = value.detach()
    integers, dtype = _add(module, name, _codes(value)), value.dtype
    if value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        parameters = Parameters(value.q_scale(), value.q_zero_point(), dtype)
        return lambda: AffineTensor.of(integers(), parameters)
    channels = _add_channels(module, name, value)
    return lambda: AffineTensor.of(integers(), channels())


def _add_channels(module: nn.Module, name: str, value: Tensor) -> Callable[[], Parameters]:
    """Register the scales and zero points of channels."""
    axis, dtype = value.q_per_channel_axis(), value.dtype
    scales, zero_points = value.q_per_channel_scales().float(), value.q_per_channel_zero_points()
    if dtype == torch.quint4x2:
        # Embeddings of 4 bits are packed with a scale and an offset in half precision.
        offset = (-zero_points.float() * scales).half().float()
        scales = scales.half().float()
        zero_points = -offset / scales
    scale = _add(module, f"{name}_scale", scales)
    zero_point = _add(module, f"{name}_zero_point", zero_points)
    return lambda: Parameters(scale(), zero_point(), dtype, axis)


def _codes(value: Tensor) -> Tensor:
    """The integers of a quantized tensor; of 4 bits, they are stored in pairs, the lower half first."""
    codes = value.int_repr()
    if value.dtype != torch.quint4x2:
        return codes
    halves = torch.stack((codes & 15, codes >> 4), -1)
    return halves.flatten()[: value.numel()].reshape(value.shape)


def _as_pair(read: Callable[[], AffineTensor]) -> Callable[[], tuple[Tensor, Parameters]]:
    def pair() -> tuple[Tensor, Parameters]:
        value = read()
        return value.integers, value.parameters

    return pair


def _nothing() -> None:
    return None
