"""Models with packed parameters: eager and FX graph mode quantization of torch.ao."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
import torch.ao.nn.quantizable as nnqa
import torch.ao.nn.quantized as nnq
import torch.ao.nn.quantized.dynamic as nnqd
import torch.ao.quantization as tq
from torch import nn
from torch.ao.quantization.quantize_fx import convert_fx, convert_to_reference_fx, prepare_fx, prepare_qat_fx
from torch.nn import functional as F

import fxonnx
from fxonnx import CaptureError

from ..quantization_steps import check_steps, values, weights
from ..quantization_steps import fbgemm as fbgemm  # a fixture

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")


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
@pytest.mark.exact_products
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


def test_dynamic_convolution() -> None:
    """torch quantizes the result with the parameters of the input."""
    with pytest.warns(UserWarning, match="poor numerical accuracy"):
        convolution = nnqd.Conv2d(4, 6, 3)
    convolution.set_weight_bias(weights(6, 4, 3, 3), values(6))
    model, x = nn.Sequential(convolution).eval(), values(2, 4, 6, 6)
    step = ((x.max() - x.min()) / 127).item()
    check_steps(model(x), fxonnx.export(model, (x,))(x)[0], step, "dynamic convolution")


class Attention(nn.Module):
    """Modules whose quantized versions are compositions: an LSTM, and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.attention = nn.LSTM(6, 8), nn.MultiheadAttention(8, 2)
        self.quant, self.dequant = tq.QuantStub(), tq.DeQuantStub()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lstm(self.quant(x))[0]
        return self.dequant(self.attention(x, x, x)[0])


def test_composed_modules() -> None:
    torch.manual_seed(0)
    model, x = Attention().eval(), values(4, 2, 6)
    model.qconfig = tq.get_default_qconfig("x86")
    observed = {nn.LSTM: nnqa.LSTM, nn.MultiheadAttention: nnqa.MultiheadAttention}
    quantized = {nnqa.LSTM: nnq.LSTM, nnqa.MultiheadAttention: nnq.MultiheadAttention}
    custom = {"float_to_observed_custom_module_class": observed}
    tq.prepare(model, inplace=True, prepare_custom_config_dict=custom)
    model(x)
    model = tq.convert(model, convert_custom_config_dict={"observed_to_quantized_custom_module_class": quantized})
    expected = model(x)
    steps = expected.unique().diff()
    check_steps(expected, fxonnx.export(model, (x,))(x)[0], steps[steps > 1e-6].min().item(), "attention", 0.15, 2)


class Branches(nn.Module):
    """Quantized branches of one input, one for each operator."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = tq.QuantStub(), tq.DeQuantStub()
        self.linear, self.conv = nn.Linear(6, 5), nn.Conv2d(4, 3, 3)
        self.relu, self.relu6, self.hardswish = nn.ReLU(), nn.ReLU6(), nn.Hardswish()
        self.linear_relu = nn.Sequential(nn.Linear(6, 5), nn.ReLU())
        self.conv_relu = nn.Sequential(nn.Conv2d(4, 3, 3), nn.ReLU())
        self.conv_norm = nn.Sequential(nn.Conv2d(4, 3, 3), nn.BatchNorm2d(3))
        self.transposed = nn.ConvTranspose2d(4, 3, 3)
        self.up, self.max, self.average = nn.UpsamplingNearest2d(scale_factor=2), nn.MaxPool2d(2), nn.AvgPool2d(3)
        self.sum, self.join = nnq.FloatFunctional(), nnq.FloatFunctional()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q = self.quant(x)
        operators = (
            *(self.linear, self.conv, self.linear_relu, self.conv_relu, self.conv_norm, self.transposed),
            *(self.relu, self.relu6, self.hardswish, self.up, self.max, self.average),
        )
        results = [operator(q) for operator in operators]
        results += [self.sum.add(q, results[6]), self.join.cat([q, results[6]], 1)]
        return tuple(self.dequant(result) for result in results)


def test_quantization_aware_training() -> None:
    torch.manual_seed(0)
    model, x = Branches().train(), values(3, 4, 6, 6)
    tq.fuse_modules_qat(model, [["linear_relu.0", "linear_relu.1"], ["conv_relu.0", "conv_relu.1"]], inplace=True)
    tq.fuse_modules_qat(model, ["conv_norm.0", "conv_norm.1"], inplace=True)
    model.qconfig = tq.get_default_qat_qconfig("fbgemm")
    model.transposed.qconfig = tq.get_default_qat_qconfig("qnnpack")  # weights per tensor
    tq.prepare_qat(model, inplace=True)
    model(x)
    model = tq.convert(model.eval())
    program = fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},))
    for inputs in (x, values(5, 4, 6, 6, seed=1)):
        for index, (expected, actual) in enumerate(zip(model(inputs), program(inputs), strict=True)):
            steps = expected.unique().diff()
            check_steps(expected, actual, steps[steps > 1e-6].min().item(), str(index))


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
    tables = {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in program.model_proto.graph.initializer}
    assert tables["table.weight"] == (onnx.TensorProto.UINT8, [10, 12])
    # Two integers of 4 bits in each byte.
    assert tables["bag.weight"] == (onnx.TensorProto.UINT8, [10, 6])


# ---- errors


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


def test_scripted_quantized_modules() -> None:
    """Scripts have numbers in the place of quantized element types."""
    scripted, x = torch.jit.script(converted_eagerly()), values(4, 3, 10, 10)
    torch.testing.assert_close(fxonnx.export(scripted, (x,))(x)[0], scripted(x))
