"""A misspelled name gets a suggestion, wherever users write names."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.onnx.errors import OnnxExporterWarning

import fxonnx
from fxonnx._cli.loading import load_model

from .functions import Function


class Hidden:
    """Object with two tensors."""

    def __init__(self) -> None:
        self.state = torch.rand(2, 3)
        self.memory = torch.rand(2, 3)


class Model(nn.Module):
    """A container, an object, a number, a weight and a buffer that forward writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3)
        self.register_buffer("steps", torch.zeros(3))

    def forward(
        self, features: torch.Tensor, options: dict[str, torch.Tensor], hidden: Hidden, scale: float = 1.0
    ) -> torch.Tensor:
        self.steps += 1
        return self.head(features) * options["gain"] * scale + hidden.state + hidden.memory + self.steps


def inputs() -> dict[str, Any]:
    return {"features": torch.rand(2, 3), "options": {"gain": torch.rand(2, 3)}, "hidden": Hidden(), "scale": 0.5}


SIZES = {"features": {0: "batch"}, "options": {"gain": {0: "batch"}}, "hidden": {0: "batch"}}


def export(**options: Any) -> fxonnx.ONNXProgram:
    return fxonnx.torch_onnx_export(Model().eval(), **({"kwargs": inputs(), "state": "io"} | options))


@pytest.fixture(scope="module")
def program() -> fxonnx.ONNXProgram:
    return export(dynamic_shapes=SIZES)


OPTIONS = [
    ({"kwargs": inputs() | {"scael": 1.0}}, "scale"),
    ({"dynamic_shapes": {"featurs": {0: "batch"}}}, "features"),
    ({"dynamic_shapes": {"options.gian": {0: "batch"}}}, "options.gain"),
    ({"dynamic_shapes": {"input_features": {0: "n"}}, "input_names": ["input_feature"]}, "input_feature"),
    ({"dynamic_shapes": {"options": {"gian": {0: "batch"}}}}, "gain"),
    ({"dynamic_shapes": {"hidden": {"memroy": {0: "batch"}}}}, "memory"),
    ({"dynamic_axes": {"featurs": {0: "batch"}}, "strict_shapes": True}, "features"),
    ({"dynamic_axes": {"anser": {0: "b"}}, "output_names": ["answer"], "strict_shapes": True}, "answer"),
    ({"dynamic_scalars": {"scael"}}, "scale"),
    ({"more_inputs": [((), {"featurs": torch.rand(3, 3)})]}, "features"),
    ({"patterns": {"layernorm": False}}, "layer_norm"),
    ({"target": "onnx-runtime"}, "onnxruntime"),
    ({"state": "output"}, "outputs"),
    ({"metadata": "NAMES"}, "names"),
    ({"verify": "atuo"}, "auto"),
    ({"compat": "torch_script"}, "torchscript"),
    ({"operator_export_type": "ONNX_ATEN_FALBACK"}, "ONNX_ATEN_FALLBACK"),
]


@pytest.mark.parametrize(("options", "meant"), OPTIONS, ids=[" ".join(options) for options, _ in OPTIONS])
def test_names_in_the_options_of_an_export(options: dict[str, Any], meant: str) -> None:
    with pytest.raises(fxonnx.ArgumentError, match=rf"\nhint: did you mean '{meant}'"):
        export(**options)


CALLS: list[tuple[Callable[[fxonnx.ONNXProgram], Any], str]] = [
    (lambda program: program(**(inputs() | {"featurs": torch.rand(2, 3)})), "features"),
    (lambda program: program.verify(sizes=[{"bacth": 3}]), "batch"),
    (lambda program: program.verify(sizes="atuo"), "auto"),  # type: ignore[arg-type]
    (lambda program: program.compute_values(["head.wieght"], list(inputs().values())), "head.weight"),
    (lambda program: program.stateful_session().reset({"step": torch.ones(3)}), "steps"),
    (lambda program: program.save("model.onnx", external_data="safetensor"), "safetensors"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "meant"), CALLS, ids=[meant for _, meant in CALLS])
def test_names_in_calls_of_a_program(
    program: fxonnx.ONNXProgram, call: Callable[[fxonnx.ONNXProgram], Any], meant: str
) -> None:
    with pytest.raises(fxonnx.ArgumentError, match=rf"\nhint: did you mean '{meant}'"):
        call(program)


def test_names_that_are_ignored_with_a_warning(program: fxonnx.ONNXProgram) -> None:
    with pytest.warns(OnnxExporterWarning, match=r"'head.wieght' not found .*\nhint: did you mean 'head.weight'\?"):
        program.apply_weights({"head.wieght": torch.rand(3, 3)})
    with pytest.warns(UserWarning, match="'bacth'; it is ignored\nhint: did you mean 'batch'?") as caught:
        program.rename_axes({"bacth": "rows"})
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="'featurs' is neither .* and is ignored\nhint: did you mean 'features'?"):
        export(dynamic_axes={"featurs": {0: "batch"}})


def test_weights_of_a_model_without_values(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 3))
    program = fxonnx.export(model.eval(), (torch.rand(2, 3),))
    given = {"unrelated": torch.rand(3, 3), "0.bias": torch.rand(3), "0.wieght": torch.rand(3, 3)}
    with pytest.raises(
        fxonnx.ArgumentError, match=r"'0\.wieght' is not a weight of the model, did you mean '0.weight'?"
    ):
        program.save(tmp_path / "model.onnx", weights=given)


def test_names_of_files(program: fxonnx.ONNXProgram, tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").touch()
    with pytest.raises(fxonnx.ArgumentError, match=r"does not exist\nhint: did you mean 'weights.safetensors'\?"):
        program.save(tmp_path / "model.onnx", weights=tmp_path / "weight.safetensors")
    (tmp_path / "model.pt2").touch()
    with pytest.raises(fxonnx.ArgumentError, match=r"does not exist\nhint: did you mean 'model.pt2'\?"):
        load_model(str(tmp_path / "mdel.pt2"))


def test_names_outside_of_an_export() -> None:
    observer = fxonnx.InputObserver()
    with pytest.raises(fxonnx.ArgumentError, match="did you mean 'forward'"), observer(Model(), method_name="foward"):
        pass
    with pytest.raises(fxonnx.ArgumentError, match=r"value_if_missing: 'scael' .*\nhint: did you mean 'scale'"):
        fxonnx.InputObserver({"scael": 1.0})(Model())
    fxonnx.register_custom_op_symbolic("suggested::relu", lambda g, x: x, 9)
    try:
        with pytest.raises(fxonnx.ArgumentError, match="did you mean 'suggested::relu'"):
            fxonnx.unregister_custom_op_symbolic("sugested::relu", 9)
    finally:
        fxonnx.unregister_custom_op_symbolic("suggested::relu", 9)
    with pytest.raises(fxonnx.ArgumentError, match="the module has no such function\nhint: did you mean 'synchronize'"):
        load_model("torch.cuda:synchronise")


@pytest.mark.parametrize(
    ("translation", "message"),
    [
        (lambda op, self: op.Rleu(self), "ONNX has no Rleu at opset 20, did you mean 'Relu'?"),
        (lambda op, self: op.LeakyRelu(self, alpa=0.5), "LeakyRelu has no alpa, did you mean 'alpha'?"),
        (lambda g, self: g.op("Sigmod", self), "ONNX has no Sigmod at opset 20, did you mean 'Sigmoid'?"),
        (lambda op, self: op.Swish(self), "ONNX has no Swish at opset 20\n"),
    ],
    ids=["operator", "attribute", "symbolic", "newer"],
)
def test_names_in_a_translation(translation: Callable[..., Any], message: str) -> None:
    table = {torch.ops.aten.relu.default: translation}
    with pytest.raises(fxonnx.UnsupportedOperatorError, match=message):
        fxonnx.export(nn.ReLU().eval(), (torch.rand(2),), custom_translation_table=table)


def test_a_domain_of_custom_opsets() -> None:
    with torch.library._scoped_library("suggested", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        model = Function(lambda x: torch.ops.suggested.twice(x)).eval()
        message = "declined: custom_opsets has the domain 'sugested', did you mean 'suggested'?"
        with pytest.raises(fxonnx.UnsupportedOperatorError, match=message):
            fxonnx.torch_onnx_export(model, (torch.rand(2),), custom_opsets={"sugested": 1})


def test_names_of_the_package() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import fxonnx; fxonnx.exprot"], capture_output=True, text=True, check=False
    )
    assert done.stderr.rstrip().endswith("module 'fxonnx' has no attribute 'exprot'. Did you mean: 'export'?")
