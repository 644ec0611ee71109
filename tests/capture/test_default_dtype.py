"""``torch.set_default_dtype`` around the export and in forward: results and weights are eager torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fxonnx
from fxonnx import CaptureError

from ..functions import Function

X = torch.randn(2, 4)


@pytest.fixture(params=[torch.float16, torch.float64], ids=str)
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    torch.set_default_dtype(request.param)
    try:
        yield request.param
    finally:
        torch.set_default_dtype(torch.float32)


FUNCTIONS: tuple[Callable[[torch.Tensor], Any], ...] = (
    lambda x: x * 0.1 + torch.ones(4),
    lambda x: torch.arange(4) / 3 + torch.tensor(0.1),
    lambda x: torch.where(x > 0.3, x, 1 / 3),
    lambda x: x.long() / 3,
    lambda x: torch.full((2,), x.shape[0] / 3),
    lambda x: torch.nn.functional.gelu(x) * torch.linspace(0, 1, 4),
)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_have_the_dtypes_of_eager_torch(function: Callable[[torch.Tensor], Any], dtype: torch.dtype) -> None:
    program = fxonnx.export(Function(function).eval(), (X,), dynamic_shapes={"x": {0: "n"}})
    assert torch.get_default_dtype() is dtype
    for x in (X, torch.randn(3, 4, dtype=torch.float32)):
        torch.testing.assert_close(program(x)[0], function(x), atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("build", [lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), lambda: nn.GRU(4, 3)])
def test_a_float32_model_has_the_same_file(build: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    torch.set_default_dtype(torch.float32)
    model = build().eval()
    expected = fxonnx.export(model, (X,)).model_proto.SerializeToString(deterministic=True)
    torch.set_default_dtype(dtype)
    assert fxonnx.export(model, (X,)).model_proto.SerializeToString(deterministic=True) == expected


def test_weights_have_the_default_dtype_of_their_creation(dtype: torch.dtype) -> None:
    model = nn.Linear(4, 3)
    program = fxonnx.export(model.eval(), (X.to(dtype),))
    assert {value.dtype.numpy() for value in program.model.graph.initializers.values()} == {torch.ones(1).numpy().dtype}
    torch.testing.assert_close(program(X.to(dtype))[0], model(X.to(dtype)), atol=2e-3, rtol=2e-3)
    with pytest.raises(CaptureError, match=r"aten\.linear: mat1 and mat2 must have the same dtype, but got Float and"):
        fxonnx.export(model, (X,))


def test_a_change_in_forward() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        torch.set_default_dtype(torch.float64)
        try:
            return torch.linspace(0, 1, 4) * x + torch.zeros(x.shape[0], 4) + torch.full((4,), 0.1)
        finally:
            torch.set_default_dtype(torch.float32)

    program = fxonnx.export(Function(forward).eval(), (X,), dynamic_shapes=({0: "n"},))
    assert torch.get_default_dtype() is torch.float32
    for x in (X, torch.randn(5, 4)):
        torch.testing.assert_close(program(x)[0], forward(x))


def test_setting_the_same_dtype_in_forward() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        torch.set_default_dtype(torch.float32)
        return x + torch.ones(4)

    torch.testing.assert_close(fxonnx.export(Function(forward).eval(), (X,))(X)[0], X + 1)
