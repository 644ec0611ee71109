"""``torch.tensor`` of a list of numbers that are tensors, such as the elements of an input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, tensor

import fxonnx

from ..functions import Function


def _rotation(x: Tensor) -> Tensor:
    cosine, sine = x[0, 0].cos(), x[0, 0].sin()
    return torch.tensor([[cosine, -sine, 0], [sine, cosine, 1]]) @ torch.arange(3.0)


FUNCTIONS: tuple[Callable[[Tensor], Any], ...] = (
    lambda x: torch.tensor([x[0, 0], x[0, 1]]),
    _rotation,
    lambda x: torch.as_tensor([[x[0, 0], x.shape[0]]], dtype=torch.float64),
    lambda x: torch.tensor([x.argmax(), 3]),
    lambda x: torch.tensor((x[0, 0].half(), 1.0)),
    lambda x: torch.tensor([x[0, 0].half(), 1]),
    lambda x: torch.tensor([True, x[0, 0] > 0]),
    lambda x: tensor(x.shape[0], device=x.device) * tensor([x[0, 0], 2.0]),  # imported by its name
)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_other_sizes_and_values(function: Callable[[Tensor], Any]) -> None:
    program = fxonnx.export(Function(function).eval(), (torch.randn(2, 4),), dynamic_shapes=({0: "n"},))
    for x in (torch.randn(2, 4), torch.randn(1, 4), -torch.rand(5, 4)):
        torch.testing.assert_close(program(x)[0], function(x))


def test_numbers_that_eager_torch_refuses_too() -> None:
    with pytest.raises(fxonnx.CaptureError, match="the model itself fails on the example inputs: TypeError"):
        fxonnx.export(Function(lambda x: torch.tensor([x[0, 0], 3], dtype=torch.int64)).eval(), (torch.ones(2, 4),))
