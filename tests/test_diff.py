"""``fxonnx.diff`` and ``fxonnx diff``: what differs between two models."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fxonnx
from fxonnx._cli.commands import app


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Sequential(nn.Linear(4, 8), nn.GELU()), nn.Linear(8, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


X = torch.rand(2, 4)


def changes(found: fxonnx.ModelDiff, kind: str) -> dict[str, tuple[str, str]]:
    return {change.name: (change.first, change.second) for change in found.changes if change.kind == kind}


def test_the_same_models(tmp_path: Path) -> None:
    program = fxonnx.export(Classifier().eval(), (X,), tmp_path / "a.onnx")
    for other in (program, program.model, program.model_proto, tmp_path / "a.onnx", str(tmp_path / "a.onnx")):
        found = fxonnx.diff(program, other)
        assert not found
        assert str(found) == "The models are the same."


def test_inputs_opsets_and_operators() -> None:
    model = Classifier().eval()
    first = fxonnx.export(model, (X,), opset_version=18, input_names=["x"])
    second = fxonnx.export(
        model, (X,), opset_version=20, dynamic_shapes=({0: "batch"},), input_names=["x"], output_names=["scores"]
    )
    found = fxonnx.diff(first, second)
    assert changes(found, "model")["opset ai.onnx"] == ("18", "20")
    assert changes(found, "input") == {"x": ("FLOAT[2, 4]", "FLOAT[batch, 4]")}
    assert changes(found, "output")["scores"] == ("", "FLOAT[batch, 3]")
    operators = changes(found, "operator")
    assert operators["body.1: Gelu"] == ("", "1")
    assert operators["body.1: Erf"] == ("1", "")
    assert all(name.startswith("const") for name in changes(found, "weight"))
    assert "+ body.1: Gelu: 1" in str(found)
    assert "x: FLOAT[2, 4] -> FLOAT[batch, 4]" in str(found)


def test_weights() -> None:
    first, second = Classifier().eval(), Classifier().eval()
    with torch.no_grad():
        second.body[0].bias[1] += 0.5
    before, after = (fxonnx.export(model, (X,)) for model in (first, second))
    assert changes(fxonnx.diff(before, after), "weight") == {
        "body.0.bias": ("FLOAT[8]", "FLOAT[8], values differ by up to 0.5")
    }
    half = fxonnx.export(first.half(), (X.half(),))
    forms = changes(fxonnx.diff(before, half), "weight")
    assert forms["body.0.bias"] == ("FLOAT[8]", "FLOAT16[8]")


def test_weights_with_other_names_are_found_by_content() -> None:
    program = fxonnx.export(Classifier().eval(), (X,))
    proto = program.model_proto
    text = {"body.0.bias": "b", "body.0.weight": "w"}
    for tensor in proto.graph.initializer:
        tensor.name = text.get(tensor.name, tensor.name)
    for node in proto.graph.node:
        node.input[:] = [text.get(name, name) for name in node.input]
    assert changes(fxonnx.diff(program, proto), "weight") == {
        "body.0.weight": ("FLOAT[8, 4]", "the same as w"),
        "body.0.bias": ("FLOAT[8]", "the same as b"),
    }
    for tensor in proto.graph.initializer:
        if tensor.name == "w":
            transposed = onnx.numpy_helper.to_array(tensor).T.copy()
            tensor.CopyFrom(onnx.numpy_helper.from_array(transposed, "w"))
    assert changes(fxonnx.diff(program, proto), "weight")["body.0.weight"] == ("FLOAT[8, 4]", "the transpose of w")


def test_long_lists_are_shortened() -> None:
    class Many(nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    found = fxonnx.diff(*(fxonnx.export(Many(count).eval(), (X,)) for count in (1, 30)))
    assert "and 40 more" in str(found)


def test_command_line(tmp_path: Path) -> None:
    model = Classifier().eval()
    first, second = tmp_path / "a.onnx", tmp_path / "b.onnx"
    fxonnx.export(model, (X,), first, external_data=True)
    fxonnx.export(model, (X,), second, dynamic_shapes=({0: "batch"},))
    runner = CliRunner()
    assert runner.invoke(app, ["diff", str(first), str(first)]).exit_code == 0
    result = runner.invoke(app, ["diff", str(first), str(second)])
    assert result.exit_code == 1
    assert "Inputs" in result.stdout
    result = runner.invoke(app, ["diff", str(first), str(second), "--json"])
    assert result.exit_code == 1
    assert {change["kind"] for change in json.loads(result.stdout)["changes"]} == {"input", "output"}
    result = runner.invoke(app, ["diff", str(first), str(tmp_path / "c.onnx")])
    assert result.exit_code == 2
    assert re.search(r"model: file .*c.onnx does not exist", result.stderr)
    assert "Example: fxonnx diff" in runner.invoke(app, ["diff", "--help"]).stdout


def test_external_data_that_is_missing(tmp_path: Path) -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, 100))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    path = tmp_path / "a.onnx"
    fxonnx.export(Wide().eval(), (X,), path, external_data=True)
    (tmp_path / "a.onnx.data").unlink()
    with pytest.raises(fxonnx.ArgumentError, match=r"model: the weight 'weight' cannot be read: .*a.onnx.data"):
        fxonnx.diff(path, path)
