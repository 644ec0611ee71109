"""Writes to a part of a tensor, with examples whose dynamic dims have size 1: the dims stay dynamic."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

import fxonnx

from ..functions import Function

Write = Callable[[Tensor, Tensor], object]

WRITES: Mapping[str, Write] = {
    "assignment": lambda part, x: part.copy_(x),
    "of another layout": lambda part, x: part.transpose(1, 2).copy_(x.transpose(1, 2)),
    "of one channel": lambda part, x: part.copy_(x[:, :1]),
    "of the last step": lambda part, x: part[:, :, -1].copy_(x[:, :, 0]),
    "of another dtype": lambda part, x: part.copy_(x.double()),
    "sum": lambda part, x: part.add_(x),
    "bounds": lambda part, x: part.clamp_(0, 1),
    "exponential": lambda part, x: part.exp_(),
    "power": lambda part, x: part.pow_(2),
    "running sum": lambda part, x: part.cumsum_(1),
    "triangle": lambda part, x: part.tril_(),
    "mask": lambda part, x: part.masked_fill_(x > 0.5, 0.0),
}


@pytest.mark.filterwarnings("error:the model cannot be exported for all requested sizes")
@pytest.mark.parametrize(("batch", "length"), [(1, 8), (2, 1), (1, 1)])
@pytest.mark.parametrize("name", WRITES)
def test_writes_to_a_slice(name: str, batch: int, length: int) -> None:
    def function(x: Tensor) -> Tensor:
        whole = x.new_full((x.shape[0], x.shape[1], x.shape[2], 20), 0.3)
        WRITES[name](whole[..., 2:18], x)
        return whole * 2

    model = Function(function).eval()
    example = torch.rand(batch, 4, length, 16)
    program = fxonnx.export(model, (example,), dynamic_shapes=({0: "batch", 2: "length"},))
    assert list(map(str, program.model.graph.inputs[0].shape)) == ["batch", "4", "length", "16"]
    for x in (torch.rand(3, 4, 5, 16), torch.rand(1, 4, 2, 16), example):
        torch.testing.assert_close(program(x)[0], model(x))


def test_a_tensor_that_overlaps_itself_is_still_refused() -> None:
    def function(x: Tensor) -> Tensor:
        return x[:, :1].expand(-1, 4).copy_(x)

    with pytest.raises(fxonnx.CaptureError, match="more than one element of the written-to"):
        fxonnx.export(Function(function).eval(), (torch.rand(2, 4),), dynamic_shapes=({0: "batch"},))
