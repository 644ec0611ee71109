"""``fxonnx.analyze``: every cause that prevents an export, in one call."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import fxonnx
from fxonnx._cli.commands import app


@dataclass(frozen=True)
class Case:
    """A function that does not export, and its issues: kind and a part of the line of code or of the message."""

    function: Callable[..., Any]
    expected: tuple[tuple[str, str], ...]
    args: tuple[Any, ...] = (torch.rand(3, 4),)
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.function.__name__


class Model(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


SCALES = {True: 1.0, False: 2.0}


def lookup_in_a_dict(self: Model, x: Tensor) -> Tensor:
    return x * SCALES[bool(x.sum() > 0)]


def two_guards(self: Model, x: Tensor) -> Tensor:
    scale = SCALES[bool(x.sum() > 0)]
    return x * scale + SCALES[bool(x.mean() > 2)]


def numbers_in_python(self: Model, x: Tensor) -> Tensor:
    return x * SCALES[int(x[0, 0]) >= 0]


def question_and_operator(self: Model, x: Tensor) -> Tensor:
    x = x * SCALES[bool(x.sum() > 0)]
    return torch.linalg.eigvals(x[:, :3]).real


def two_operators(self: Model, x: Tensor) -> Tensor:
    first = torch.linalg.eigvals(x[:, :3]).real
    return first + torch.ops.aten._standard_gamma_grad.default(first, first)


def operator_of_a_newer_opset(self: Model, x: Tensor) -> Tensor:
    return torch.nn.functional.grid_sample(x.reshape(1, 1, 3, 4), x.reshape(1, 3, 2, 2))


def operators_and_mutation(self: Model, x: Tensor) -> Tensor:
    self.total.add_(x[0])
    return torch.linalg.eigvals(x[:, :3]).real


def mutation(self: Model, x: Tensor) -> Tensor:
    self.total.add_(x[0])
    return x + self.total


def loop_over_rows(self: Model, x: Tensor) -> Tensor:
    rows = {}
    for index in range(x.shape[0]):
        rows[index] = x[index] * index
    return torch.stack(list(rows.values()))


def fixed_size_and_question(self: Model, x: Tensor) -> Tensor:
    x = x * SCALES[bool(x.sum() > 0)]
    return torch.cat([x, torch.zeros(1, 3)], 1) if x.shape[0] == 1 else x.view(3, 4) * 2


def python_error(self: Model, x: Tensor) -> Tensor:
    return x.no_such_method()


def unknown_input(self: Model, x: Any) -> Tensor:
    return x.value * 2


def tensor_as_set_member(self: Model, x: Tensor) -> Tensor:
    return x * len({int(value) for value in x[0]})


def wrong_names(self: Model, x: Tensor) -> Tensor:
    return x * 2


def wrong_shapes(self: Model, x: Tensor) -> Tensor:
    return x @ x


class Thing:
    value = torch.ones(2)


CASES = (
    Case(lookup_in_a_dict, (("data-dependent", "bool(x.sum() > 0)"),)),
    Case(two_guards, (("data-dependent", "bool(x.sum() > 0)"), ("data-dependent", "bool(x.mean() > 2)"))),
    Case(numbers_in_python, (("data-dependent", "int(x[0, 0])"),)),
    Case(question_and_operator, (("data-dependent", "bool(x.sum() > 0)"), ("operator", "aten.linalg_eigvals"))),
    Case(two_operators, (("operator", "aten.linalg_eigvals"), ("operator", "aten._standard_gamma_grad"))),
    Case(operator_of_a_newer_opset, (("operator", "aten.index.Tensor"),), options={"opset_version": 9}),
    Case(
        operators_and_mutation,
        (("operator", "aten.linalg_eigvals"), ("state", "total")),
        options={"state": "error"},
    ),
    Case(mutation, (("state", "total"),), options={"state": "error"}),
    Case(loop_over_rows, (("sizes", "x.shape[0]"),), options={"dynamic_shapes": (({0: "n"},),), "strict_shapes": True}),
    Case(
        fixed_size_and_question,
        (("sizes", ""), ("data-dependent", "bool(x.sum() > 0)")),
        options={"dynamic_shapes": (({0: "n"},),), "strict_shapes": True},
    ),
    Case(python_error, (("capture", "no_such_method"),)),
    Case(unknown_input, (("argument", "Thing"),), (Thing(),)),
    Case(tensor_as_set_member, (("data-dependent", "int(value)"),)),
    Case(wrong_names, (("argument", "input_names"),), options={"input_names": ["a", "b", "c", "d"]}),
    Case(wrong_shapes, (("capture", "x @ x"),)),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_all_causes_are_listed(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = Model(case.function).eval()
    with pytest.raises(torch.onnx.errors.OnnxExporterError):
        fxonnx.export(model, case.args, **case.options)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    analysis = fxonnx.analyze(model, case.args, **case.options)
    assert not analysis.exports
    errors = [issue for issue in analysis.issues if issue.is_error]
    for kind, text in case.expected:
        assert any(issue.kind == kind and text in f"{issue.line} {issue.message}" for issue in errors), str(analysis)
    assert len(errors) == len(case.expected), str(analysis)
    assert all(issue.remedy or issue.kind in ("capture", "argument") for issue in errors), str(analysis)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not list(tmp_path.iterdir())


def test_a_model_that_exports() -> None:
    class Fine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 8)

        def forward(self, x: Tensor, scale: float) -> Tensor:
            return self.layer(x).relu() * scale if x.shape[0] > 1 else x

    analysis = fxonnx.analyze(Fine().eval(), (torch.rand(3, 4), 2.0), dynamic_shapes=({0: "n"}, None))
    assert analysis.exports
    guard = {"Expand": 1, "GreaterOrEqual": 1, "Reshape": 1, "Shape": 1, "Tile": 1, "Where": 1}
    assert analysis.operators == {"Gemm": 1, "Mul": 1, "Relu": 1, **guard}
    assert analysis.nodes == 9
    assert len(analysis.guards) == 1
    assert f"guard {analysis.guards[0]}" in str(analysis)
    assert analysis.weight_bytes == 164 + 2 * 8
    assert analysis.inputs == ("x: FLOAT[n, 4]",)
    assert analysis.frozen == {"scale": 2.0}
    assert any("n >= 2" in text for text in analysis.constraints)
    assert any(issue.kind == "warning" and not issue.is_error for issue in analysis.issues)
    assert str(analysis).startswith("The model exports.")


def test_the_example_is_followed_on_request() -> None:
    analysis = fxonnx.analyze(Model(lookup_in_a_dict).eval(), (torch.rand(3, 4),), data_dependent="example")
    assert analysis.exports
    assert [issue.kind for issue in analysis.issues] == ["warning"]


def test_unknown_options() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'opset'"):
        fxonnx.analyze(nn.ReLU(), (torch.rand(2),), opset=18)


def model_for_the_command_line() -> Any:
    return Model(two_guards).eval(), (torch.rand(3, 4),)


def test_command_line() -> None:
    runner = CliRunner()
    source = f"{__name__}:model_for_the_command_line"
    result = runner.invoke(app, ["analyze", source])
    assert result.exit_code == 1, result.output
    assert "error: data-dependent" in result.stdout
    result = runner.invoke(app, ["analyze", source, "--json"])
    assert result.exit_code == 1
    assert len(json.loads(result.stdout)["issues"]) == 2
    result = runner.invoke(app, ["analyze", "no.such:function"])
    assert result.exit_code == 2
    assert "Example: fxonnx analyze" in runner.invoke(app, ["analyze", "--help"]).stdout
