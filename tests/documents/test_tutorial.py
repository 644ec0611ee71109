"""The tutorial "Torch.ONNX": AlexNet, pitfalls and limitations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxonnx

from . import alexnet


def test_alexnet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, path = alexnet.make(), tmp_path / "alexnet.onnx"
    dummy_input = torch.randn(10, 3, 224, 224)
    with fxonnx.installed():
        torch.onnx.export(
            model, dummy_input, path, verbose=True, input_names=alexnet.INPUT_NAMES, output_names=["output1"]
        )
    text = capsys.readouterr().out
    assert "%actual_input_1 : FLOAT[10, 3, 224, 224]" in text
    assert "%learned_0 : FLOAT[64, 3, 11, 11]" in text
    assert "%learned_15 : FLOAT[1000]" in text
    assert "scope: features.0" in text
    proto = alexnet.check_file(path, model)
    assert {tensor.name for tensor in proto.graph.initializer} >= set(alexnet.INPUT_NAMES[1:])
    assert [output.name for output in proto.graph.output] == ["output1"]


class Shapes(nn.Module):
    """The in-place operation on a size that tracing captures incorrectly."""

    def forward(self, states: torch.Tensor) -> Any:
        _batch_size, seq_length = states.shape[:2]
        real_seq_length = seq_length
        real_seq_length += 2
        return real_seq_length + seq_length


class Reshaped(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.reshape(y, -1)


class Strings(nn.Module):
    def forward(self, x: dict[str, torch.Tensor], mode: str) -> Any:
        return {"foo": x["a"] + 1, "bar": x["b"] * (2 if mode == "twice" else 1), "mode": mode}


@pytest.mark.parametrize("shapes", [None, ({0: "b", 1: "s"},)])
def test_sizes(shapes: Any) -> None:
    program = fxonnx.export(Shapes().eval(), (torch.rand(2, 3),), dynamic_shapes=shapes, verify=True)
    assert int(program(torch.rand(2, 3))[0]) == 8
    if shapes is not None:
        assert int(program(torch.rand(4, 7))[0]) == 16


def test_a_size_that_is_a_tensor() -> None:
    program = fxonnx.export(Reshaped().eval(), (torch.rand(4, 6), torch.tensor(3)), verify=True)
    assert program(torch.rand(4, 6), torch.tensor(8))[0].shape == (8, 3)


def test_dicts_and_strings() -> None:
    inputs = {"a": torch.rand(2), "b": torch.rand(2)}
    program = fxonnx.export(Strings().eval(), (inputs, "twice"), verify=True)
    assert [value.name for value in program.model.graph.outputs] == ["foo", "bar"]
    assert program.unflatten(program(inputs, "twice"))["mode"] == "twice"


def set_by_matrix(data: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    data[torch.tensor([[1, 2], [2, 3]]), torch.tensor([2, 3])] = new
    return data


def set_apart(data: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    data[torch.tensor([2, 3]), :, torch.tensor([1, 2])] = new[..., 0].mean()
    return data


def set_from_the_end(data: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    data[torch.tensor([1, -2]), torch.tensor([-2, 3])] = new[0, 0, 0]
    return data


def set_broadcast(data: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    data[torch.tensor([[0, 2], [1, 1]]), 1:3] = new[0, 0]
    return data


def get_from_the_end(data: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    return data[torch.tensor([[1, 2], [2, -3]]), torch.tensor([-2, 3])] + new


class Indexed(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, data: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return self.function(data, new)


@pytest.mark.parametrize(
    "function", [set_by_matrix, set_apart, set_from_the_end, set_broadcast, get_from_the_end], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("opset", [11, 20])
def test_patterns_that_were_not_supported(function: Any, opset: int) -> None:
    data, new = torch.rand(4, 4, 5), torch.rand(2, 2, 5)
    fxonnx.export(Indexed(function).eval(), (data, new), opset_version=opset, verify=True)
