"""The document "onnx.rst": tracing and scripting, custom operators, export types, questions and answers.

The tutorial makes the same call for AlexNet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch.onnx import OperatorExportTypes, TrainingMode

import fxonnx
from tests.functions import Function
from tests.models.torchvision_shim import import_torchvision


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    with fxonnx.installed():
        yield


class LoopModel(nn.Module):
    def forward(self, x: torch.Tensor, y: Any) -> torch.Tensor:
        for i in range(y):
            x = x + i
        return x


@torch.jit.script
def loop(x, y):  # type: ignore[no-untyped-def]
    for i in range(int(y)):
        x = x + i
    return x


class LoopModel2(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loop(x, y)


DUMMY, COUNT = torch.ones(2, 3, dtype=torch.long), torch.tensor(5, dtype=torch.long)


def test_a_traced_loop_is_a_loop() -> None:
    program = torch.onnx.export(LoopModel().eval(), (DUMMY, COUNT), "loop.onnx", verbose=True)
    assert [node.op_type for node in program.model.graph].count("Loop") == 1
    for count in (5, 9, 0, 1):
        assert program(DUMMY, torch.tensor(count))[0].equal(LoopModel()(DUMMY, torch.tensor(count)))


def test_a_frozen_loop_bound_is_unrolled() -> None:
    program = fxonnx.export(LoopModel().eval(), (DUMMY, COUNT), frozen=["y"])
    assert [node.op_type for node in program.model.graph] == ["Add"] * 4
    assert program(DUMMY, COUNT)[0].equal(LoopModel()(DUMMY, COUNT))
    with pytest.raises(fxonnx.ArgumentError, match="frozen"):
        program(DUMMY, torch.tensor(9))


def test_a_scripted_loop_is_a_loop() -> None:
    torch.onnx.export(
        LoopModel2().eval(), (DUMMY, COUNT), "loop.onnx", verbose=True, input_names=["input_data", "loop_range"]
    )
    onnx.checker.check_model("loop.onnx", full_check=True)
    session = onnxruntime.InferenceSession("loop.onnx")
    for count in (9, 0, 1):
        feeds = {"input_data": DUMMY.numpy(), "loop_range": np.array(count).astype(np.int64)}
        assert (session.run(None, feeds)[0] == 1 + sum(range(count))).all()


class ListLoopModel(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        res = []
        res1 = []
        arr = x.split(2, 0)
        res2 = torch.zeros(3, 4, dtype=torch.long)
        for i in range(len(arr)):
            res.append(arr[i].sum(0, False))
            res1.append(arr[-1 - i].sum(0, False))
            res2 += 1
        return torch.stack(res), torch.stack(res1), res2


def test_lists_of_tensors() -> None:
    model = torch.jit.script(ListLoopModel())
    inputs = torch.randn(16)
    out = model(inputs)
    with pytest.warns(DeprecationWarning, match="example_outputs"):
        torch.onnx.export(model, (inputs,), "loop_and_list.onnx", opset_version=11, example_outputs=out)
    session = onnxruntime.InferenceSession("loop_and_list.onnx")
    out_ort = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
    for expected, found in zip(out, out_ort, strict=True):
        torch.testing.assert_close(torch.from_numpy(found), expected)


class ImplicitCastType(torch.jit.ScriptModule):
    @torch.jit.script_method
    def forward(self, x):  # type: ignore[no-untyped-def]
        y = x + 2
        return y + 3


def test_numbers_in_scripts_take_the_dtype_of_the_tensor() -> None:
    x = torch.tensor([1.0], dtype=torch.float32)
    program = torch.onnx.export(ImplicitCastType(), x, "implicit_cast.onnx")
    assert [node.op_type for node in program.model.graph] == ["Add", "Add"]
    assert program(x)[0].tolist() == [6.0]


class InPlaceIndexedAssignment(nn.Module):
    def forward(self, data: torch.Tensor, new_data: torch.Tensor) -> torch.Tensor:
        data[1] = new_data
        return data


def test_assignment_to_an_index() -> None:
    data, new_data = torch.zeros(3, 4), torch.arange(4).to(torch.float32)
    out = InPlaceIndexedAssignment()(torch.zeros(3, 4), new_data)
    torch.onnx.export(InPlaceIndexedAssignment(), (data, new_data), "inplace_assign.onnx", opset_version=11)
    assert data.sum() == 0
    session = onnxruntime.InferenceSession("inplace_assign.onnx")
    feeds = {
        session.get_inputs()[0].name: torch.zeros(3, 4).numpy(),
        session.get_inputs()[1].name: new_data.numpy(),
    }
    assert torch.all(torch.eq(out, torch.tensor(session.run(None, feeds))))
    assert onnx.load("inplace_assign.onnx").opset_import[0].version == 11


def test_dynamic_axes_of_an_lstm() -> None:
    layer_count = 4
    model = nn.LSTM(10, 20, num_layers=layer_count, bidirectional=True)
    model.eval()
    with torch.no_grad():
        input = torch.randn(5, 3, 10)
        h0, c0 = torch.randn(layer_count * 2, 3, 20), torch.randn(layer_count * 2, 3, 20)
        torch.onnx.export(model, (input, (h0, c0)), "lstm.onnx")
        shape = onnx.load("lstm.onnx").graph.input[0].type.tensor_type.shape
        assert [dim.dim_value for dim in shape.dim] == [5, 3, 10]
        torch.onnx.export(
            model,
            (input, (h0, c0)),
            "lstm.onnx",
            input_names=["input", "h0", "c0"],
            output_names=["output", "hn", "cn"],
            dynamic_axes={"input": {0: "sequence"}, "output": {0: "sequence"}},
        )
        shape = onnx.load("lstm.onnx").graph.input[0].type.tensor_type.shape
        assert shape.dim[0].dim_param == "sequence"
        session = onnxruntime.InferenceSession("lstm.onnx")
        longer = torch.randn(9, 3, 10)
        expected, (hn, cn) = model(longer, (h0, c0))
        found = session.run(None, {"input": longer.numpy(), "h0": h0.numpy(), "c0": c0.numpy()})
    for ours, theirs in zip(found, (expected, hn, cn), strict=True):
        torch.testing.assert_close(torch.from_numpy(ours), theirs, rtol=1e-4, atol=1e-5)


def test_external_data() -> None:
    import_torchvision()
    import torchvision

    model = torchvision.models.mobilenet_v2(weights=None).eval()
    input = torch.randn(2, 3, 224, 224, requires_grad=True)
    with pytest.warns(DeprecationWarning, match="use_external_data_format"):
        torch.onnx.export(model, (input,), "./large_model.onnx", use_external_data_format=True)
    assert {path.name for path in Path.cwd().iterdir()} == {"large_model.onnx", "large_model.onnx.data"}
    onnxruntime.InferenceSession("large_model.onnx")
    with pytest.raises(TypeError, match="unexpected keyword argument 'use_external_date'"):
        torch.onnx.export(model, (input,), "./large_model.onnx", use_external_date=True)


X = torch.rand(2, 3)


@pytest.mark.parametrize(
    ("kind", "nodes"),
    [
        ("ONNX", [("", "Exp"), ("", "Div")]),
        ("ONNX_ATEN", [("org.pytorch.aten", "ATen"), ("org.pytorch.aten", "ATen")]),
        ("ONNX_ATEN_FALLBACK", [("", "Exp"), ("", "Div")]),
    ],
)
def test_export_types(kind: str, nodes: Any) -> None:
    program = torch.onnx.export(
        Function(lambda x: x / x.exp()).eval(), (X,), operator_export_type=getattr(OperatorExportTypes, kind)
    )
    assert [(node.domain, node.op_type) for node in program.model.graph] == nodes
    if kind == "ONNX_ATEN":
        assert [node.attributes["operator"].value for node in program.model.graph] == ["exp", "div"]


LIBRARY = torch.library.Library("foo_namespace", "DEF")
LIBRARY.define("bar(Tensor x, Tensor y) -> Tensor")
LIBRARY.impl("bar", lambda x, y: x + y, "CompositeExplicitAutograd")


def test_custom_operators_fall_through() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.ops.foo_namespace.bar(x, y) / x

    program = torch.onnx.export(Model().eval(), (X, X + 1), operator_export_type=OperatorExportTypes.ONNX_FALLTHROUGH)
    assert [(node.domain, node.op_type) for node in program.model.graph] == [("foo_namespace", "bar"), ("", "Div")]


def test_triu_is_supported() -> None:
    program = torch.onnx.export(
        Function(lambda x: torch.triu(x) * x).eval(), (X,), operator_export_type=OperatorExportTypes.ONNX_ATEN_FALLBACK
    )
    assert all(node.domain == "" for node in program.model.graph)
    torch.testing.assert_close(program(X)[0], torch.triu(X) * X)


def test_training_mode() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    for mode, fixed in ((TrainingMode.EVAL, True), (TrainingMode.TRAINING, False)):
        program = torch.onnx.export(model, (X,), training=mode, state="outputs")
        assert ([node.op_type for node in program.model.graph] == ["Gemm"]) == fixed
        assert model.training
    model.eval()
    program = torch.onnx.export(model, (X,), training=TrainingMode.PRESERVE)
    torch.testing.assert_close(program(X)[0], model(X).detach())


def test_functions_of_the_reference() -> None:
    assert "Relu" in torch.onnx.export_to_pretty_string(nn.ReLU().eval(), (X,))
    model = Function(lambda x: torch.onnx.operators.shape_as_tensor(x))
    program = torch.onnx.export(model.eval(), (X,), dynamic_shapes=({0: "n"},))
    assert program(torch.rand(5, 3))[0].tolist() == [5, 3]
    with torch.onnx.select_model_mode_for_export(model, TrainingMode.TRAINING):
        assert model.training
    assert not model.training
