"""Hostile files: nothing in them is executed, and each is one clear error."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from typer.testing import CliRunner

from fxonnx import ExportError
from fxonnx._archives.expressions import check_size
from fxonnx._cli.commands import app

from .hostile_files import CODE, HOSTILE_MODULE, ROWS, Call, Sized

SOURCE = """
import torch

def make():
    return torch.nn.Sequential(torch.nn.Linear(64, 64)), (torch.ones(2, 64),)

def relu():
    return torch.nn.ReLU(), (torch.ones(2, 4),)
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "ok.pt2"
    rows = 2 * torch.export.Dim("half", min=2, max=50)
    shapes = {"x": {0: rows}, "flag": None, "d": {"q": None}}
    args, kwargs = (torch.rand(6, 4), "abc"), {"d": {"q": torch.ones(4)}}
    torch.export.save(torch.export.export(Sized(), args, kwargs, dynamic_shapes=shapes), path)
    return path


@pytest.fixture
def folder(tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    monkeypatch.syspath_prepend(inside)
    shutil.copy(archive, inside / "ok.pt2")
    Path("hostile_test_source.py").write_text(SOURCE)
    Path(f"{HOSTILE_MODULE}.py").write_text(f"{CODE}\nclass X: pass\n")
    return inside


@pytest.mark.parametrize("name", ROWS)
def test_hostile_files(name: str, folder: Path) -> None:
    write, expected = ROWS[name]
    errors = [_error_of(call) for call in write()]
    assert not Path("marker").exists()
    assert HOSTILE_MODULE not in sys.modules
    if expected:
        assert re.search(expected, "\n".join(errors), re.DOTALL)
    else:
        assert not any(errors)


def _error_of(call: Call) -> str:
    """The error of a call, one of fxonnx's own, or ""."""
    if callable(call):
        try:
            call()
        except ExportError as error:
            return str(error)
        return ""
    result = CliRunner().invoke(app, list(call))
    assert result.exit_code in (0, 1, 2)
    assert "Traceback" not in result.output
    assert "--debug shows the traceback" not in result.output, result.output
    return result.output[result.output.find("error[") :] if "error[" in result.output else ""


class Sizes(torch.nn.Module):
    """Its archive has derived dims, guards, data-dependent sizes, branches, and names of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleDict({"conv-1 (first)": torch.nn.Linear(4, 4)})
        self.register_buffer("steps", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor, counts: torch.Tensor, *, mode: str, more: Any) -> Any:
        n = x.shape[0]
        torch._check(n % 2 == 0)
        count = counts.sum().item()
        torch._check(count >= 1)
        torch._check(count <= 7)
        with torch.no_grad():
            half = x[: n // 2].repeat(2, 1) + self.layers["conv-1 (first)"](x) + self.steps
        larger = torch.nn.functional.interpolate(x[None, None], scale_factor=1.5)
        with torch.autocast("cpu", torch.bfloat16, enabled=False):
            product = x @ x.T
        chosen = torch.cond(x.sum() > 0, torch.sin, torch.cos, (half,))
        rows = max(n, 3) + min(n, 100) + int(n / 3) + (n**2) % 5
        return {
            "a": chosen if mode == "abc" else half,
            "b b": (torch.ones(count), larger, product),
            "c": torch.ones(rows) * sum(more["odd key: x/y"].values()),
        }


def test_ordinary_archives_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = (torch.rand(6, 4), torch.tensor([1, 2]))
    kwargs = {"mode": "abc", "more": {"odd key: x/y": {"m": torch.ones(1), "n": torch.ones(1)}}}
    dims = {"x": {0: 2 * torch.export.Dim("half", min=2, max=50)}, "counts": {0: torch.export.Dim("counts")}}
    shapes = {**dims, "mode": None, "more": {"odd key: x/y": {"m": None, "n": None}}}
    program = torch.export.export(Sizes().eval(), args, kwargs, dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "ordinary.pt2")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["export", "ordinary.pt2", "-o", "m.onnx", "--verify"])
    assert result.exit_code == 0, result.output
    assert "verified against the exported program" in result.output


def test_all_functions_that_torch_writes_are_known() -> None:
    torch_functions = vars(torch.utils._sympy.functions)
    written = set(torch_functions["__all__"]) | {"Max", "Min"}
    for name in written:
        check_size(f"{name}(Symbol('s0', integer=True), Integer(2))")


@pytest.mark.parametrize("depth", [1, 40])
def test_expressions_of_sizes_are_those_of_torch(depth: int) -> None:
    size = sympy.Symbol("s0", integer=True, positive=True)
    for _ in range(depth):
        size = torch.utils._sympy.functions.FloorDiv(size * 3 + sympy.Rational(1, 2) * size, 2) + sympy.Float(0.5)
    check_size(str(size))
    check_size(sympy.srepr(size))
    check_size(sympy.srepr(sympy.And(size > 3, sympy.Eq(size, 5) | sympy.Ne(size, 7))))
    check_size(sympy.srepr(sympy.Piecewise((size, size > 3), (2**size, True))))
