"""Low-precision weights: stored codes, dequantized before a product, never transposed at run time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
import torch.ao.quantization.fx._decomposed
from torch import nn
from torch.nn import functional as F

import fxonnx

Q = torch.ops.quantized_decomposed
INT8, UINT8, HALF, BFLOAT = torch.int8, torch.uint8, torch.float16, torch.bfloat16
ROWS, COLUMNS = 24, 64


class Linear(nn.Module):
    """A linear layer whose weight is dequantized from buffers."""

    def __init__(self, form: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.form, self.dtype = form, dtype
        low, high = (0, 16) if form == "unsigned" else (-8, 8)
        codes = torch.randint(low, high, (ROWS, COLUMNS), generator=generator)
        self.register_buffer("weight", codes.to(UINT8 if form == "unsigned" else INT8))
        count = {"channel": 1, "unsigned": 4, "group": 4, "wide": 2, "odd": 8}.get(form, 1)
        shape = (ROWS,) if form == "channel" else (ROWS, count)
        self.register_buffer("scale", torch.rand(shape, generator=generator) / 50)
        zeros = torch.randint(max(low, -3), 4, shape, generator=generator)
        # torch subtracts unsigned zero points of 8 bits with a wrap-around.
        self.register_buffer("zeros", zeros.to(INT8) if form == "group" else zeros)
        self.bias = nn.Parameter(torch.randn(ROWS, generator=generator).to(dtype))

    def dequantized(self) -> torch.Tensor:
        if self.form == "tensor":
            return Q.dequantize_per_tensor(self.weight, 0.01, 3, -128, 127, INT8, out_dtype=self.dtype)
        if self.form == "channel":
            return Q.dequantize_per_channel(
                self.weight, self.scale, self.zeros, 0, -128, 127, INT8, out_dtype=self.dtype
            )
        limits = (0, 15) if self.form == "unsigned" else (-8, 7)
        size = COLUMNS // self.scale.shape[1]
        return Q.dequantize_per_channel_group(
            self.weight, self.scale, self.zeros, *limits, self.weight.dtype, size, self.dtype
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.dequantized(), self.bias)


def saved(program: fxonnx.ONNXProgram, folder: Path) -> tuple[onnx.ModelProto, onnxruntime.InferenceSession]:
    """Save a program; return the file and a session that does not round activations."""
    path = folder / "model.onnx"
    program.save(path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    return onnx.load(path), onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def check(model: nn.Module, folder: Path, opset: int, shape: tuple[int, ...], tolerance: float = 1e-6) -> Any:
    """Export with a dynamic batch, compare the saved file with eager at two sizes; return the file."""
    generator = torch.Generator().manual_seed(1)
    dtype = next(model.parameters()).dtype
    x = torch.randn(shape, generator=generator).to(dtype)
    program = fxonnx.export(model.eval(), (x,), dynamic_shapes=({0: "n"},), opset_version=opset)
    proto, session = saved(program, folder)
    for rows in (shape[0], 7):
        x = torch.randn((rows, *shape[1:]), generator=generator).to(dtype)
        expected = model(x).detach()
        name = session.get_inputs()[0].name
        if dtype == BFLOAT:
            (found,) = program(x)
        else:
            found = torch.from_numpy(session.run(None, {name: x.numpy()})[0])
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * float(expected.abs().max()))
    return proto


def stored_types(proto: onnx.ModelProto) -> set[str]:
    """Return the element types of the matrices in a file."""
    kind = onnx.TensorProto.DataType
    return {kind.Name(tensor.data_type) for tensor in proto.graph.initializer if ROWS * COLUMNS in (_size(tensor),)}


def _size(tensor: onnx.TensorProto) -> int:
    size = 1
    for dim in tensor.dims:
        size *= dim
    return size


def op_types(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


FORMS = [
    ("tensor", 13, "INT8"),
    ("channel", 13, "INT8"),
    ("channel", 23, "INT8"),
    ("group", 13, "INT8"),
    ("group", 20, "INT8"),
    ("group", 21, "INT4"),
    ("group", 23, "INT4"),
    ("unsigned", 21, "UINT4"),
    ("wide", 21, "INT4"),
    ("odd", 21, "INT4"),
]


@pytest.mark.parametrize(("form", "opset", "dtype"), FORMS, ids=lambda value: str(value))
@pytest.mark.parametrize("shape", [(1, COLUMNS), (2, 3, COLUMNS)], ids=str)
def test_the_weight_of_a_linear_layer(
    form: str, opset: int, dtype: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    proto = check(Linear(form), tmp_path, opset, shape)
    assert stored_types(proto) == {dtype}
    names = [tensor.name for tensor in proto.graph.initializer]
    assert sum(name.startswith("weight::") for name in names) == 1
    dequantize = [node for node in proto.graph.node if node.op_type == "DequantizeLinear"]
    if form in ("tensor", "channel") or opset >= 21:
        assert len(dequantize) == 1
        assert "Transpose" not in op_types(proto)
        if form != "odd":
            # Runtimes multiply by the codes.
            optimized = onnx.load(tmp_path / "optimized.onnx")
            assert "MatMulNBits" in op_types(optimized)
            assert "DequantizeLinear" not in op_types(optimized)
    packed = ROWS * COLUMNS // (2 if dtype.endswith("4") else 1)
    (codes,) = (tensor for tensor in proto.graph.initializer if _size(tensor) == ROWS * COLUMNS)
    assert len(codes.raw_data) == packed


@pytest.mark.parametrize("dtype", [HALF, BFLOAT], ids=str)
def test_a_half_precision_weight(dtype: torch.dtype, tmp_path: Path) -> None:
    proto = check(Linear("group", dtype), tmp_path, 21, (2, COLUMNS), tolerance=1e-2)
    assert stored_types(proto) == {"INT4"}
    assert "Transpose" not in op_types(proto)


def test_codes_that_do_not_fit_their_limits() -> None:
    model = Linear("group")
    model.weight[0, 0] = 9
    program = fxonnx.export(model.eval(), (torch.randn(2, COLUMNS),), opset_version=21)
    with pytest.raises(fxonnx.SaveError, match="codes from -8 to 9 do not fit INT4, -8 to 7"):
        program.save(Path("unused.onnx"))


class Transposed(nn.Module):
    """Transposes of one dequantized weight in other forms than ``F.linear``."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = Linear("group")
        self.bias = nn.Parameter(torch.randn(ROWS))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weight = self.linear.dequantized()
        heads = weight.view(ROWS, COLUMNS)
        return x @ weight.T, torch.addmm(self.bias, x, weight.t()), x @ heads.permute(1, 0), x.mm(weight.mT)


def test_all_forms_of_a_transpose(tmp_path: Path) -> None:
    model = Transposed().eval()
    x = torch.randn(3, COLUMNS)
    proto, session = saved(fxonnx.export(model, (x,), opset_version=21), tmp_path)
    for found, expected in zip(session.run(None, {"x": x.numpy()}), model(x), strict=True):
        torch.testing.assert_close(torch.from_numpy(found), expected.detach(), rtol=0, atol=1e-6)
    assert "Transpose" not in op_types(proto)
    assert [tensor.name for tensor in proto.graph.initializer if _size(tensor) == ROWS * COLUMNS] == [
        "linear.weight::int4::transposed"
    ]


# ---- fake quantization


class FakeQuantized(nn.Module):
    """A product and a convolution with fake-quantized weights."""

    def __init__(self, limits: tuple[int, int], per_channel: bool, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.limits, self.per_channel = limits, per_channel
        self.linear, self.conv = nn.Linear(COLUMNS, ROWS, dtype=dtype), nn.Conv1d(4, 3, 2, dtype=dtype)
        self.register_buffer("scale", torch.rand(ROWS) / 50 + 1e-3)
        self.register_buffer("zeros", torch.randint(max(limits[0], -3), 4, (ROWS,), dtype=torch.int32))

    def quantized(self, weight: torch.Tensor) -> torch.Tensor:
        if self.per_channel:
            channels = weight.shape[0]
            return torch.fake_quantize_per_channel_affine(
                weight, self.scale[:channels], self.zeros[:channels], 0, *self.limits
            )
        return torch.fake_quantize_per_tensor_affine(weight, 0.013, 2, *self.limits)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = F.linear(x, self.quantized(self.linear.weight), self.linear.bias)
        return rows, F.conv1d(x.view(-1, 4, 16), self.quantized(self.conv.weight), self.conv.bias)


@pytest.mark.parametrize(
    ("limits", "opset", "dtype"),
    [
        ((-128, 127), 13, "INT8"),
        ((-128, 127), 23, "INT8"),
        ((-127, 127), 20, "INT8"),
        ((-8, 7), 20, "INT8"),
        ((-8, 7), 21, "INT4"),
        ((0, 15), 21, "UINT4"),
        ((0, 255), 13, "UINT8"),
    ],
    ids=str,
)
@pytest.mark.parametrize("per_channel", [True, False], ids=["channel", "tensor"])
def test_a_fake_quantized_weight(
    limits: tuple[int, int], opset: int, dtype: str, per_channel: bool, tmp_path: Path
) -> None:
    model = FakeQuantized(limits, per_channel).eval()
    program = fxonnx.export(
        model, (torch.randn(2, COLUMNS),), dynamic_shapes=({0: "n"},), input_names=["x"], opset_version=opset
    )
    proto, session = saved(program, tmp_path)
    for rows in (2, 5):
        x = torch.randn(rows, COLUMNS)
        for found, expected in zip(session.run(None, {"x": x.numpy()}), model(x), strict=True):
            torch.testing.assert_close(torch.from_numpy(found), expected.detach(), rtol=0, atol=1e-5)
    kind = onnx.TensorProto.DataType
    matrices = {kind.Name(tensor.data_type) for tensor in proto.graph.initializer if len(tensor.dims) > 1}
    assert matrices == {dtype}
    assert op_types(proto).count("DequantizeLinear") == 2
    assert not {"Transpose", "QuantizeLinear", "Clip"} & set(op_types(proto))


def test_a_fake_quantized_weight_with_zero_points_that_are_no_integers() -> None:
    weight, shifts = nn.Parameter(torch.randn(ROWS, COLUMNS)), torch.full((ROWS,), 0.5)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scales = torch.full((ROWS,), 0.02)
            return x @ torch.fake_quantize_per_channel_affine(self.weight, scales, shifts, 0, -128, 127).T

    program = fxonnx.export(Model(), (torch.randn(2, COLUMNS),), verify=True)
    assert [node.op_type for node in program.model.graph] == ["MatMul"]


def test_new_weights_are_quantized_again() -> None:
    model, other = FakeQuantized((-8, 7), True), FakeQuantized((-8, 7), True)
    with torch.no_grad():
        other.linear.weight.mul_(-1)
    x = torch.randn(2, COLUMNS)
    program = fxonnx.export(model.eval(), (x,), opset_version=20)
    program.apply_weights(other.state_dict())
    torch.testing.assert_close(program(x)[0], other(x)[0].detach(), rtol=0, atol=0.5)


# ---- quantization-aware training


def _quantization_aware(kind: str, *, observers: bool = False) -> nn.Module:
    import torch.ao.quantization as tq

    torch.manual_seed(0)
    model = nn.Sequential(tq.QuantStub(), nn.Linear(COLUMNS, ROWS), nn.ReLU(), tq.DeQuantStub()).train()
    if kind == "separate":
        activation = tq.FakeQuantize.with_args(observer=tq.MovingAverageMinMaxObserver, quant_min=0, quant_max=255)
        model.qconfig = tq.QConfig(activation=activation, weight=tq.default_per_channel_weight_fake_quant)
    else:
        model.qconfig = tq.get_default_qat_qconfig("qnnpack" if kind == "tensor" else "x86")
    tq.prepare_qat(model, inplace=True)
    model(torch.randn(8, COLUMNS))
    model.eval()
    if not observers:
        model.apply(tq.disable_observer)
    return model


@pytest.mark.exact_products
@pytest.mark.parametrize("kind", ["tensor", "channel", "separate"])
def test_a_model_of_quantization_aware_training(kind: str, tmp_path: Path) -> None:
    model = _quantization_aware(kind)
    proto = check(model, tmp_path, 20, (4, COLUMNS), tolerance=1e-5)
    assert stored_types(proto) == {"INT8"}
    assert not {"Reshape", "Cast", "Transpose"} & set(op_types(proto))


def test_disabled_fake_quantization() -> None:
    import torch.ao.quantization as tq

    model = _quantization_aware("channel")
    model.apply(tq.disable_fake_quant)
    program = fxonnx.export(model, (torch.randn(4, COLUMNS),), verify=True)
    assert {node.op_type for node in program.model.graph} == {"Gemm", "Relu"}


@pytest.mark.parametrize("form", ["captured", "functional"])
def test_a_captured_model_of_quantization_aware_training(form: str) -> None:
    x = torch.randn(4, COLUMNS)
    captured = torch.export.export(_quantization_aware("channel"), (x,))
    if form == "functional":
        captured = captured.run_decompositions()
    program = fxonnx.export(captured, verify=True)
    assert "DequantizeLinear" in {node.op_type for node in program.model.graph}


@pytest.mark.parametrize("kind", ["channel", "separate"])
def test_enabled_observers(kind: str) -> None:
    model, x = _quantization_aware(kind, observers=True), torch.randn(4, COLUMNS)
    with pytest.raises(
        fxonnx.ArgumentError, match=r"observers of '0.activation_post_process', .* are enabled"
    ) as raised:
        fxonnx.export(model, (x,))
    assert "model.apply(torch.ao.quantization.disable_observer)" in str(raised.value)
    if kind == "channel":
        captured = torch.export.export(model, (x,))
        with pytest.raises(fxonnx.PrepareError, match="since its observer is enabled"):
            fxonnx.export(captured)
