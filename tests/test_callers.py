"""Calls of torch.onnx.export by libraries and torch itself, and their use of the program."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch.onnx import TrainingMode
from torch.onnx.verification import verify_onnx_program

import fxonnx
from fxonnx import ArgumentError

from .models.torchvision_shim import import_torchvision


@pytest.fixture
def installed() -> Iterator[None]:
    with fxonnx.installed():
        yield


def run(source: Any, feeds: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    model = source.getvalue() if isinstance(source, io.BytesIO) else source
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return [torch.from_numpy(found) for found in session.run(None, {name: x.numpy() for name, x in feeds.items()})]


class Trained(nn.Module):
    """A model with different results in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.frozen = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Conv2d(4, 4, 1)
        for norm in (self.norm, self.frozen):
            nn.init.uniform_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 1.0, 2.0)

    def train(self, mode: bool = True) -> Trained:
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.frozen(self.second(self.norm(self.conv(x)))))


IMAGES = torch.rand(2, 3, 6, 6)


def test_dynamo_false_exports_in_evaluation_mode(installed: None) -> None:
    model, buffer = Trained(), io.BytesIO()
    model.train()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        torch.onnx.export(model, (IMAGES,), buffer, input_names=["x"], dynamo=False)
    assert model.training
    assert model.drop.training
    assert not model.frozen.training
    torch.testing.assert_close(run(buffer, {"x": IMAGES})[0], model.eval()(IMAGES), rtol=1e-4, atol=1e-5)
    with pytest.warns(UserWarning, match="the model is in training mode"):
        torch.onnx.export(Trained().train(), (IMAGES,))
    kept = fxonnx.torch_onnx_export(Trained().train(), (IMAGES,), training=TrainingMode.PRESERVE, dynamo=False)
    assert "Dropout" in [node.op_type for node in kept.model.graph]


def test_lightning(installed: None, tmp_path: Path) -> None:
    import_torchvision()
    from pytorch_lightning import LightningModule

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.drop, self.layer = nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2)
            self.example_input_array = torch.rand(3, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.drop(self.norm(x)))

    model, path, x = Module().train(), tmp_path / "m.onnx", torch.rand(5, 4)
    axes = {"x": {0: "batch"}, "y": {0: "batch"}}
    model.to_onnx(path, input_names=["x"], output_names=["y"], dynamic_axes=axes, dynamo=False, export_params=True)
    assert model.training
    assert model.drop.training
    torch.testing.assert_close(run(path, {"x": x})[0], model.eval()(x))
    model.to_onnx(path, torch.rand(2, 4), input_names=["x"])
    torch.testing.assert_close(run(path, {"x": x[:2]})[0], model(x[:2]))
    model.train()
    with pytest.warns(UserWarning, match="exported in evaluation mode, as torch.onnx.export does by default"):
        model.to_onnx(path, torch.rand(2, 4), input_names=["x"])
    assert model.training
    torch.testing.assert_close(run(path, {"x": x[:2]})[0], model.eval()(x[:2]))


@pytest.mark.parametrize(
    ("training", "train", "evaluated"),
    [
        (None, True, True),
        (None, False, True),
        (TrainingMode.EVAL, True, True),
        (TrainingMode.PRESERVE, True, False),
        (TrainingMode.PRESERVE, False, True),
        (TrainingMode.TRAINING, False, False),
    ],
)
@pytest.mark.parametrize("dynamo", [None, True, False])
@pytest.mark.filterwarnings("ignore:forward writes to", "ignore:the model is in training mode")
def test_training_modes(
    training: Any, train: bool, evaluated: bool, dynamo: bool | None, installed: None, tmp_path: Path
) -> None:
    model, path = Trained().train(train), tmp_path / "m.onnx"
    before = {name: module.training for name, module in model.named_modules()}
    given = {"training": training, "dynamo": dynamo}
    torch.onnx.export(model, (IMAGES,), path, **{name: value for name, value in given.items() if value is not None})
    assert {name: module.training for name, module in model.named_modules()} == before
    session = onnxruntime.InferenceSession(path)
    found = run(path, {session.get_inputs()[0].name: IMAGES})[0]
    assert torch.allclose(found, model.eval()(IMAGES), rtol=1e-4, atol=1e-5) == evaluated


def test_dropout_that_is_active_in_evaluation_stays(installed: None) -> None:
    model = Trained().eval()
    model.drop.train()
    program = torch.onnx.export(model, (IMAGES,))
    assert "Dropout" in [node.op_type for node in program.model.graph]


@pytest.mark.parametrize("opset", [11, 13, 14, 20])
def test_batch_norms_of_a_model_in_training(opset: int) -> None:
    model = Trained().eval()
    model.drop.p = 0.0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="forward writes to")
        program = fxonnx.torch_onnx_export(
            model, (IMAGES,), training=TrainingMode.TRAINING, opset_version=opset, dynamic_shapes=({0: "n"},)
        )
    onnx.checker.check_model(program.model_proto, full_check=True)
    norms = [node for node in program.model.graph if node.op_type == "BatchNormalization"]
    # Before opset 14, training mode is determined by the number of outputs.
    assert [len(node.outputs) for node in norms] == [3 if opset >= 14 else 5, 1]
    assert [node.attributes.get_int("training_mode", 0) for node in norms] == [int(opset >= 14), 0]
    assert not any("folded" in name for name in program.model.graph.initializers)
    model.train()
    # ONNX Runtime does not update initializers.
    for images in (IMAGES, IMAGES.flip(0) * 3, torch.rand(5, 3, 6, 6) - 2, IMAGES):
        torch.testing.assert_close(program(images)[0], model(images), rtol=1e-4, atol=1e-5)


def test_export_without_weights(installed: None, tmp_path: Path) -> None:
    model, path = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False)).eval(), tmp_path / "m"
    x = torch.rand(5, 3)
    program = torch.onnx.export(model, (x,), path, export_params=False, input_names=["x"])
    onnx.checker.check_model(path, full_check=True)
    graph, weights = onnx.load(path).graph, program.model.graph.initializers
    assert [value.name for value in graph.input] == ["x", *weights]
    assert [tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim) for value in graph.input[1:]] == [
        tuple(value.shape.numpy()) for value in weights.values()
    ]
    feeds = {name: torch.from_numpy(np.array(value.const_value.numpy())) for name, value in weights.items()}
    torch.testing.assert_close(run(path, {"x": x, **feeds})[0], model(x))


def test_dims_of_outputs(installed: None, tmp_path: Path) -> None:
    class Detector(nn.Module):
        def forward(self, images: torch.Tensor) -> Any:
            boxes = torch.cat([images.flatten(2), images[..., ::2].flatten(2)], 2)
            return boxes, images.flatten(2), images.flatten(1), images * 2

    path = tmp_path / "m.onnx"
    axes = {
        "images": {0: "batch", 2: "height", 3: "width"},
        # A computed size keeps its given name; a name that belongs to another size is not used for it.
        "output0": {0: "batch", 2: "anchors"},
        "output1": {0: "batch", -1: "anchors"},
        "output2": {1: "height"},
        "masks": {0: "batch"},
    }
    with pytest.warns(UserWarning, match="dynamic_axes: 'masks' is neither an input nor an output and is ignored"):
        torch.onnx.export(
            Detector().eval(),
            (torch.rand(1, 3, 8, 8),),
            path,
            input_names=["images"],
            output_names=["output0", "output1", "output2"],
            dynamic_axes=axes,
        )
    onnx.checker.check_model(path, full_check=True)
    shapes = [
        [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in onnx.load(path).graph.output
    ]
    assert shapes[0] == ["batch", 3, "anchors"]
    assert shapes[1] == ["batch", 3, "height*width"]
    assert shapes[2] == ["batch", "3*height*width"]
    assert shapes[3] == ["batch", 3, "height", "width"]
    images = torch.rand(2, 3, 4, 6)
    for found, expected in zip(run(path, {"images": images}), Detector()(images), strict=True):
        torch.testing.assert_close(found, expected)


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor, scale: Any = None, *, last: Any = None) -> Any:
        x = self.layer(x).relu() + y
        x = x if scale is None else x * scale
        return x.softmax(-1), x.sum(0) if last is None else x + last


X, Y, Z = torch.rand(2, 4), torch.rand(3), torch.rand(2, 3)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((X, Y), {}), ((X,), {"y": Y}), ((), {"x": X, "y": Y}), ((), {"y": Y, "x": X})],
    ids=["positional", "one-named", "named", "in-another-order"],
)
def test_keyword_arguments_at_export_may_be_positional_in_calls(args: Any, kwargs: Any) -> None:
    model = Several().eval()
    program = fxonnx.export(model, args, kwargs=kwargs)
    for call in (((X, Y), {}), ((X,), {"y": Y}), ((), {"y": Y, "x": X}), ((X, Y, None), {})):
        for found, expected in zip(program(*call[0], **call[1]), model(X, Y), strict=True):
            torch.testing.assert_close(found, expected)
    with pytest.raises(ArgumentError, match="args: got 3 positional arguments"):
        program(X, Y, Z)


def test_positional_arguments_beyond_those_at_export() -> None:
    model = Several().eval()
    program = fxonnx.export(model, (X,), kwargs={"last": Z, "scale": Z, "y": Y})
    torch.testing.assert_close(program(X, Y, Z, last=Z)[1], model(X, Y, Z, last=Z)[1])
    torch.testing.assert_close(program(X, Z, Z, Y)[1], model(X, Y, Z, last=Z)[1])
    with pytest.raises(ArgumentError, match="args: got 5 positional arguments, but the model was exported with 1"):
        program(X, Y, Z, Z, Z)
    # Without a matching parameter in the signature, the order is as in the example inputs.
    again = fxonnx.export(torch.export.export(model, (X,), {"last": Z, "y": Y}))
    torch.testing.assert_close(again(X, Z, Y)[1], model(X, Y, last=Z)[1])


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, images: torch.Tensor, parts: dict[str, torch.Tensor], flag: bool = True) -> Any:
        found = self.norm(self.conv(images)).relu().mean((2, 3))
        return {"sum": found + parts["a"] if flag else found, "scaled": torch.sigmoid(parts["b"] * found)}


@pytest.mark.parametrize("intermediates", [False, True])
@pytest.mark.parametrize(
    ("model", "args", "kwargs"),
    [
        (Several(), (X, Y), {}),
        (Several(), (X,), {"y": Y, "last": Z}),
        (Nested(), (IMAGES, {"a": torch.rand(2, 4), "b": torch.rand(4)}, True), {}),
    ],
    ids=["plain", "named", "nested"],
)
def test_torch_onnx_verification(
    installed: None, model: nn.Module, args: Any, kwargs: Any, intermediates: bool
) -> None:
    program = torch.onnx.export(model.eval(), args, kwargs=kwargs)
    infos = verify_onnx_program(program, compare_intermediates=intermediates)
    assert max(info.max_abs_diff for info in infos) < 1e-4
    assert len(infos) >= (4 if intermediates else 2)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("packed", torch.ones(2, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2))

    def forward(self, x: torch.Tensor) -> Any:
        return x + 1, self.packed


class Viewed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(torch.float4_e2m1fn_x2)


@pytest.mark.parametrize("model", [Packed(), Viewed()], ids=["buffer", "output"])
def test_unsupported_4_bit_dtypes(model: nn.Module) -> None:
    message = "FLOAT4E2M1, which ONNX does not have at opset 20|pair of numbers, which only a view as uint8 can split"
    with pytest.raises(fxonnx.ExportError, match=message):
        fxonnx.export(model.eval(), (torch.ones(2, 4, dtype=torch.uint8),))
