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
