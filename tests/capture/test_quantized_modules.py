"""Quantized tensors and modules with packed parameters: eager and FX graph mode quantization of torch.ao."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
import torch.ao.nn.intrinsic.quantized as nniq
import torch.ao.nn.quantized as nnq
import torch.ao.quantization as tq
from torch import nn
from torch.ao.quantization.quantize_fx import convert_fx, convert_to_reference_fx, prepare_fx, prepare_qat_fx
from torch.nn import functional as F

import fxonnx
from fxonnx import ArgumentError, CaptureError

from ..functions import Function

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")

ops = torch.ops.quantized


@pytest.fixture(autouse=True)
def fbgemm() -> Iterator[None]:
    """Transposed convolutions of the default engine, x86, are wrong in torch 2.13."""
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    yield
    torch.backends.quantized.engine = engine


SCALE, ZERO_POINT = 0.0313, 117
MISMATCHES = 0.02
"""Largest share of elements that differ, by one step: sums that round at a tie in torch or in ONNX Runtime."""
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


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check_steps(
    expected: torch.Tensor, actual: torch.Tensor, step: float, name: str, share: float = MISMATCHES, steps: int = 1
) -> None:
    """Check that results agree but for one quantization step, or ``steps``, of few elements.

    A wrong zero point changes nearly all elements, a wrong scale the largest by more than a step.
    """
    assert expected.shape == actual.shape, name
    expected, actual = expected.float(), actual.float()
    difference = (expected - actual).abs()
    assert difference.max().item() <= 1.01 * steps * step + 1e-5 * expected.abs().max().item(), name
    allowed = TIES.get(name, share)
    wrong = (difference > 0.5 * step + 1e-6).sum().item()
    assert wrong <= max(allowed * expected.numel(), 1), name
    assert len(expected.unique()) > 1, name


def check(model: Quantized, *shape: int) -> fxonnx.ONNXProgram:
    """Export with a dynamic batch and compare at two batch sizes."""
    model = model.eval()
    program = fxonnx.export(model, (values(*shape),), dynamic_shapes=({0: "n"},))
    for x in (values(*shape), values(shape[0] + 3, *shape[1:], seed=1)):
        expected = model(x)
        actual = program(x)
        for (name, result), other in zip(expected.items(), actual, strict=True):
            check_steps(result, other, model.steps[name], name)
    return program


def weights(*shape: int, axis: int | None = 0, seed: int = 2) -> torch.Tensor:
    """A quantized weight, per channel of an axis or per tensor."""
    weight = values(*shape, seed=seed) * 0.3
    if axis is None:
        return torch.quantize_per_tensor(weight, 0.01, 0, torch.qint8)
    scales = torch.linspace(0.005, 0.01, shape[axis], dtype=torch.float64)
    return torch.quantize_per_channel(weight, scales, torch.zeros(shape[axis], dtype=torch.int64), axis, torch.qint8)


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


# ---- models


class Residual(nn.Module):
    """Convolution, normalization, sum, pooling and a linear layer, written for eager quantization."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = tq.QuantStub(), tq.DeQuantStub()
        self.conv1, self.norm1, self.relu = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        self.conv2, self.skip = nn.Conv2d(8, 8, 3, padding=1), nnq.FloatFunctional()
        self.fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.norm1(self.conv1(self.quant(x))))
        x = F.max_pool2d(self.skip.add_relu(x, self.conv2(x)), 2)
        return self.dequant(self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)))


class Traced(nn.Module):
    """Operators that FX graph mode quantization replaces by functions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(3, 8, 3), nn.LayerNorm(5), nn.Linear(8, 5)
        self.weight = nn.Parameter(values(5, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv(x))
        x = torch.cat([x, x * x + x], 1)[:, :8].mean([2, 3])
        return torch.sigmoid(F.hardswish(self.norm(F.linear(self.linear(x), self.weight))))


def converted_eagerly(qat: bool = False) -> nn.Module:
    torch.manual_seed(0)
    model = Residual()
    if qat:
        model = tq.fuse_modules_qat(model.train(), [["conv1", "norm1", "relu"]])
        model.qconfig = tq.get_default_qat_qconfig("x86")
        tq.prepare_qat(model, inplace=True)
    else:
        model = tq.fuse_modules(model.eval(), [["conv1", "norm1", "relu"]])
        model.qconfig = tq.get_default_qconfig("x86")
        tq.prepare(model, inplace=True)
    model(values(8, 3, 10, 10, seed=5))
    return tq.convert(model.eval())


def converted_by_fx(convert: Callable[..., nn.Module], *, qat: bool = False) -> nn.Module:
    torch.manual_seed(0)
    x = values(8, 3, 10, 10, seed=5)
    if qat:
        model = prepare_qat_fx(Traced().train(), tq.get_default_qat_qconfig_mapping("x86"), (x,))
    else:
        model = prepare_fx(Traced().eval(), tq.get_default_qconfig_mapping("x86"), (x,))
    model(x)
    return convert(model.eval())


def check_model(model: nn.Module, x: torch.Tensor, second: torch.Tensor) -> onnx.ModelProto:
    """Compare a model with few layers, whose output has few different values, at two batch sizes."""
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    program = fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},))
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before
    for inputs in (x, second):
        expected = model(inputs)
        steps = expected.unique().diff()
        assert len(steps) > 2
        # Each layer rounds the differences of the layers before it once more.
        check_steps(expected, program(inputs)[0], steps[steps > 1e-6].min().item(), "model", 0.15, 2)
    return program.model_proto


@pytest.mark.parametrize("qat", [False, True])
def test_eager_model(qat: bool) -> None:
    proto = check_model(converted_eagerly(qat), values(4, 3, 10, 10), values(2, 3, 10, 10, seed=1))
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    assert stored["conv1.weight"].data_type == onnx.TensorProto.INT8
    assert {"conv1.weight_scale", "conv1.bias", "conv2.weight", "fc.weight_scale"} <= {*stored}
    assert all("_packed_params" not in name for name in stored)


def test_integer_kernels() -> None:
    """ONNX Runtime fuses the convolutions, the sum, the pooling and the linear layer."""
    model = fxonnx.export(converted_eagerly(), (values(4, 3, 10, 10),), target="onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as directory:
        options.optimized_model_filepath = str(Path(directory, "optimized.onnx"))
        onnxruntime.InferenceSession(model.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        optimized = onnx.load(options.optimized_model_filepath)
    operators = [node.op_type for node in optimized.graph.node]
    assert operators.count("QLinearConv") == 2
    assert {"QLinearAdd", "QLinearGlobalAveragePool", "QGemm"} <= {*operators}
    assert not {"Conv", "Gemm", "Add"} & {*operators}


@pytest.mark.parametrize("qat", [False, True])
@pytest.mark.parametrize("convert", [convert_fx, convert_to_reference_fx])
def test_fx_model(convert: Callable[..., nn.Module], qat: bool) -> None:
    proto = check_model(converted_by_fx(convert, qat=qat), values(4, 3, 10, 10), values(2, 3, 10, 10, seed=1))
    integers = [tensor for tensor in proto.graph.initializer if tensor.data_type == onnx.TensorProto.INT8]
    assert {tuple(sorted(tensor.dims)) for tensor in integers} >= {(3, 3, 3, 8), (5, 8)}


def dynamic(module: nn.Module, dtype: torch.dtype = torch.qint8) -> nn.Module:
    """Dynamic quantization of a module, as the only layer of a model."""
    torch.manual_seed(0)
    return tq.quantize_dynamic(nn.Sequential(module).eval(), {type(module)}, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(6, 7),
        nn.LSTM(6, 7, 2, bidirectional=True, batch_first=True),
        nn.GRU(6, 7, batch_first=True),
        nn.LSTMCell(6, 7),
        nn.GRUCell(6, 7),
        nn.RNNCell(6, 7, nonlinearity="relu"),
    ],
    ids=lambda module: type(module).__name__,
)
def test_dynamic_quantization(module: nn.Module, dtype: torch.dtype) -> None:
    model = dynamic(copy.deepcopy(module), dtype)
    x = values(3, 5, 6) if isinstance(module, nn.RNNBase) else values(3, 6)
    names = {0: "n", 1: "t"} if isinstance(module, nn.RNNBase) else {0: "n"}
    program = fxonnx.export(model, (x,), dynamic_shapes=(names,))
    second = values(4, 3 if len(names) == 2 else 6, *x.shape[2:], seed=1)
    for inputs in (x, second):
        expected = torch.utils._pytree.tree_leaves(model(inputs))
        actual = _without_fusion(program, inputs)
        for value, other in zip(expected, actual, strict=True):
            torch.testing.assert_close(torch.from_numpy(other), value, rtol=1e-5, atol=1e-5)
    if dtype == torch.qint8:
        stored = [tensor for tensor in program.model_proto.graph.initializer if "weight" in tensor.name]
        assert {tensor.data_type for tensor in stored} == {onnx.TensorProto.INT8}


def test_loop_with_integer_products() -> None:
    """The steps of a long sequence are a loop, whose body multiplies integers."""
    model, x = dynamic(nn.LSTM(6, 7)), values(12, 3, 6)
    program = fxonnx.export(model, (x,), target="onnxruntime")
    for expected, actual in zip(torch.utils._pytree.tree_leaves(model(x)), program(x), strict=True):
        torch.testing.assert_close(actual, expected)
    (loop,) = (node for node in program.model_proto.graph.node if node.op_type == "Scan")
    (body,) = (attribute.g for attribute in loop.attribute if attribute.name == "body")
    assert "MatMulInteger" in {node.op_type for node in body.node}
    assert not {"MatMul", "Gemm", "DequantizeLinear"} & {node.op_type for node in body.node}


def test_short_sequence() -> None:
    """The steps of a short sequence are nodes of the graph."""
    model, x = dynamic(nn.GRU(6, 7)), values(3, 2, 6)
    program = fxonnx.export(model, (x,), target="onnxruntime")
    for expected, actual in zip(torch.utils._pytree.tree_leaves(model(x)), program(x), strict=True):
        torch.testing.assert_close(actual, expected)
    assert "Scan" not in {node.op_type for node in program.model_proto.graph.node}


def _without_fusion(program: fxonnx.ONNXProgram, x: torch.Tensor) -> list[Any]:
    """Run without the fusion to MatMulNBits, which quantizes activations once more."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {session.get_inputs()[0].name: x.numpy()}))


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.bag = nn.Embedding(10, 12), nn.EmbeddingBag(10, 12, mode="sum")

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.table(ids), self.bag(ids)


def test_embeddings() -> None:
    torch.manual_seed(0)
    model = Bags().eval()
    model.table.qconfig = tq.float_qparams_weight_only_qconfig
    model.bag.qconfig = tq.float_qparams_weight_only_qconfig_4bit
    model = tq.convert(tq.prepare(model))
    ids = torch.tensor([[3, 0, 9, 9], [1, 2, 3, 4]])
    program = fxonnx.export(model, (ids,))
    for expected, actual in zip(model(ids), program(ids), strict=True):
        torch.testing.assert_close(actual, expected)
    tables = {tensor.name: tensor.data_type for tensor in program.model_proto.graph.initializer}
    assert tables["table.weight"] == tables["bag.weight"] == onnx.TensorProto.UINT8


# ---- errors


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


class Packed(nn.Module):
    """A dynamically quantized LSTM of a packed sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = dynamic(nn.LSTM(6, 7, batch_first=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True)
        return self.lstm(packed)[1][0]


def test_packed_sequence() -> None:
    with pytest.raises(CaptureError, match=r"LSTM or GRU on a PackedSequence cannot be exported(.|\n)*prepare_pt2e"):
        fxonnx.export(Packed(), (values(2, 3, 6),))


def test_error_names_pt2e() -> None:
    """TorchScript and other opaque forms cannot be captured."""
    scripted = torch.jit.script(converted_eagerly())
    with pytest.raises(CaptureError, match=r"prepare_pt2e and convert_pt2e of torchao\.quantization\.pt2e"):
        fxonnx.export(scripted, (values(4, 3, 10, 10),))
