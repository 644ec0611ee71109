"""Weights combined with literals: the derived initializer is computed from both when the file is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import nn

import fxonnx


class _Weighted(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.w = nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.w, x)


def _assigned(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = x + w
    y[:, 1:3] = 0.0
    return y


FUNCTIONS = {
    "weight_times_scalar_tensor": lambda w, x: w * torch.tensor(2.0) - x,
    "weight_plus_vector_literal": lambda w, x: w + torch.tensor([1.0, 2, 3, 4, 5]) - x,
    "literal_assigned_to_slice": _assigned,
    "literal_read_twice": lambda w, x: w * torch.tensor(2.0) - x * torch.tensor(2.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_weight_combined_with_a_literal_is_saved_and_loaded(name: str, tmp_path: Path) -> None:
    model, x = _Weighted(FUNCTIONS[name]).eval(), torch.randn(2, 5)
    program = fxonnx.export(model, (x,))
    program.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    torch.testing.assert_close(torch.as_tensor(session.run(None, {"x": x.numpy()})[0]), model(x))
    torch.testing.assert_close(program(x)[0], model(x))
