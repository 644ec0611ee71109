"""Results in a terminal and in a notebook: a text that one can read, and a table."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import fxonnx

X = torch.rand(4, 3)


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 3:
            return x + 1
        return x - 1


class Wrong(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x  # 3 columns and 4 rows


def program(function: Callable[[torch.Tensor], torch.Tensor] = torch.neg, **options: Any) -> fxonnx.ONNXProgram:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    return fxonnx.export(Model().eval(), (X,), **options)


def constraints() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return fxonnx.export(Branch().eval(), (X,), dynamic_shapes={"x": {0: "n"}}).record.constraints


RESULTS: dict[str, tuple[Callable[[], Any], str, list[str]]] = {
    # The result, the first line of its text, and cells of its table.
    "rows": (lambda: program().verify(), "  output  status", ["output", "neg", "ok", "float32", "[4, 3]"]),
    "comparison": (lambda: program().compare(), "All outputs agree:", ["neg", "ok"]),
    "difference": (lambda: program().compare(model=torch.exp), "Outputs differ:", ["mismatch"]),
    "analysis": (lambda: fxonnx.analyze(nn.Linear(3, 2).eval(), (X,)), "The model exports.", ["opset", "Gemm 1"]),
    "failed analysis": (
        lambda: fxonnx.analyze(Wrong().eval(), (X,)),
        "The model does not export.",
        ["error", "capture", "message", "line"],
    ),
    "diff": (lambda: fxonnx.diff(program(), program(torch.exp)), "Outputs", ["(model): Neg", "1"]),
    "equal models": (lambda: fxonnx.diff(program(), program()), "The models are the same.", []),
    "constraints": (constraints, "n >= 4 (", ["constraint", "n >= 4"]),
    "no constraints": (lambda: program().record.constraints, "none", ["constraint"]),
    "findings": (
        lambda: fxonnx.check(program(torch.special.i0).model, "tensorrt"),
        "The target runs the whole model.",
        ["severity"],
    ),
    "slow nodes": (
        lambda: fxonnx.check(program(lambda x: x.long() % 2).model, "onnxruntime-web-webgpu"),
        "slow: ",
        ["slow", "problem"],
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_texts_and_tables(name: str) -> None:
    make, first, cells = RESULTS[name]
    result = make()
    assert repr(result) == str(result)
    assert str(result).startswith(first)
    root = ElementTree.fromstring(f"<div>{result._repr_html_()}</div>")
    found = [text for element in root.iter() if element.tag in ("th", "td") for text in element.itertext()]
    assert [cell for cell in cells if cell not in found] == []


def test_lists_stay_lists() -> None:
    rows = program().verify()
    assert isinstance(rows, list)
    assert rows == [rows[0]]
    assert pickle.loads(pickle.dumps(rows)) == rows
    assert isinstance(program().record.constraints, tuple)
    assert program().record.constraints == ()


def test_names_are_escaped() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    html = fxonnx.export(Model().eval(), (X,), output_names=["<b>y</b>"]).verify()._repr_html_()  # type: ignore[attr-defined]
    assert "<b>" not in html
    assert "&lt;b&gt;y&lt;/b&gt;" in html
