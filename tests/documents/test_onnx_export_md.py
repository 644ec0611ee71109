"""The document "onnx_export.md": torch.export as the engine, ONNXProgram, metadata."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch import nn

import fxonnx


class MLPModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc0 = nn.Linear(8, 8, bias=True)
        self.fc1 = nn.Linear(8, 4, bias=True)
        self.fc2 = nn.Linear(4, 2, bias=True)
        self.fc3 = nn.Linear(2, 2, bias=True)
        self.fc_combined = nn.Linear(8 + 8 + 8, 8, bias=True)

    def forward(self, tensor_x: torch.Tensor, input_dict: dict, input_list: list) -> torch.Tensor:
        combined_tensor = torch.cat([tensor_x, input_dict["tensor_x"], input_list[0]], dim=1)
        combined_tensor = torch.sigmoid(self.fc_combined(combined_tensor))
        combined_tensor = torch.sigmoid(self.fc0(combined_tensor))
        combined_tensor = torch.sigmoid(self.fc1(combined_tensor))
        combined_tensor = torch.sigmoid(self.fc2(combined_tensor))
        return self.fc3(combined_tensor)


class SimpleAddModel(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.add(x, y)


def test_multilayer_perceptron(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tensor_input = torch.rand((97, 8), dtype=torch.float32)
    dict_input = {"tensor_x": torch.rand((97, 8), dtype=torch.float32)}
    list_input = [torch.rand((97, 8), dtype=torch.float32)]
    with fxonnx.installed():
        onnx_program = torch.onnx.export(
            MLPModel().eval(),
            (tensor_input, dict_input, list_input),
            dynamic_shapes=({0: "batch_size"}, {"tensor_x": {0: "batch_size"}}, [{0: "batch_size"}]),
            input_names=["tensor_input", "tensor_x", "list_input_index_0"],
            output_names=["output"],
            dynamo=True,
        )
        assert isinstance(onnx_program, torch.onnx.ONNXProgram)
    assert onnx_program is not None
    for index in range(3):
        assert onnx_program.model.graph.inputs[index].shape == ("batch_size", 8)
    assert onnx_program.model_proto.graph.name
    onnx_program.save("mlp.onnx")
    assert (tmp_path / "mlp.onnx").exists()


def test_metadata() -> None:
    program = fxonnx.export(
        SimpleAddModel().eval(), (torch.rand(2, 8), torch.rand(2, 8)), dynamic_shapes=({0: "b"},) * 2
    )
    (node,) = program.model.graph
    metadata = node.metadata_props
    assert metadata["namespace"].endswith("SimpleAddModel/add: aten.add.Tensor")
    classes = ast.literal_eval(metadata["pkg.torch.onnx.class_hierarchy"])
    assert classes[0].endswith(".SimpleAddModel")
    assert classes[1:] == ["aten.add.Tensor"]
    assert ast.literal_eval(metadata["pkg.torch.onnx.name_scopes"]) == ["", "add"]
    assert metadata["pkg.torch.onnx.fx_node"].startswith(
        "%add : [num_users=1] = call_function[target=torch.ops.aten.add.Tensor](args = (%x, %y)"
    )
    assert 'File "tests/documents/test_onnx_export_md.py", line' in metadata["pkg.torch.onnx.stack_trace"]
    assert "return torch.add(x, y)" in metadata["pkg.torch.onnx.stack_trace"]
    graph = program.model.graph
    assert "# inputs" in graph.metadata_props["pkg.torch.export.ExportedProgram.graph_signature"]
    assert "VR[" in graph.metadata_props["pkg.torch.export.ExportedProgram.range_constraints"]
    kind = "pkg.torch.export.graph_signature."
    assert [value.metadata_props[kind + "InputSpec.kind"] for value in graph.inputs] == ["USER_INPUT"] * 2
    assert graph.outputs[0].metadata_props[kind + "OutputSpec.kind"] == "USER_OUTPUT"


def test_metadata_of_weights() -> None:
    program = fxonnx.export(MLPModel().eval(), (torch.rand(2, 8), {"tensor_x": torch.rand(2, 8)}, [torch.rand(2, 8)]))
    weight = program.model.graph.initializers["fc1.weight"]
    assert weight.metadata_props["pkg.torch.export.graph_signature.InputSpec.kind"] == "PARAMETER"
    assert weight.metadata_props["pkg.torch.onnx.original_node_name"] == "p_fc1_weight"


def test_a_failed_conversion_has_a_report(tmp_path: Path) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.aten._standard_gamma_grad.default(x, x)

    with fxonnx.installed(), pytest.raises(torch.onnx.OnnxExporterError, match=r"report: .*\.html"):
        torch.onnx.export(Model().eval(), (torch.rand(3, 3),), dynamo=True, report=True, artifacts_dir=tmp_path)
    assert len(list(tmp_path.glob("*.md"))) == 1


def test_names_of_the_reference() -> None:
    with fxonnx.installed():
        assert not torch.onnx.is_in_onnx_export()
        assert issubclass(torch.onnx.OnnxExporterError, RuntimeError)
        with torch.onnx.enable_fake_mode():
            model = MLPModel()
        assert model.fc0.weight.device.type == "cpu"
