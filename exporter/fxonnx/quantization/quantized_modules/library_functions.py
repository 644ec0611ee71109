"""The operators of torch's quantized library: ``torch.ops.quantized``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .affine_tensor import STORAGE, AffineTensor, Parameters, dequantize, quantize, quantize_as, unsupported
from .dynamic_functions import DYNAMIC_FUNCTIONS, convolve, float_weight
from .packed_parameters import Geometry, PackedParameters, packed_at_run_time

__all__ = ["LIBRARY_FUNCTIONS", "concatenate"]

_Function = Callable[..., Any]


def _quantized(x: Tensor, like: AffineTensor, scale: float | Tensor, zero_point: int | Tensor) -> AffineTensor:
    """Quantize a result, in the dtype of an operand."""
    return quantize(x, Parameters(scale, zero_point, like.parameters.dtype))


# ---- arithmetic


def _arithmetic(function: _Function, *, relu: bool) -> _Function:
    def call(qa: Any, qb: Any, scale: Any = None, zero_point: Any = None) -> AffineTensor:
        if scale is None:
            # The overloads with a number.
            tensor, number = (qa, qb) if isinstance(qa, AffineTensor) else (qb, qa)
            by_number = _add_number if function is torch.add else _multiply_by_number
            return by_number(tensor, number, relu=relu)
        result = function(dequantize(qa), dequantize(qb))
        return _quantized(torch.relu(result) if relu else result, qa, scale, zero_point)

    return call


def _numbers(x: AffineTensor, function: str) -> tuple[float, int, int, int]:
    """Scale, zero point and limits of a tensor whose parameters are numbers."""
    parameters, storage = x.parameters, STORAGE[x.parameters.dtype]
    if isinstance(parameters.scale, Tensor) or isinstance(parameters.zero_point, Tensor):
        raise unsupported(f"torch.ops.quantized.{function}", "on a tensor whose scale the model computes")
    return parameters.scale, parameters.zero_point, storage.low, storage.high


def _add_number(x: AffineTensor, number: Any, *, relu: bool) -> AffineTensor:
    """Add a number: torch moves the zero point, and changes the scale if it leaves the limits of the dtype."""
    scale, zero_point, low, high = _numbers(x, "add_scalar")
    shifted = zero_point - round(_value(number) / scale)
    result = torch.add(dequantize(x), round(_value(number) / scale) * scale)
    if shifted < low:
        scale, shifted = (high - shifted) / (high - low) * scale, low
    elif shifted > high:
        scale, shifted = (shifted - low) / (high - low) * scale, high
    return _quantized(torch.relu(result) if relu else result, x, scale, shifted)


def _multiply_by_number(x: AffineTensor, number: Any, *, relu: bool) -> AffineTensor:
    """Multiply by a number: torch multiplies the scale; a negative number also mirrors the integers."""
    scale, zero_point, low, high = _numbers(x, "mul_scalar")
    factor = _value(number)
    result = torch.mul(dequantize(x), factor)
    if factor > 0:
        scale = scale * factor
    elif factor < 0:
        scale, zero_point = scale * -factor, high + low - zero_point
    else:
        scale, zero_point = 1.0, 0
    return _quantized(torch.relu(result) if relu else result, x, scale, zero_point)


def _value(number: Any) -> float:
    return float(number.item() if isinstance(number, Tensor) else number)


def concatenate(
    tensors: Sequence[AffineTensor], dim: int = 0, scale: Any = None, zero_point: Any = None, *, relu: bool = False
) -> AffineTensor:
    """Concatenate quantized tensors; by default with the parameters of the first."""
    first = tensors[0].parameters
    parameters = Parameters(
        first.scale if scale is None else scale, first.zero_point if zero_point is None else zero_point, first.dtype
    )
    if (
        not relu
        and all(x.parameters == parameters for x in tensors if _has_numbers(x))
        and all(map(_has_numbers, tensors))
    ):
        return AffineTensor.of(torch.cat([x.integers for x in tensors], dim), parameters)
    result = torch.cat([dequantize(x) for x in tensors], dim)
    return quantize(torch.relu(result) if relu else result, parameters)


def _has_numbers(x: AffineTensor) -> bool:
    return not isinstance(x.parameters.scale, Tensor) and not isinstance(x.parameters.zero_point, Tensor)


def _concatenate_relu(
    qx: Sequence[AffineTensor], dim: int = 0, scale: Any = None, zero_point: Any = None
) -> AffineTensor:
    return concatenate(qx, dim, scale, zero_point, relu=True)


def _matmul(qa: AffineTensor, qb: AffineTensor, scale: float, zero_point: int) -> AffineTensor:
    return _quantized(torch.matmul(dequantize(qa), dequantize(qb)), qa, scale, zero_point)


def _requantizing(function: _Function, count: int, *, relu: bool = False) -> _Function:
    """A function of float tensors as one of a quantized tensor, in whose dtype the result is quantized.

    The function takes the dequantized first argument and the others. The scale and the zero point of the result, which
    may also be named, come after ``count`` arguments.
    """

    def call(*args: Any, **kwargs: Any) -> AffineTensor:
        given = [*args] or [kwargs.pop(next(name for name in kwargs if name in _FIRST))]
        scale, zero_point = (
            next((kwargs.pop(name) for name in names if name in kwargs), None) for names in (_SCALES, _ZERO_POINTS)
        )
        scale = given.pop(count) if scale is None else scale
        zero_point = given.pop(count) if zero_point is None else zero_point
        qx, *others = given
        result = function(dequantize(qx), *others, **kwargs)
        return _quantized(torch.relu(result) if relu else result, qx, scale, zero_point)

    return call


_FIRST = ("qx", "X", "input", "self")
_SCALES, _ZERO_POINTS = ("output_scale", "Y_scale_i"), ("output_zero_point", "Y_zero_point_i")
"""Names of parameters in the schemas."""


# ---- activations


def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    result: Tensor = torch.ops.aten.elu(x, alpha, scale, input_scale)
    return result


def _dropout(x: Tensor, p: float = 0.5, training: bool = False) -> Tensor:
    return F.dropout(x, p, training)


def _leaky_relu(x: Tensor, negative_slope: float, inplace: bool) -> Tensor:
    return F.leaky_relu(x, negative_slope)


def _prelu(qx: AffineTensor, weight: Any, output_scale: float, output_zero_point: int) -> AffineTensor:
    slope = dequantize(weight) if isinstance(weight, AffineTensor) else weight
    return _quantized(F.prelu(dequantize(qx), slope), qx, output_scale, output_zero_point)


def _relu6(qx: AffineTensor, inplace: bool = False) -> AffineTensor:
    result = quantize_as(F.relu6(dequantize(qx)), qx)
    if inplace:
        qx.integers.copy_(result.integers)
        return qx
    return result


def _clamp(qx: AffineTensor, min: float | None = None, max: float | None = None) -> AffineTensor:
    return quantize_as(torch.clamp(dequantize(qx), min, max), qx)


def _threshold(qx: AffineTensor, threshold: float, value: float) -> AffineTensor:
    return quantize_as(F.threshold(dequantize(qx), threshold, value), qx)


# ---- normalization


def _batch_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)


def _instance_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return F.instance_norm(x, weight=weight, bias=bias, eps=eps)


# ---- layers with packed parameters


def _linear(x: Tensor, W_prepack: PackedParameters) -> Tensor:
    return F.linear(x, float_weight(W_prepack), W_prepack.bias())


def _linear_tanh(x: Tensor, W_prepack: PackedParameters) -> Tensor:
    return torch.tanh(_linear(x, W_prepack))


def _linear_leaky_relu(x: Tensor, W_prepack: PackedParameters, negative_slope: float) -> Tensor:
    return F.leaky_relu(_linear(x, W_prepack), negative_slope)


def _linear_from_float(*, relu: bool = False) -> _Function:
    def call(X: Tensor, X_scale: float, X_zero_point: int, W_prepack: PackedParameters) -> Tensor:
        result = _linear(dequantize(quantize(X, Parameters(X_scale, X_zero_point, torch.quint8))), W_prepack)
        return torch.relu(result) if relu else result

    return call


def _convolution(rank: int, *, relu: bool = False) -> _Function:
    def call(x: Tensor, packed_weight: PackedParameters) -> Tensor:
        return convolve(x, packed_weight, rank)

    return _requantizing(call, 2, relu=relu)


def _convolution_add(x: Tensor, qaccum: AffineTensor, packed_weight: PackedParameters) -> Tensor:
    return convolve(x, packed_weight, 2) + dequantize(qaccum)


def _pack_linear(W: Tensor, B: Tensor | None = None) -> PackedParameters:
    return packed_at_run_time(W, B)


def _pack_convolution(rank: int, *, transposed: bool = False) -> _Function:
    def call(
        weight: Tensor,
        bias: Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        *sizes: Any,
    ) -> PackedParameters:
        *output_padding, dilation, groups = sizes
        geometry = Geometry(
            stride, padding, output_padding[0] if output_padding else [0] * rank, dilation, groups, transposed
        )
        return packed_at_run_time(weight, bias, geometry)

    return call


_FUNCTIONS: Mapping[str, _Function] = {
    **DYNAMIC_FUNCTIONS,
    "add": _arithmetic(torch.add, relu=False),
    "add_relu": _arithmetic(torch.add, relu=True),
    "add_scalar": _arithmetic(torch.add, relu=False),
    "add_scalar_relu": _arithmetic(torch.add, relu=True),
    "mul": _arithmetic(torch.mul, relu=False),
    "mul_relu": _arithmetic(torch.mul, relu=True),
    "mul_scalar": _arithmetic(torch.mul, relu=False),
    "mul_scalar_relu": _arithmetic(torch.mul, relu=True),
    "matmul": _matmul,
    "cat": concatenate,
    "cat_relu": _concatenate_relu,
    **{f"batch_norm{kind}": _requantizing(_batch_norm, 6) for kind in ("", "1d", "2d", "3d")},
    **{f"batch_norm{kind}_relu": _requantizing(_batch_norm, 6, relu=True) for kind in ("", "1d", "2d", "3d")},
    "layer_norm": _requantizing(F.layer_norm, 5),
    "group_norm": _requantizing(F.group_norm, 5),
    "instance_norm": _requantizing(_instance_norm, 4),
    "celu": _requantizing(F.celu, 1),
    "clamp": _clamp,
    "dropout": _requantizing(_dropout, 1),
    "elu": _requantizing(_elu, 1),
    "hardswish": _requantizing(F.hardswish, 1),
    "leaky_relu": _requantizing(_leaky_relu, 3),
    "prelu": _prelu,
    "relu6": _relu6,
    "sigmoid": _requantizing(torch.sigmoid, 1),
    "softmax": _requantizing(torch.softmax, 2),
    "threshold": _threshold,
    "linear": _requantizing(_linear, 2),
    "linear_relu": _requantizing(_linear, 2, relu=True),
    "linear_tanh": _requantizing(_linear_tanh, 2),
    "linear_leaky_relu": _requantizing(_linear_leaky_relu, 2),
    "linear_with_input_q_dq_qweight_dq_output_fp32": _linear_from_float(),
    "linear_with_input_q_dq_qweight_dq_relu_output_fp32": _linear_from_float(relu=True),
    "linear_prepack": _pack_linear,
    **{f"conv{rank}d": _convolution(rank) for rank in (1, 2, 3)},
    **{f"conv{rank}d_relu": _convolution(rank, relu=True) for rank in (1, 2, 3)},
    **{f"conv_transpose{rank}d": _convolution(rank) for rank in (1, 2, 3)},
    **{f"conv{rank}d_prepack": _pack_convolution(rank) for rank in (1, 2, 3)},
    **{f"conv_transpose{rank}d_prepack": _pack_convolution(rank, transposed=True) for rank in (1, 2, 3)},
    "conv2d_add": _requantizing(_convolution_add, 3),
    "conv2d_add_relu": _requantizing(_convolution_add, 3, relu=True),
}
LIBRARY_FUNCTIONS: Mapping[str, _Function] = {f"quantized::{name}": function for name, function in _FUNCTIONS.items()}
"""The operators by name, with the arguments of their schemas."""
