"""In the place of torch.onnx: scripts written for it run unchanged."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch.onnx import TrainingMode

import fxonnx
from fxonnx import ArgumentError, errors

from .functions import Function

NAMES = ("export", "ONNXProgram", "is_in_onnx_export", "InputObserver", "ExportableModule")


@pytest.fixture
def installed() -> Iterator[None]:
    before = [getattr(torch.onnx, name) for name in NAMES]
    fxonnx.install()
    try:
        yield
    finally:
        fxonnx.uninstall()
        assert [getattr(torch.onnx, name) for name in NAMES] == before


def test_there_and_back() -> None:
    before = torch.onnx.export
    assert not fxonnx.installed()
    fxonnx.uninstall()
    fxonnx.install()
    fxonnx.install()
    assert fxonnx.installed()
    assert torch.onnx.export is fxonnx.export
    assert torch.onnx.ONNXProgram is fxonnx.ONNXProgram
    fxonnx.uninstall()
    assert torch.onnx.export is before
    assert not fxonnx.installed()


def test_the_tutorials_lstm_runs_unchanged(installed: None, tmp_path: Path) -> None:
    layer_count = 4
    model = nn.LSTM(10, 20, num_layers=layer_count, bidirectional=True)
    model.eval()
    path = tmp_path / "lstm.onnx"
    with torch.no_grad():
        input = torch.randn(5, 3, 10)
        h0 = torch.randn(layer_count * 2, 3, 20)
        c0 = torch.randn(layer_count * 2, 3, 20)
        torch.onnx.export(
            model,
            (input, (h0, c0)),
            str(path),
            input_names=["input", "h0", "c0"],
            output_names=["output", "hn", "cn"],
            dynamic_axes={"input": {0: "sequence"}, "output": {0: "sequence"}},
        )
        longer = torch.randn(9, 3, 10)
        expected, _ = model(longer, (h0, c0))
    assert onnx.load(path).graph.input[0].type.tensor_type.shape.dim[0].dim_param == "sequence"
    session = onnxruntime.InferenceSession(path)
    (found, *_) = session.run(None, {"input": longer.numpy(), "h0": h0.numpy(), "c0": c0.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-5)


def test_into_a_buffer_with_an_opset_and_legacy_options(installed: None) -> None:
    buffer = io.BytesIO()
    torch.onnx.export(
        nn.Linear(3, 2).eval(),
        (torch.rand(4, 3),),
        buffer,
        export_params=True,
        opset_version=13,
        do_constant_folding=True,
        input_names=["images"],
        output_names=["output0"],
        dynamic_axes={"images": {0: "batch"}, "output0": {0: "batch"}},
        dynamo=False,
    )
    model = onnx.load_from_string(buffer.getvalue())
    assert model.opset_import[0].version == 13
    onnx.checker.check_model(model, full_check=True)


def test_errors_are_those_of_torch_onnx(installed: None) -> None:
    with pytest.raises(torch.onnx.OnnxExporterError, match="opset_version: 5 is outside"):
        torch.onnx.export(nn.ReLU().eval(), (torch.rand(2),), opset_version=5)


class Doubled(fxonnx.ExportableModule):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def example_arguments(self) -> Any:
        return (torch.rand(3),), None

    def dynamic_shapes(self) -> Any:
        return ({0: "n"},)

    def input_names(self) -> list[str]:
        return ["data"]

    def output_names(self) -> list[str]:
        return ["doubled"]


def test_exportable_modules() -> None:
    program = Doubled().eval().to_onnx(opset_version=17)
    graph = program.model.graph
    assert [str(value.name) for value in (*graph.inputs, *graph.outputs)] == ["data", "doubled"]
    assert program(torch.ones(5))[0].tolist() == [2] * 5
    with pytest.raises(TypeError, match="abstract"):
        fxonnx.ExportableModule()  # type: ignore[abstract]


def test_the_graph_as_text() -> None:
    text = fxonnx.export_to_pretty_string(nn.ReLU().eval(), torch.rand(2), output_names=["y"])
    assert text.endswith("  return %y : FLOAT[2]\n}")
    with pytest.raises(ArgumentError, match="f: export_to_pretty_string saves nothing\nhint: call export"):
        fxonnx.export_to_pretty_string(nn.ReLU().eval(), torch.rand(2), f="model.onnx")


def test_modes() -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval())
    with fxonnx.select_model_mode_for_export(model, TrainingMode.EVAL):
        assert [module.training for module in model] == [False, False]
    with fxonnx.select_model_mode_for_export(model, TrainingMode.TRAINING):
        assert [module.training for module in model] == [True, True]
    assert [module.training for module in model] == [True, False]
    with pytest.raises(ArgumentError, match=r"training: expected a torch\.onnx\.TrainingMode, got 'eval'"):
        fxonnx.select_model_mode_for_export(model, "eval").__enter__()  # type: ignore[arg-type]


def test_for_the_body_of_a_with() -> None:
    with fxonnx.installed():
        assert fxonnx.installed()
        assert torch.onnx.export is fxonnx.export
        with fxonnx.installed():
            assert torch.onnx.enable_fake_mode is fxonnx.enable_fake_mode
        assert fxonnx.installed()
    assert not fxonnx.installed()
    assert not hasattr(torch.onnx, "enable_fake_mode")


def test_errors_have_the_names_of_the_incumbent() -> None:
    names = ("ConversionError", "DispatchError", "GraphConstructionError", "TorchExportError")
    assert all(issubclass(getattr(errors, name), torch.onnx.OnnxExporterError) for name in names)
    with pytest.raises(torch.onnx.errors.UnsupportedOperatorError, match="no ONNX translation") as info:
        fxonnx.export(Function(lambda x: torch.histogramdd(x, [2, 2])).eval(), (torch.rand(4, 2),))
    assert isinstance(info.value, errors.ConversionError)
