"""Quantized tensors during the capture: integers with scale and zero point, since fake tensors cannot be quantized.

``AffineTensor`` takes the place of torch's quantized tensors in ``forward``. Functions of torch on one are computed in
floating point between ``quantized_decomposed`` operators, which the captured graph then consists of.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from fxonnx_translations._torch_compat import disable_current_modes, make_wrapper_subclass

from ..._context_values import activated, active
from ...errors import CaptureError

__all__ = [
    "STORAGE",
    "AffineTensor",
    "Parameters",
    "as_affine",
    "choose_parameters",
    "dequantize",
    "quantize",
    "quantize_as",
    "quantized_tensors",
    "scalar_of",
    "unsupported",
]


@dataclass(frozen=True)
class _Storage:
    """Element type and limits of the integers of a quantized dtype."""

    dtype: torch.dtype
    low: int
    high: int


STORAGE: Mapping[torch.dtype, _Storage] = {
    torch.quint8: _Storage(torch.uint8, 0, 2**8 - 1),
    torch.qint8: _Storage(torch.int8, -(2**7), 2**7 - 1),
    torch.qint32: _Storage(torch.int32, -(2**31), 2**31 - 1),
    torch.quint4x2: _Storage(torch.uint8, 0, 2**4 - 1),
}
"""The integers of torch's quantized dtypes."""


@dataclass(frozen=True)
class Parameters:
    """Quantization parameters.

    Attributes:
        scale: A number, or a tensor where it is computed by the model or is one per channel.
        zero_point: As ``scale``.
        dtype: The quantized dtype.
        axis: The axis of the channels, or None.
    """

    scale: float | Tensor
    zero_point: int | Tensor
    dtype: torch.dtype
    axis: int | None = None


@dataclass(frozen=True)
class _Context:
    """The capture in progress.

    Attributes:
        call: Calls a function of torch with quantized tensors among its arguments.
        scalars: Scalar buffers, by ``id`` of the fake tensors that replace them.
    """

    call: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
    scalars: Mapping[int, Tensor]


def _context() -> _Context:
    """The capture in progress; quantized tensors exist in no other place."""
    return cast("_Context", active(_Context))


class AffineTensor(Tensor):
    """Stand-in for a quantized tensor: its integers and quantization parameters.

    It has no storage of its own, and functions of torch never see it.
    """

    _read: Callable[[], tuple[Tensor, Parameters]]

    @staticmethod
    def of(integers: Tensor, parameters: Parameters) -> AffineTensor:
        """Create a quantized tensor of traced integers."""
        return AffineTensor.stored(lambda: (integers, parameters))

    @staticmethod
    def stored(read: Callable[[], tuple[Tensor, Parameters]]) -> AffineTensor:
        """Create a quantized tensor whose integers are a buffer, which tracing replaces by a fake tensor."""
        created: AffineTensor = make_wrapper_subclass(AffineTensor, (0,))
        created._read = read
        return created

    @property
    def integers(self) -> Tensor:
        """The stored integers."""
        return self._read()[0]

    @property
    def parameters(self) -> Parameters:
        """The quantization parameters."""
        return self._read()[1]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _context().call(func, args, dict(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> NoReturn:
        raise unsupported(str(func))


@contextmanager
def quantized_tensors(
    call: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any], scalars: Mapping[int, Tensor]
) -> Iterator[None]:
    """Context in which quantized tensors exist.

    Args:
        call: Calls a function of torch with quantized tensors among its arguments.
        scalars: Scalar buffers, by ``id`` of the fake tensors that tracing substitutes for them.
    """
    with activated(_Context(call, scalars)):
        yield


def scalar_of(value: Any) -> Any:
    """The value of a scalar buffer; any other value is returned."""
    return value if (known := _context().scalars.get(id(value))) is None else known.item()


def choose_parameters(x: Tensor, dtype: torch.dtype, *, reduce_range: bool) -> Parameters:
    """Compute the parameters of dynamic quantization from the range of the values.

    Args:
        x: The tensor.
        dtype: The quantized dtype.
        reduce_range: Whether to use half of the integers.
    """
    storage = STORAGE[dtype]
    low, high = (
        (int(limit / 2) for limit in (storage.low, storage.high)) if reduce_range else (storage.low, storage.high)
    )
    scale, zero_point = _operators().choose_qparams.tensor(x, low, high, torch.finfo(torch.float32).eps, storage.dtype)
    return Parameters(scale, zero_point, dtype)


def as_affine(value: Tensor) -> Tensor:
    """Convert a quantized tensor that is a constant of ``forward``; any other tensor is returned."""
    if isinstance(value, AffineTensor) or not value.is_quantized:
        return value
    with disable_current_modes():
        if value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            parameters = Parameters(value.q_scale(), value.q_zero_point(), value.dtype)
        else:
            scales, zero_points = value.q_per_channel_scales().float(), value.q_per_channel_zero_points()
            parameters = Parameters(scales, zero_points, value.dtype, value.q_per_channel_axis())
        return AffineTensor.of(value.int_repr(), parameters)


def quantize(x: Tensor, parameters: Parameters) -> AffineTensor:
    """Quantize a float tensor."""
    operators, storage = _operators(), STORAGE[parameters.dtype]
    limits = (storage.low, storage.high, storage.dtype)
    if parameters.axis is None:
        numbers = scalar_of(parameters.scale), scalar_of(parameters.zero_point)
        parameters = Parameters(*numbers, parameters.dtype)
    scale, zero_point = parameters.scale, parameters.zero_point
    if parameters.axis is not None:
        integers = operators.quantize_per_channel(x, scale, zero_point, parameters.axis, *limits)
    elif isinstance(scale, Tensor) or isinstance(zero_point, Tensor):
        integers = operators.quantize_per_tensor.tensor(x, _tensor(scale), _tensor(zero_point), *limits)
    else:
        integers = operators.quantize_per_tensor(x, scale, zero_point, *limits)
    return AffineTensor.of(integers, parameters)


def quantize_as(x: Tensor, like: AffineTensor) -> AffineTensor:
    """Quantize a float tensor with the parameters of another tensor."""
    return quantize(x, like.parameters)


def dequantize(x: AffineTensor) -> Tensor:
    """Dequantize to float32."""
    parameters, integers, operators = x.parameters, x.integers, _operators()
    storage = STORAGE[parameters.dtype]
    limits = (storage.low, storage.high, storage.dtype)
    scale, zero_point = parameters.scale, parameters.zero_point
    result: Tensor
    if parameters.axis is not None:
        result = operators.dequantize_per_channel(integers, scale, zero_point, parameters.axis, *limits)
    elif isinstance(scale, Tensor) or isinstance(zero_point, Tensor):
        result = operators.dequantize_per_tensor.tensor(integers, _tensor(scale), _tensor(zero_point), *limits)
    else:
        result = operators.dequantize_per_tensor(integers, scale, zero_point, *limits)
    return result


def unsupported(function: str, reason: str = "on a quantized tensor") -> CaptureError:
    """Create the error for a function of quantized tensors that cannot be exported."""
    return CaptureError(
        f"{function} {reason} cannot be exported",
        hint="dequantize before the call, or quantize the float model with PT2E instead: prepare_pt2e and convert_pt2e "
        "of torchao.quantization.pt2e",
    )


def _operators() -> Any:
    # The import registers the operators.
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    return torch.ops.quantized_decomposed


def _tensor(value: float | Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value)
