"""Writes through ``tensor.data`` in forward are captured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fxonnx

from ..functions import Function


def padded(x: Tensor) -> Tensor:
    joint = x.new_zeros(x.shape[0], 5)
    joint.data[:, 2:].copy_(x)
    return joint + 1


def added(x: Tensor) -> Tensor:
    y = x * 2
    row = y[0]
    y.data.add_(1)
    return y + row


def assigned(x: Tensor) -> Tensor:
    y = x * 2
    y.data = y * 3
    return y + y.data.sum()


@pytest.mark.parametrize("function", [padded, added, assigned])
def test_a_write_through_data(function: Callable[[Tensor], Tensor]) -> None:
    program = fxonnx.export(Function(function).eval(), (torch.rand(2, 3),), dynamic_shapes=({0: "n"},))
    for size in (2, 1, 5):
        x = torch.rand(size, 3)
        torch.testing.assert_close(program(x)[0], function(x))


def test_assigning_a_different_shape_is_rejected() -> None:
    def shortened(x: Tensor) -> Tensor:
        y = x * 2
        y.data = y[:1]
        return y

    with pytest.raises(fxonnx.CaptureError, match=r"assigns a tensor of a different shape or dtype to \.data"):
        fxonnx.export(Function(shortened).eval(), (torch.rand(2, 3),))
