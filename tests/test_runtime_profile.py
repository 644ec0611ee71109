"""Times of ONNX Runtime by module and operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
from torch import nn

import fxonnx
from fxonnx._model_files import origin_of
from fxonnx.diagnostics.runtime_profile import RuntimeProfile, random_inputs, runtime_profile
from tests.functions import Doubling


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3), nn.ReLU())
        self.head = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x).mean((2, 3)))


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def check(profile: RuntimeProfile, model: nn.Module) -> None:
    assert profile.total > 0
    assert sum(profile.modules.values()) + profile.not_attributed == pytest.approx(profile.total)
    assert sum(profile.operators.values()) == pytest.approx(profile.total)
    assert list(profile.operators.values()) == sorted(profile.operators.values(), reverse=True)
    assert set(profile.modules) <= {name for name, _ in model.named_modules()}
    assert profile.time_of("") == pytest.approx(profile.total - profile.not_attributed)


CASES: dict[str, tuple[nn.Module, torch.Tensor, set[str]]] = {
    # The activations are fused into the convolutions, whose names ONNX Runtime changes.
    "convolutions": (Convolutions(), torch.randn(1, 8, 12, 12), {"features.0", "features.3", "head"}),
    "transformer": (transformer(), torch.randn(1, 3, 8), {"layers.0.self_attn", "layers.1.norm2", "layers.1.linear1"}),
}


@pytest.mark.parametrize(
    "options", [{}, {"functions": "repeated"}, {"compat": "torchscript", "metadata": "none"}], ids=str
)
@pytest.mark.parametrize("name", CASES)
def test_times_of_modules_and_operators_have_one_sum(
    name: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, expected = CASES[name]
    program = fxonnx.torch_onnx_export(model.eval(), (x,), **options)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    profile = runtime_profile(program, repetitions=3)
    check(profile, model)
    assert expected <= set(profile.modules)
    assert "features.1" not in profile.modules
    assert not list(tmp_path.iterdir())


def test_a_file_is_profiled_with_random_inputs(tmp_path: Path) -> None:
    model = CASES["transformer"][0].eval()
    x = CASES["transformer"][1]
    fxonnx.export(model, (x,), tmp_path / "model.onnx", dynamic_shapes=({0: "batch", 1: "length"},))
    profile = runtime_profile(ir.load(tmp_path / "model.onnx"), repetitions=1)
    check(profile, model)
    assert "layers.1.self_attn" in profile.modules


def test_the_time_of_a_loop_is_without_its_body() -> None:
    profile = runtime_profile(fxonnx.export(Doubling().eval(), (torch.rand(2, 4),)), repetitions=2)
    assert {"Loop", "Add", "Abs"} <= set(profile.operators)
    assert sum(profile.modules.values()) + profile.not_attributed == pytest.approx(profile.total)


def test_nodes_without_names_or_metadata_belong_to_the_model() -> None:
    x = ir.val("x", ir.DataType.FLOAT, ["n", 3])
    nodes = [ir.node("Relu", [x]), ir.node("Neg", [x])]
    for node in nodes:
        node.outputs[0].name = f"{node.op_type}_result"
    outputs = [node.outputs[0] for node in nodes]
    model = ir.Model(ir.Graph([x], outputs, nodes=nodes, opset_imports={"": 20}), ir_version=10)
    for node in nodes:
        node.name = None
    profile = runtime_profile(model, [torch.randn(4, 3)], repetitions=1)
    assert set(profile.operators) == {"Relu", "Neg"}
    assert list(profile.modules) == [""]
    assert [node.name for node in nodes] == [None, None]


def test_unusable_arguments() -> None:
    program = fxonnx.export(nn.ReLU().eval(), (torch.randn(2),))
    with pytest.raises(fxonnx.ArgumentError, match="repetitions: expected at least 1, got 0"):
        runtime_profile(program, repetitions=0)
    program.model.graph.inputs[0].shape = None
    with pytest.raises(fxonnx.ArgumentError, match="random values cannot be made up for it: its dtype or rank"):
        random_inputs(program.model)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("/layer1/layer1.0/conv1/Conv", "layer1.0.conv1"),
        ("/layer1/layer1.0/layer1.0.conv1/Conv", "layer1.0.conv1"),
        ("/encoder/layer.0/attention/self/query/MatMul_1", "encoder.layer.0.attention.self.query"),
        ("/Conv", ""),
        ("Conv_1", ""),
    ],
)
def test_modules_of_names_with_scopes(name: str, module: str) -> None:
    assert origin_of(ir.node("Relu", [ir.val("x")], name=name)) == (module, "")
