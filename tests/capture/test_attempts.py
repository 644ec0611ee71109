"""The attempts of a capture: the calls of torch.export, and the changes between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

import fxonnx

from ..functions import Function


def loops(x: Tensor, factors: Tensor) -> Tensor:
    for factor in factors:
        if factor > 1:
            x = x * factor
    return x


def constant(x: Tensor) -> Tensor:
    return x * 2 if torch.ones(2).sum() > 1 else x


def branches(x: Tensor) -> Tensor:
    return x * 2 if bool((x > 0).all()) else x.new_zeros(int(x.sum().abs()))


def product(x: Tensor) -> Tensor:
    return x @ x.new_ones(3, 2)


def derivative(x: Tensor) -> Tensor:
    return vmap(grad(lambda given: given.pow(2).sum()))(x)


X = torch.ones(4, 3)
VALUES = "values that depend on no input are known, and checks that only raise are assumed to pass"
Row = tuple[Callable[..., Any], tuple[Tensor, ...], dict[str, Any], list[str]]
CASES: dict[str, Row] = {
    "plain": (torch.relu, (X,), {}, [""]),
    "constant": (constant, (X,), {}, ["", VALUES]),
    "rewritten": (
        *(loops, (X, torch.tensor([2.0, 3.0])), {"dynamic_shapes": (None, {0: "n"})}),
        ["", VALUES, "control flow of test_attempts.py:19 in loops is rewritten"],
    ),
    "static": (product, (X,), {"dynamic_shapes": ({0: "n", 1: "m"},)}, ["", "static dims: x axis 1"]),
    "transform": (derivative, (X,), {}, ["", "torch.func transforms are traced as plain operators"]),
    "example": (
        *(branches, (X,), {"data_dependent": "example"}),
        [
            "",
            VALUES,
            "control flow of test_attempts.py:30 in branches is rewritten",
            "branches on data follow the example",
        ],
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_changes_of_each_attempt(name: str) -> None:
    function, args, options, changes = CASES[name]
    program = fxonnx.export(Function(function).eval(), args, **options)
    attempts = program.record.capture.attempts
    assert [one.change.replace(f"{Path(__file__).parent}/", "") for one in attempts] == changes
    assert [bool(one.failure) for one in attempts] == [True] * (len(changes) - 1) + [False]
    assert all(one.seconds > 0 for one in attempts)
    torch.testing.assert_close(program(*args)[0], function(*args))


def test_reports_list_them(tmp_path: Path) -> None:
    fxonnx.export(Function(constant).eval(), (X,), diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path))
    (page,), (text,) = tmp_path.glob("*.html"), tmp_path.glob("*.md")
    assert "The capture took 2 calls of torch.export" in page.read_text()
    assert f"\n2. {VALUES}: captured (" in text.read_text()


def test_reports_on_failures_list_them(tmp_path: Path) -> None:
    with pytest.raises(fxonnx.CaptureError, match="asks for the value of a tensor"):
        fxonnx.export(
            Function(branches).eval(), (X,), diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path)
        )
    (page,) = tmp_path.glob("*.html")
    assert "The capture took 3 calls of torch.export" in page.read_text()
