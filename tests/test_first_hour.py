"""Mistakes of the first hour with fxonnx: each is an error that says what to write, and what it says works."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import fxonnx
from fxonnx import ExportError, QuantizeConfig

from .messages import check_message
from .test_mistakes_by_topic import LINEAR, linear, square, wrong

X = torch.rand(2, 3)
_Row = tuple[Callable[[], Any], type[Exception], str]


class Trained(nn.Module):
    """A module of a training library, without forward."""

    def training_step(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum()


def _argument(make: Callable[[], Any], match: str) -> _Row:
    return make, fxonnx.ArgumentError, match


def _capture(make: Callable[[], Any], match: str) -> _Row:
    return make, fxonnx.CaptureError, match


MISTAKES: dict[str, _Row] = {
    "order": _argument(
        lambda: fxonnx.export(LINEAR, "m.onnx", (X,)), r"f: .*got tuple\nhint: the order is export\(model, args, path\)"
    ),
    "container": _argument(
        lambda: fxonnx.export(nn.ModuleList([LINEAR]), (X,)), "model: ModuleList has no forward, .*\nhint: define it"
    ),
    "training step": _argument(lambda: fxonnx.export(Trained(), (X,)), "model: Trained has no forward, .*\nhint: def"),
    "shape": _argument(
        lambda: fxonnx.export(LINEAR, (1, 3)), r"too many positional arguments\nhint: args has .*torch\.rand\(1, 3\)"
    ),
    "shape as an input": _capture(
        lambda: fxonnx.export(LINEAR, ((1, 3),)), r"must be Tensor, not tuple\nhint: pass tensors: torch\.tensor\("
    ),
    "lists of numbers": _capture(
        lambda: fxonnx.export(LINEAR, ([[1.0, 2.0, 3.0]],)), r"must be Tensor, not list\nhint: pass tensors: torch\.t"
    ),
    "call with a dict": _argument(lambda: linear()({"input": X}), r"got dict\nhint: .*program\(\*\*kwargs\) by name"),
    "call with a list": _argument(
        lambda: linear()([X]), r"got list\nhint: pass the tensors themselves: program\(\*args"
    ),
    "home": (lambda: linear("~/none/m.onnx"), fxonnx.SaveError, r"does not exist\nhint: pass os\.path\.expanduser"),
    "path": (
        lambda: linear(path="m.onnx"),
        TypeError,
        "got the keyword 'path': pass the path as f, the third argument",
    ),
    "inputs": (lambda: linear(inputs=(X,)), TypeError, "got the keyword 'inputs': pass the example inputs as args"),
    "dtype": (lambda: linear(dtype=torch.float16), TypeError, r"got the keyword 'dtype': .*model\.half\(\)"),
    "device": (lambda: linear(device="cuda"), TypeError, "got the keyword 'device': move the model and its inputs"),
    "convert": (lambda: wrong(fxonnx).convert, AttributeError, r"no attribute 'convert'; it is fxonnx\.export"),
    "load": (lambda: wrong(fxonnx).load, AttributeError, r"no attribute 'load'; load the file with onnxruntime"),
    "checker": (
        lambda: onnx.checker.check_model(wrong(linear())),
        AttributeError,
        r"'SerializeToString'; it is program\.model_proto",
    ),
    "export of a program": (lambda: linear().export, AttributeError, r"'export'; it is program\.save\(path\)"),
    "level": _argument(lambda: linear(optimize="O2"), "optimize: expected one of False, True, got 'O2'"),
    "strict": _argument(lambda: linear(strict_shapes="yes"), "strict_shapes: expected one of False, True, got 'yes'"),
    "frozen": _argument(lambda: linear(frozen=True), "frozen: expected a list of names, got True\nhint: write"),
    "scalars": _argument(
        lambda: linear(dynamic_scalars=3), "dynamic_scalars: expected a set of names, got 3\nhint: wri"
    ),
    "report": _argument(
        lambda: linear(diagnostics=fxonnx.Diagnostics(report=wrong("page"))), "report: expected one of False, True, got"
    ),
    "stage": _argument(
        lambda: linear(diagnostics=fxonnx.Diagnostics(on_stage=wrong(True))), "on_stage: .*got True\nhint: write on_"
    ),
    "layers": _argument(
        square(quantize=QuantizeConfig("int8", include=wrong(True))), "include: expected a list of names, got True\nh"
    ),
    "importance": _argument(
        square(quantize=QuantizeConfig("int4", importance=wrong([1]))), "importance: expected a dict .*got a list\nhint"
    ),
    "size": _argument(
        lambda: linear(dynamic_shapes=({0: "n"},)).verify(sizes=wrong(5)),
        "sizes: expected 'auto' or a list .*, got 5\nh",
    ),
    "inputs of a comparison": _argument(
        lambda: linear().verify(args=wrong(3)), r"args: expected the inputs, got an int\nhint: write args=\(x,\)"
    ),
    "keywords of a comparison": _argument(
        lambda: linear().verify(kwargs=wrong([X])), r"kwargs: expected the inputs, got a list\nhint: write kwargs=\{"
    ),
}
FOLLOWED: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "create it first": (
        lambda: linear("none/m.onnx"),
        lambda: (Path("none").mkdir(), linear("none/m.onnx")),
    ),
    "pass os.path.expanduser(path)": (
        lambda: linear("~/none/m.onnx"),
        lambda: linear(os.path.expanduser("~/m.onnx")),
    ),
    "the order is export(model, args, path)": (
        lambda: fxonnx.export(LINEAR, wrong("m.onnx"), wrong((X,))),
        lambda: fxonnx.export(LINEAR, (X,), "m.onnx"),
    ),
    "write on_stage=print": (
        lambda: linear(diagnostics=fxonnx.Diagnostics(on_stage=wrong(True))),
        lambda: linear(diagnostics=fxonnx.Diagnostics(on_stage=print)),
    ),
    "pass the tensors themselves: program(*args), or program(**kwargs) by name": (
        lambda: linear()({"input": X}),
        lambda: linear()(**{"input": X}),
    ),
    "write {}={}": (lambda: linear().verify(args=wrong(3)), lambda: linear().verify(args=(X,))),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make, kind, match = MISTAKES[name]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=match) as caught:
        make()
    if isinstance(caught.value, ExportError):
        check_message(caught.value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hint", FOLLOWED)
def test_a_followed_hint_works(hint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refused, followed = FOLLOWED[hint]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ExportError) as caught:
        refused()
    assert re.fullmatch(".*".join(map(re.escape, hint.split("{}"))), caught.value.hint or ""), caught.value
    followed()
