"""Functions of quantized tensors, and operators with packed parameters, against eager torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.ao.nn.intrinsic.quantized as nniq
import torch.ao.nn.quantized as nnq
from torch import nn
from torch.nn import functional as F

import fxonnx
from fxonnx import ArgumentError, CaptureError

from ..functions import Function
from ..quantization_steps import MISMATCHES, check_steps, values, weights
from ..quantization_steps import fbgemm as fbgemm  # a fixture

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")

ops = torch.ops.quantized


SCALE, ZERO_POINT = 0.0313, 117
TIES = {"interpolate bilinear": 0.1}
"""The share for functions with weights such as 3/4, whose results are often at a tie."""


class Quantized(nn.Module):
    """Functions of one quantized tensor; the results are dequantized."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]], dtype: torch.dtype = torch.quint8) -> None:
        super().__init__()
        self.functions = dict(functions)
        self.layers = nn.ModuleDict({name: f for name, f in functions.items() if isinstance(f, nn.Module)})
        self.dtype, self.zero_point = dtype, ZERO_POINT if dtype == torch.quint8 else ZERO_POINT - 128
        self.steps: dict[str, float] = {}

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        q = torch.quantize_per_tensor(x, SCALE, self.zero_point, self.dtype)
        results = {name: function(q) for name, function in self.functions.items()}
        if not torch.compiler.is_exporting():
            self.steps = {name: r.q_scale() if r.is_quantized else 0.0 for name, r in results.items()}
        return {name: r.dequantize() if r.is_quantized else r for name, r in results.items()}


def check(model: Quantized, *shape: int) -> fxonnx.ONNXProgram:
    """Export with a dynamic batch and compare at two batch sizes."""
    model = model.eval()
    program = fxonnx.export(model, (values(*shape),), dynamic_shapes=({0: "n"},))
    for x in (values(*shape), values(shape[0] + 3, *shape[1:], seed=1)):
        expected = model(x)
        actual = program(x)
        for (name, result), other in zip(expected.items(), actual, strict=True):
            check_steps(result, other, model.steps[name], name, TIES.get(name, MISMATCHES))
    return program


def layer(module: Any, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None) -> Any:
    """Set weight, bias and parameters of the output."""
    if weight is not None:
        module.set_weight_bias(weight, bias)
    if isinstance(getattr(module, "scale", None), torch.Tensor):
        module.scale, module.zero_point = torch.tensor(0.05), torch.tensor(120)
    else:
        module.scale, module.zero_point = 0.05, 120
    return module


class Functional(nn.Module):
    """A function with a quantized weight, which is an attribute or a buffer."""

    def __init__(self, function: Callable[..., Any], weight: torch.Tensor, *, as_buffer: bool = False) -> None:
        super().__init__()
        self.function, self.bias = function, nn.Parameter(values(len(weight)))
        if as_buffer:
            self.register_buffer("weight", weight)
        else:
            self.weight = weight

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return self.function(q, self.weight, self.bias, scale=0.05, zero_point=120)


def parameter(size: int, mean: float) -> nn.Parameter:
    return nn.Parameter(values(size) + mean)


def activations() -> dict[str, Callable[..., Any]]:
    return {
        "relu": torch.relu,
        "relu_": lambda q: q.clone().relu_(),
        "inplace": lambda q: nn.ReLU(inplace=True)(q.clone()),
        "relu6": nnq.ReLU6(),
        "hardtanh": lambda q: F.hardtanh(q, -0.4, 0.7),
        "clamp": lambda q: torch.clamp(q, -0.5, 1.1),
        "threshold": lambda q: nnq.functional.threshold(q, 0.1, 0.2),
        "leaky_relu": lambda q: F.leaky_relu(q, 0.2),
        "nnq.LeakyReLU": nnq.LeakyReLU(0.02, 7, 0.1),
        "gelu": F.gelu,
        "sigmoid": torch.sigmoid,
        "nnq.Sigmoid": nnq.Sigmoid(1 / 128, 3),
        "tanh": torch.tanh,
        "hardsigmoid": F.hardsigmoid,
        "nnq.Hardswish": nnq.Hardswish(0.02, 20),
        "nnq.ELU": nnq.ELU(0.03, 60),
        "celu": lambda q: ops.celu(q, 0.03, 60, 1.5),
        "nnq.Softmax": nnq.Softmax(1, 1 / 256, 0),
        "nnq.PReLU": nnq.PReLU(0.03, 60, 4),
        "dropout": lambda q: F.dropout(q, 0.5, False),
    }


def arithmetic() -> dict[str, Callable[..., Any]]:
    return {
        "add": lambda q: ops.add(q, q.flip(1), 0.05, 120),
        "add_relu": lambda q: ops.add_relu(q, q.flip(1), 0.05, 60),
        "mul": lambda q: ops.mul(q, q.flip(1), 0.07, 120),
        "mul_relu": lambda q: ops.mul_relu(q, q.flip(1), 0.07, 10),
        "add_scalar": lambda q: ops.add_scalar(q, 0.4),
        "add_scalar below": lambda q: ops.add(q, 9.0),
        "add_scalar above": lambda q: ops.add_scalar(q, -9.0),
        "add_scalar_relu": lambda q: ops.add_scalar_relu(q, 0.4),
        "mul_scalar": lambda q: ops.mul_scalar(q, 0.4),
        "mul_scalar negative": lambda q: ops.mul_scalar(q, -0.4),
        "mul_scalar_relu": lambda q: ops.mul_scalar_relu(q, 2.5),
        "matmul": lambda q: ops.matmul(q, q.transpose(-1, -2), 0.2, 110),
        "cat": lambda q: torch.cat([q, q], 1),
        "quantized.cat": lambda q: ops.cat([q, torch.sigmoid(q)], 1, 0.05, 120),
        "quantized.cat of one tensor": lambda q: ops.cat([q, q], 1, None, None),
        "quantized.cat_relu": lambda q: ops.cat_relu([q, q.flip(1)], 1, 0.05, 20),
        "stack": lambda q: torch.stack([q, q.flip(1)], 1),
        "QFunctional": lambda q: nnq.QFunctional().mul_scalar(q, 2.0),
        "greater": lambda q: q > 0.5,
        "equal": lambda q: q == q.flip(1),
    }


def shapes() -> dict[str, Callable[..., Any]]:
    return {
        "max_pool1d": lambda q: F.max_pool1d(q[:, 0], 2),
        "max_pool2d": lambda q: F.max_pool2d(q, 3, 2, 1),
        "avg_pool2d": lambda q: F.avg_pool2d(q, 3),
        "adaptive_avg_pool2d": lambda q: F.adaptive_avg_pool2d(q, 1),
        "mean": lambda q: q.mean([2, 3], keepdim=True),
        "interpolate nearest": lambda q: F.interpolate(q, scale_factor=2),
        "interpolate bilinear": lambda q: F.interpolate(q, scale_factor=2, mode="bilinear", align_corners=False),
        "upsample": lambda q: nn.Upsample(scale_factor=2)(q),
        "pad": lambda q: F.pad(q, (1, 1)),
        "pad reflect": lambda q: F.pad(q, (1, 1, 1, 1), mode="reflect"),
        "view": lambda q: q.view(q.size(0), -1),
        "flatten": lambda q: torch.flatten(q, 1),
        "permute": lambda q: q.permute(0, 2, 3, 1),
        "transpose": lambda q: q.transpose(1, 2),
        "slice": lambda q: q[:, 1:3, ::2],
        "chunk": lambda q: q.chunk(2, 1)[1],
        "expand": lambda q: q[:, :1].expand(-1, 3, -1, -1),
        "unsqueeze": lambda q: q.unsqueeze(1),
        "channel_shuffle": lambda q: F.channel_shuffle(q, 2),
        "pixel_shuffle": lambda q: F.pixel_shuffle(q, 2),
        "index_select": lambda q: q.index_select(1, torch.tensor([2, 0])),
        "contiguous": lambda q: q.permute(0, 2, 3, 1).contiguous(),
        "topk": lambda q: q.topk(2, 1)[0],
        "max": lambda q: torch.max(q, 1)[0],
        "masked_fill": lambda q: q.masked_fill(torch.tensor([True, False, False, True, False, False]), 0.0),
        "int_repr": lambda q: q.int_repr(),
        "properties": lambda q: q.dequantize() * (q.q_scale() * q.q_zero_point() * q.dim() * len(q.shape)),
        "requantize": lambda q: torch.quantize_per_tensor(q.dequantize(), 0.1, 9, torch.quint8),
    }


def norms() -> dict[str, Callable[..., Any]]:
    return {
        "nnq.LayerNorm": nnq.LayerNorm(6, parameter(6, 1), parameter(6, 0), 0.04, 128),
        "nnq.GroupNorm": nnq.GroupNorm(2, 4, parameter(4, 1), parameter(4, 0), 0.04, 128),
        "nnq.InstanceNorm2d": nnq.InstanceNorm2d(4, parameter(4, 1), parameter(4, 0), 0.04, 128),
        "nnq.InstanceNorm1d": lambda q: ops.instance_norm(q.flatten(2), None, None, 1e-5, 0.04, 128),
        "nnq.InstanceNorm3d": lambda q: ops.instance_norm(q.unsqueeze(2), None, None, 1e-5, 0.04, 128),
        "nnq.BatchNorm2d": layer(nnq.BatchNorm2d(4)),
        "batch_norm2d_relu": lambda q: ops.batch_norm2d_relu(
            q, torch.ones(4) / 2, torch.ones(4), torch.ones(4), torch.ones(4), 1e-5, 0.04, 30
        ),
        "batch_norm3d": lambda q: ops.batch_norm3d(
            q.unsqueeze(2), torch.ones(4), torch.ones(4), torch.zeros(4), torch.ones(4), 1e-5, 0.04, 30
        ),
    }


def layers() -> dict[str, Callable[..., Any]]:
    return {
        "Linear": layer(nnq.Linear(6, 5), weights(5, 6), values(5)),
        "Linear per tensor": layer(nnq.Linear(6, 5), weights(5, 6, axis=None)),
        "LinearReLU": layer(nniq.LinearReLU(6, 5), weights(5, 6), values(5)),
        "Conv2d": layer(nnq.Conv2d(4, 6, 3, padding=1, stride=2), weights(6, 4, 3, 3), values(6)),
        "Conv2d reflect": layer(nnq.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), weights(6, 4, 3, 3), values(6)),
        "ConvReLU2d": layer(nniq.ConvReLU2d(4, 6, 3, groups=2, dilation=2), weights(6, 2, 3, 3), values(6)),
        "ConvTranspose2d": layer(nnq.ConvTranspose2d(4, 6, 3, 2), weights(4, 6, 3, 3, axis=None), values(6)),
        "functional.conv2d": Functional(nnq.functional.conv2d, weights(6, 4, 3, 3)),
        "functional.linear": Functional(nnq.functional.linear, weights(5, 6), as_buffer=True),
    }


def layers_1d() -> dict[str, Callable[..., Any]]:
    return {
        "Conv1d": layer(nnq.Conv1d(4, 6, 3, padding=1, stride=2), weights(6, 4, 3), values(6)),
        "ConvReLU1d": layer(nniq.ConvReLU1d(4, 6, 3), weights(6, 4, 3), values(6)),
        "ConvTranspose1d": layer(nnq.ConvTranspose1d(4, 6, 3, 2), weights(4, 6, 3, axis=None), values(6)),
        "functional.conv1d": Functional(nnq.functional.conv1d, weights(6, 4, 3)),
    }


def layers_3d() -> dict[str, Callable[..., Any]]:
    return {
        "Conv3d": layer(nnq.Conv3d(4, 6, 2, padding=1, stride=2), weights(6, 4, 2, 2, 2), values(6)),
        "ConvReLU3d": layer(nniq.ConvReLU3d(4, 6, 2), weights(6, 4, 2, 2, 2), values(6)),
        "ConvTranspose3d": layer(nnq.ConvTranspose3d(4, 6, 2, 2), weights(4, 6, 2, 2, 2, axis=None), values(6)),
        "adaptive_avg_pool3d": lambda q: F.adaptive_avg_pool3d(q, 2),
        "interpolate": lambda q: F.interpolate(q, scale_factor=2),
    }


@pytest.mark.parametrize(
    ("functions", "shape"),
    [
        pytest.param(activations, (2, 4, 6, 6), id="activations"),
        pytest.param(arithmetic, (2, 4, 6, 6), id="arithmetic"),
        pytest.param(shapes, (2, 4, 6, 6), id="shapes"),
        pytest.param(norms, (2, 4, 6, 6), id="norms"),
        pytest.param(layers, (2, 4, 6, 6), id="layers"),
        pytest.param(layers_1d, (2, 4, 9), id="layers of rank 1"),
        pytest.param(layers_3d, (2, 4, 4, 5, 6), id="layers of rank 3"),
    ],
)
def test_functions(functions: Callable[[], dict[str, Callable[..., Any]]], shape: tuple[int, ...]) -> None:
    check(Quantized({name.replace(".", " "): function for name, function in functions().items()}), *shape)


@pytest.mark.parametrize("dtype", [torch.qint8, torch.qint32])
def test_signed_integers(dtype: torch.dtype) -> None:
    functions: dict[str, Callable[..., Any]] = {
        "relu": torch.relu,
        "flatten": lambda q: q.flatten(1),
        "mean": lambda q: q.mean([2, 3]),
    }
    if dtype == torch.qint8:
        functions |= {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "max_pool2d": lambda q: F.max_pool2d(q, 2)}
    check(Quantized(functions, dtype), 2, 4, 6, 6)


def test_quantization_per_channel() -> None:
    scales, zeros = torch.tensor([0.03, 0.05, 0.1, 0.2]), torch.tensor([0, 3, -5, 2])

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q = torch.quantize_per_channel(x, scales, zeros, 1, torch.qint8)
        dynamic = torch.quantize_per_tensor_dynamic(x, torch.quint8, False)
        return q.dequantize(), dynamic.dequantize()

    model, x = Function(function), values(2, 4, 6, 6)
    for expected, actual in zip(model(x), fxonnx.export(model, (x,))(x), strict=True):
        torch.testing.assert_close(actual, expected)


def quantized(x: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(x, SCALE, ZERO_POINT, torch.quint8)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: torch.softmax(quantized(x), 1).dequantize(), r"torch\.softmax on a quantized tensor cannot be"),
        (lambda x: (quantized(x) + quantized(x)).dequantize(), r"torch\.add on a quantized tensor cannot be exported"),
        (lambda x: quantized(x).float(), r"torch\.float on a quantized tensor cannot be exported"),
        (
            lambda x: torch.quantize_per_channel(x, torch.ones(4), torch.zeros(4), 1, torch.qint8).t().dequantize(),
            r"torch\.t on a tensor that is quantized per channel cannot be exported",
        ),
        (quantized, r"an output of the model is a quantized tensor"),
    ],
)
def test_unsupported_functions(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        fxonnx.export(Function(function), (values(2, 4),))


def test_quantized_input() -> None:
    with pytest.raises(ArgumentError, match=r"'x' is a quantized tensor(.|\n)*QuantStub"):
        fxonnx.export(Function(lambda x: x.dequantize()), (quantized(values(2, 4)),))


@pytest.mark.parametrize(("scale", "shift"), [(1.05, 0.0), (1.0, SCALE)])
def test_comparison_finds_wrong_parameters(scale: float, shift: float) -> None:
    """A scale or zero point that is wrong by one step is found."""
    x = values(4, 50)
    expected = torch.quantize_per_tensor(x, SCALE, ZERO_POINT, torch.quint8).dequantize()
    check_steps(expected, expected, SCALE, "equal")
    with pytest.raises(AssertionError):
        check_steps(expected, expected * scale + shift, SCALE, "wrong")


def test_exported_program() -> None:
    """torch.export represents quantized tensors by floats, and does not record that functions round their results."""
    x = values(2, 4)
    exact = torch.export.export(Function(lambda x: torch.relu(quantized(x)).view(4, 2).dequantize()), (x,))
    torch.testing.assert_close(fxonnx.export(exact)(x)[0], torch.relu(quantized(x)).view(4, 2).dequantize())
    rounded = torch.export.export(Function(lambda x: torch.sigmoid(quantized(x)).dequantize()), (x,))
    with pytest.raises(fxonnx.UnsupportedOperatorError, match=r"aten\.dequantize\.self(.|\n)*export the nn.Module"):
        fxonnx.export(rounded)
