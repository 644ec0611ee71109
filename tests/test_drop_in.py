"""Drop-in replacement: scripts written for torch.onnx run unchanged."""

from __future__ import annotations

import inspect
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

X = torch.rand(2, 3)
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


def test_install_and_uninstall() -> None:
    before = torch.onnx.export
    assert not fxonnx.installed()
    fxonnx.uninstall()
    fxonnx.install()
    fxonnx.install()
    assert fxonnx.installed()
    assert torch.onnx.export is not before
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


def test_errors_derive_from_those_of_torch_onnx(installed: None) -> None:
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


def test_export_to_pretty_string() -> None:
    text = fxonnx.export_to_pretty_string(nn.ReLU().eval(), torch.rand(2), output_names=["y"])
    assert text.endswith("  return %y : FLOAT[2]\n}")
    with pytest.raises(ArgumentError, match="f: export_to_pretty_string does not write a file\nhint: call export"):
        fxonnx.export_to_pretty_string(nn.ReLU().eval(), torch.rand(2), f="model.onnx")


def test_select_model_mode_for_export() -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval())
    with fxonnx.select_model_mode_for_export(model, TrainingMode.EVAL):
        assert [module.training for module in model] == [False, False]
    with fxonnx.select_model_mode_for_export(model, TrainingMode.TRAINING):
        assert [module.training for module in model] == [True, True]
    assert [module.training for module in model] == [True, False]
    with pytest.raises(ArgumentError, match=r"training: expected a torch\.onnx\.TrainingMode, got 'eval'"):
        fxonnx.select_model_mode_for_export(model, "eval").__enter__()  # type: ignore[arg-type]


def test_installed_as_a_context_manager() -> None:
    with fxonnx.installed():
        assert fxonnx.installed()
        assert torch.onnx.export is fxonnx.torch_onnx_export
        with fxonnx.installed():
            assert torch.onnx.enable_fake_mode is fxonnx.enable_fake_mode
        assert fxonnx.installed()
    assert not fxonnx.installed()
    assert not hasattr(torch.onnx, "enable_fake_mode")


def test_blocks_of_two_threads_overlap() -> None:
    names = sorted(vars(torch.onnx))
    first, second = fxonnx.installed(), fxonnx.installed()
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert fxonnx.installed()
    second.__exit__()
    assert not fxonnx.installed()
    assert sorted(vars(torch.onnx)) == names


def test_a_block_does_not_uninstall_an_earlier_installation(installed: None) -> None:
    with fxonnx.installed():
        pass
    assert fxonnx.installed()


def test_errors_have_the_names_of_torch_onnx() -> None:
    names = ("ConversionError", "DispatchError", "GraphConstructionError", "TorchExportError")
    assert all(issubclass(getattr(errors, name), torch.onnx.OnnxExporterError) for name in names)
    with pytest.raises(torch.onnx.errors.UnsupportedOperatorError, match="no ONNX translation") as info:
        fxonnx.export(Function(lambda x: torch.linalg.eigvals(x).abs()).eval(), (torch.rand(4, 4),))
    assert isinstance(info.value, errors.ConversionError)


def export_detector(model: nn.Module, image: torch.Tensor, path: Path, opset: int, dynamic: bool) -> Path:
    """Export as in scripts of object detectors: a version check, paths as strings, dynamic_axes by input name."""
    axes = {"images": {0: "batch", 2: "height", 3: "width"}, "output0": {0: "batch"}} if dynamic else None
    options = {"dynamo": False} if "dynamo" in inspect.signature(torch.onnx.export).parameters else {}
    torch.onnx.export(
        model,
        image,
        str(path),
        verbose=False,
        opset_version=opset,
        do_constant_folding=True,
        input_names=["images"],
        output_names=["output0"],
        dynamic_axes=axes,
        **options,
    )
    return path


@pytest.mark.parametrize("opset", [9, 12, 17, 20])
@pytest.mark.parametrize("dynamic", [False, True])
def test_export_script_of_a_detector(installed: None, tmp_path: Path, opset: int, dynamic: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Upsample(scale_factor=2), nn.MaxPool2d(2)).eval()
    path = export_detector(model, torch.zeros(1, 3, 8, 8), tmp_path / "m.onnx", opset, dynamic)
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]
    assert onnx.load(path).opset_import[0].version == opset
    image = torch.rand(2, 3, 12, 10) if dynamic else torch.rand(1, 3, 8, 8)
    (found,) = onnxruntime.InferenceSession(path).run(["output0"], {"images": image.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(image).detach(), rtol=1e-4, atol=1e-5)


def test_export_script_of_a_language_model(installed: None, tmp_path: Path) -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 4)

        def forward(self, input_ids: torch.Tensor, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
            return {"last_hidden_state": self.table(input_ids) * attention_mask[..., None]}

    model, path = Encoder().eval(), tmp_path / "model.onnx"
    dummy = {"input_ids": torch.randint(0, 9, (2, 5)), "attention_mask": torch.ones(2, 5, dtype=torch.long)}
    inputs = {name: {0: "batch_size", 1: "sequence_length"} for name in dummy}
    outputs = {"last_hidden_state": {0: "batch_size", 1: "sequence_length"}}
    torch.onnx.export(
        model,
        (dummy,),
        f=path.as_posix(),
        input_names=list(inputs),
        output_names=list(outputs),
        dynamic_axes={**inputs, **outputs},
        do_constant_folding=True,
        opset_version=14,
        export_params=True,
    )
    given = {"input_ids": torch.randint(0, 9, (3, 7)), "attention_mask": torch.randint(0, 2, (3, 7))}
    feeds = {name: value.numpy() for name, value in given.items()}
    (found,) = onnxruntime.InferenceSession(path).run(["last_hidden_state"], feeds)
    torch.testing.assert_close(torch.from_numpy(found), model(**given)["last_hidden_state"].detach())


def test_arguments_by_position(installed: None, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    torch.onnx.export(nn.ReLU().eval(), (X,), path, True, False, TrainingMode.EVAL, ["a"], ["b"])
    graph = onnx.load(path).graph
    assert [value.name for value in (*graph.input, *graph.output)] == ["a", "b"]
    with pytest.raises(TypeError, match="multiple values for argument 'verbose'"):
        torch.onnx.export(nn.ReLU().eval(), (X,), path, True, False, verbose=True)
    with pytest.raises(TypeError, match="takes from 1 to 16 positional arguments but 17 were given"):
        torch.onnx.export(nn.ReLU().eval(), (X,), path, *[None] * 14)


def test_exportable_module(installed: None) -> None:
    class Own(torch.onnx.ExportableModule):
        def example_arguments(self) -> Any:
            return (X,), None

        def input_names(self) -> Any:
            return ["mine"]

        def dynamic_shapes(self) -> Any:
            return ({0: "rows"},)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu()

    program = torch.onnx.export(Own().eval(), output_names=["out"])
    (value,) = program.model.graph.inputs
    assert (value.name, value.shape) == ("mine", ["rows", 3])
    assert torch.onnx.export(Own().eval(), (X,)).model.graph.inputs[0].shape == [2, 3]
