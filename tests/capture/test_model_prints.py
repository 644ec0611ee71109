"""Prints of a model during an export."""

# ruff: noqa: T201

from __future__ import annotations

import builtins
import io
import sys
import threading
from typing import Any

import pytest
import torch

import fxonnx
from tests.functions import Function


def _printing(x: torch.Tensor) -> torch.Tensor:
    print("x is", x)
    print("warning", file=sys.stderr)
    if x.sum() > 0:
        print("positive")
    return x + 1


def _printing_in_strict_mode(x: torch.Tensor) -> torch.Tensor:
    print("x is", x)
    print("positive", file=sys.stdout)
    print("warning", file=sys.stderr)
    return torch.from_numpy(x.numpy() + 1)


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("forward", [_printing, _printing_in_strict_mode])
def test_an_export_prints_nothing_of_the_model(forward: Any, verbose: bool, capsys: pytest.CaptureFixture[str]) -> None:
    model, plain = Function(forward), builtins.print
    diagnostics = fxonnx.Diagnostics(verbose=verbose)
    program = fxonnx.export(model, (torch.ones(2),), dynamic_shapes=({0: "n"},), diagnostics=diagnostics)
    out, err = capsys.readouterr()
    assert ("positive" in out, "warning" in err) == (verbose, verbose)
    assert builtins.print is plain
    torch.testing.assert_close(program(-torch.ones(3))[0], torch.zeros(3))
    program.verify()
    assert "x is tensor([1., 1.])" in capsys.readouterr().out


def test_other_prints_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    file = io.StringIO()

    def forward(x: torch.Tensor) -> torch.Tensor:
        print("for the file", file=file)
        other = threading.Thread(target=print, args=("of another thread",))
        other.start()
        other.join()
        return x + 1

    fxonnx.export(Function(forward), (torch.ones(2),))
    assert "for the file" in file.getvalue()
    assert "of another thread" in capsys.readouterr().out


def test_prints_after_a_failed_export(capsys: pytest.CaptureFixture[str]) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        print("before the error")
        raise ValueError("no")

    with pytest.raises(fxonnx.CaptureError, match="ValueError\n  no"):
        fxonnx.export(Function(forward), (torch.ones(2),))
    print("after")
    assert capsys.readouterr().out == "after\n"
