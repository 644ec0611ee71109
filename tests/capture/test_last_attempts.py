"""Plain torch.export, non-strict and then strict, before an error is raised: exported only if the proof confirms it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import nn

import fxonnx

_NAMES: dict[str, Any] = {"torch": torch}
exec(
    "def checked(x, a):\n"
    "    if not torch.compiler.is_dynamo_compiling() and a > 2:\n"
    "        x = x + 0\n"
    "    return x * a",
    _NAMES,
)


class Checked(nn.Module):
    """A branch in a function without source, which TorchDynamo does not take."""

    def forward(self, x: torch.Tensor, a: torch.Tensor) -> Any:
        return _NAMES["checked"](x, a)


class Refused(nn.Module):
    """A function of fxonnx refuses what plain torch.export captures.

    Args:
        is_wrong: Whether the captured program differs from the model.
    """

    def __init__(self, *, is_wrong: bool) -> None:
        super().__init__()
        self.is_wrong = is_wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            x.numpy()
        except (RuntimeError, TypeError, ValueError):
            return x * 2 + self.is_wrong
        return x * 2


def last_change(program: fxonnx.ONNXProgram) -> str:
    return program.record.capture.attempts[-1].change


def test_plain_torch_export_is_the_last_attempt(tmp_path: Path) -> None:
    model, a = Checked().eval(), torch.tensor([3])
    program = fxonnx.export(model, (torch.randn(2, 3), a), tmp_path / "m.onnx", dynamic_shapes=({0: "n"}, {}))
    assert any(one.kind is fxonnx.DepartureKind.LAST for one in program.record.capture.departures)
    assert last_change(program) == "plain torch.export, strict mode"
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for size, factor in ((2, 3), (5, 1), (3, 7)):
        x, a = torch.randn(size, 3), torch.tensor([factor])
        torch.testing.assert_close(
            torch.from_numpy(session.run(None, {"x": x.numpy(), "a": a.numpy()})[0]), model(x, a)
        )


def exported_or_error(model: nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return fxonnx.export(model.eval(), (torch.randn(2, 3),), dynamic_shapes=({0: "n"},))
        except fxonnx.CaptureError as error:
            return error


def test_a_program_that_the_proof_confirms_is_exported() -> None:
    program = exported_or_error(Refused(is_wrong=False))
    assert isinstance(program, fxonnx.ONNXProgram)
    for size in (2, 4):
        x = torch.randn(size, 3)
        torch.testing.assert_close(program(x)[0], x * 2)


def test_a_program_that_differs_is_the_error_of_the_other_attempts() -> None:
    error = exported_or_error(Refused(is_wrong=True))
    assert isinstance(error, fxonnx.CaptureError)
    assert "the model handles an error" in str(error)


def test_a_program_that_cannot_be_proved_is_the_error_of_the_other_attempts() -> None:
    model = Refused(is_wrong=False).to("meta")
    model.weight = nn.Parameter(torch.empty(3, device="meta"))
    with pytest.raises(fxonnx.CaptureError, match="the model handles an error"):
        fxonnx.export(model.eval(), (torch.randn(2, 3, device="meta"),), dynamic_shapes=({0: "n"},))


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(7, 2)


def test_a_model_that_fails_itself_is_not_tried_again() -> None:
    attempts: list[str] = []
    with pytest.raises(fxonnx.CaptureError, match="the model itself fails on the example"):
        fxonnx.export(
            Failing().eval(),
            (torch.randn(2, 3),),
            dynamic_shapes=({0: "n"},),
            diagnostics=fxonnx.Diagnostics(on_stage=lambda *stage: attempts.append(str(stage))),
        )
    assert not any("plain" in one for one in attempts)
