"""Command line: ``--json`` prints one object with the documented keys, and nothing else, on stdout."""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

import fxonnx
from fxonnx._cli.commands import app
from fxonnx._cli.messages import print_json

PAGE = (Path(__file__).parent.parent / "docs/reference/command-line.md").read_text()
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]

SOURCE = """
import torch

print("imported")

class Loud(torch.nn.Linear):
    def forward(self, x):
        print("called")
        return super().forward(x)

def linear():
    print("made")
    torch.manual_seed(0)
    return Loud(3, 2).eval(), (torch.ones(2, 3),), None, ({0: "batch"},)

def other():
    torch.manual_seed(1)
    return torch.nn.Linear(3, 2).eval(), (torch.ones(2, 3),)

class Branching(torch.nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else bool(x.max() > 2) and x

def branching():
    return Branching().eval(), (torch.ones(2),)

def wrong():
    return torch.nn.Linear(3, 2).eval(), (torch.ones(2, 3),), None, ({0: 1.5},)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    name = f"json_models_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture
def module(folder: Path) -> str:
    """Name of a module with functions that make models; ``m.onnx`` and ``n.onnx`` are exported ones."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).eval()
    fxonnx.export(model, (torch.ones(2, 3),), "m.onnx", dynamic_shapes=({0: "batch"},))
    fxonnx.export(torch.nn.Linear(3, 2).eval(), (torch.ones(2, 3),), "n.onnx")
    return next(path.stem for path in folder.glob("json_models_*.py"))


def documented() -> dict[str, list[str]]:
    """Command to keys, from the table of the page."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for command, key in re.findall(r"^\| `([\w-]+)` \| `(\w+)` \|", PAGE, re.MULTILINE):
        found[command].append(key)
    return dict(found)


def answer(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and object of a command, which has the same exit code without ``--json``."""
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert "Traceback" not in done.stderr
    found = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert isinstance(found, dict)
    plain = CliRunner().invoke(app, list(arguments))
    assert plain.exit_code == done.exit_code
    return done.exit_code, found


# Command line, exit code, and some of the values.
ANSWERS: list[tuple[str, int, dict[str, Any]]] = [
    (
        "export MODULE:linear -o new.onnx --verify",
        0,
        {
            "output": "new.onnx",
            "inputs": ["x: FLOAT[batch, 3]"],
            "outputs": ["linear: FLOAT[batch, 2]"],
            "nodes": 1,
            "opset": 20,
            "verified_against": "model",
        },
    ),
    ("export MODULE:other -o new.onnx", 0, {"verified_against": None, "constraints": [], "functions": 0}),
    ("check m.onnx --target tensorrt", 0, {"model": "m.onnx", "target": "tensorrt", "findings": [], "nodes": 1}),
    ("verify m.onnx MODULE:linear", 0, {"equal": True, "error": None, "model": "m.onnx", "proof": None}),
    ("verify m.onnx MODULE:other", 1, {"equal": False}),
    ("analyze MODULE:linear", 0, {"exports": True, "issues": [], "operators": {"Gemm": 1}, "weight_bytes": 32}),
    ("analyze MODULE:branching", 1, {"exports": False}),
    ("analyze MODULE:linear --target tensort", 2, {"exports": False, "opset": None}),
    ("diff m.onnx m.onnx", 0, {"same": True, "changes": []}),
    ("diff m.onnx n.onnx", 1, {"same": False}),
    ("report m.onnx", 0, {"output": "m.html"}),
]


@pytest.mark.parametrize(("arguments", "exit_code", "values"), ANSWERS, ids=[row[0] for row in ANSWERS])
def test_answers(module: str, arguments: str, exit_code: int, values: dict[str, Any]) -> None:
    words = arguments.replace("MODULE", module).split()
    code, found = answer(*words)
    assert code == exit_code
    assert {key: found[key] for key in values} == values
    assert list(found) == documented()[words[0]]


def test_details_of_answers(module: str, folder: Path) -> None:
    _, found = answer("verify", "m.onnx", f"{module}:other")
    (comparison,) = found["comparisons"]
    assert comparison["inputs"] == "the example"
    assert [row["status"] for row in comparison["outputs"]] == ["mismatch"]
    assert found["error"]["code"] == "FX008"
    fxonnx.export(torch.nn.Softplus(), (torch.ones(2, dtype=torch.float64),), "double.onnx")
    code, found = answer("check", "double.onnx", "--target", "onnxruntime-web-webgpu")
    assert code == 1
    assert {"severity", "op_type", "node", "problem", "remedy", "module", "location"} == set(found["findings"][0])
    _, found = answer("diff", "m.onnx", "n.onnx")
    assert {"kind", "name", "first", "second"} == set(found["changes"][0])


ERRORS = [
    ("export MODULE:nothing -o new.onnx", 2, "FX001", "the module has no such function"),
    ("export MODULE:branching -o new.onnx --numerics fast", 2, "FX001", "numerics: expected one of"),
    ("export MODULE:other -o missing/new.onnx", 1, "FX006", "directory missing does not exist"),
    ("check missing.onnx", 2, "FX001", "model: file missing.onnx does not exist"),
    ("verify missing.onnx MODULE:linear", 2, "FX001", "model: file missing.onnx does not exist"),
    ("analyze missing.pt2", 2, "FX001", "SOURCE: file missing.pt2 does not exist"),
    ("diff m.onnx missing.onnx", 2, "FX001", "model: file missing.onnx does not exist"),
    ("report m.onnx -o missing/page.html", 1, "FX006", "the report cannot be written to missing"),
    ("hf missing/model -o out --dtype q3", 2, "FX001", "dtype: expected names of fp32"),
    ("genai ./missing -o out", 2, "FX001", "model: directory missing does not exist"),
    ("demo -o missing/m.onnx", 1, "FX006", "directory missing does not exist"),
]


@pytest.mark.parametrize(("arguments", "exit_code", "code", "message"), ERRORS, ids=[row[0] for row in ERRORS])
def test_errors(module: str, arguments: str, exit_code: int, code: str, message: str) -> None:
    found_code, found = answer(*arguments.replace("MODULE", module).split())
    assert found_code == exit_code
    assert list(found) == ["error"]
    assert list(found["error"]) == ["code", "message", "hint", "page"]
    assert found["error"]["code"] == code
    assert found["error"]["page"] == f"docs/errors/{code}.md"
    assert message in found["error"]["message"]


def test_unexpected_errors_have_no_code(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def surprising(*_args: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("fxonnx.diagnostics.diff.load_model", surprising)
    assert answer("diff", "m.onnx", "n.onnx") == (
        2,
        {"error": {"code": None, "message": "KeyError: 'surprise'", "hint": None, "page": None}},
    )


def test_output_of_the_model_is_on_stderr(module: str) -> None:
    done = CliRunner().invoke(app, ["verify", "m.onnx", f"{module}:linear", "--json"])
    assert json.loads(done.stdout)["equal"]
    assert {"imported", "made", "called"} <= set(done.stderr.split())
    assert "made" in CliRunner().invoke(app, ["verify", "m.onnx", f"{module}:linear"]).stdout


def test_version() -> None:
    assert answer("--version") == (0, {"fxonnx": fxonnx.__version__})
    _, found = answer("--version", "--verbose")
    assert list(found) == documented()["--version"]
    assert found["libraries"]["torch"] == torch.__version__


class Small(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fxonnx._cli.demo.AlexNet", Small)
    done = CliRunner().invoke(app, ["demo", "-o", str(tmp_path / "m.onnx"), "--json"])
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert list(found) == documented()["demo"]
    assert set(found["max_error"]) == {"3", "10"}


def test_every_command_prints_json_and_documents_its_keys() -> None:
    for name, command in COMMANDS.items():
        assert "--json" in {option for parameter in command.params for option in parameter.opts}, name
    assert set(documented()) == {*COMMANDS, "--version"}


def test_numbers_that_json_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"numbers": (1.5, float("inf"), [float("nan")]), "path": Path("a")})
    assert json.loads(capsys.readouterr().out) == {"numbers": [1.5, None, [None]], "path": "a"}
