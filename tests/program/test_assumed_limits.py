"""Squeezes of dynamic dims, which may have one element: the limit is dropped where the model returns the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import fxonnx
from tests.functions import Function
from tests.saved import run_from_file


def _without_batch(x: torch.Tensor) -> torch.Tensor:
    """The rows of a batch of one channel, as speechbrain's decoder returns them."""
    return x.squeeze(1) if torch.squeeze(x).dim() == 1 else torch.squeeze(x)


RIGHT: dict[str, tuple[Callable[[torch.Tensor], Any], tuple[int | str, ...]]] = {
    "only its rank is read": (lambda x: (x.unsqueeze(0) if x.squeeze().dim() == 1 else x).mean(-1), ("b", 6, 8)),
    "a branch on the rank": (_without_batch, ("b", 1, 5)),
    "reshaped after it": (lambda x: x.squeeze().reshape(x.shape[0], -1) * 2, ("b", 1, "t")),
    "one axis, reshaped": (lambda x: torch.squeeze(x, 0).reshape(x.shape[0], -1) * 2, ("b", 3, 2)),
    "several axes, reshaped": (lambda x: x.squeeze((0, 1)).reshape(x.shape) * 2, ("b", 1, "t")),
    "summed": (lambda x: x.squeeze().sum(), ("b", 1, "t")),
    "another axis after it": (lambda x: x.squeeze().unsqueeze(0), ("b", "t", 4)),
    "an axis at the end": (lambda x: x.squeeze().unsqueeze(-1), ("b", 1, "t")),
    "multiplied by a matrix": (lambda x: x.squeeze() @ torch.ones(4, 2), ("b", "t", 4)),
    "the last axis is reduced": (lambda x: (x.squeeze().mean(-1), x * 2), ("b", "t", 4)),
    "stacked": (lambda x: torch.stack([x.squeeze(), x.squeeze() * 2]), ("b", "t", 4)),
}


def _example(shape: tuple[int | str, ...], **sizes: int) -> torch.Tensor:
    return torch.randn([sizes[dim] if isinstance(dim, str) else dim for dim in shape])


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", RIGHT)
def test_a_squeezed_dim_may_have_one_element(name: str, batch: int) -> None:
    function, shape = RIGHT[name]
    model = Function(function).eval()
    dims = {axis: dim for axis, dim in enumerate(shape) if isinstance(dim, str)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = fxonnx.export(model, (_example(shape, b=batch, t=5),), dynamic_shapes={"x": dims})
    assert not any("!=" in constraint.text for constraint in program.record.constraints)
    run_from_file(program)
    for b, t in ((1, 5), (1, 1), (2, 1), (4, 7)):
        x = _example(shape, b=b, t=t)
        wanted = model(x)
        assert_close(program(x), list(wanted) if isinstance(wanted, tuple) else [wanted])


@pytest.mark.parametrize("function", [lambda x: x.squeeze(0).sum(0), lambda x: x.squeeze().flatten(-2)])
def test_a_limit_that_the_model_needs_remains(function: Any) -> None:
    model = Function(function).eval()
    with pytest.warns(UserWarning, match="n != 1"):
        program = fxonnx.export(model, (torch.rand(4, 4),), dynamic_shapes=({0: "n"},))
    assert "n != 1" in [constraint.text for constraint in program.record.constraints]
    with pytest.raises(fxonnx.ArgumentError, match="the model was exported for n != 1"):
        program(torch.rand(1, 4))
    with pytest.raises(fxonnx.CaptureError, match="n != 1"):
        fxonnx.export(model, (torch.rand(4, 4),), dynamic_shapes=({0: "n"},), strict_shapes=True)


@pytest.mark.parametrize("batch", [1, 3])
def test_one_of_two_limits_remains(batch: int) -> None:
    """At one element of both dims, the model returns a number."""
    model = Function(_without_batch).eval()
    with pytest.warns(UserWarning, match="t != 1"):
        program = fxonnx.export(model, (torch.randn(batch, 1, 5),), dynamic_shapes=({0: "b", 2: "t"},))
    assert [constraint.text for constraint in program.record.constraints] == ["t != 1"]
    run_from_file(program)
    for b, t in ((1, 7), (2, 2)):
        x = torch.randn(b, 1, t)
        assert_close(program(x)[0], model(x))


def test_an_example_of_one_element_of_a_needed_limit_is_an_error() -> None:
    with pytest.raises(fxonnx.CaptureError, match="requires n != 1, but the example has n = 1"):
        fxonnx.export(Function(lambda x: x.squeeze(0).sum(0)), (torch.rand(1, 4),), dynamic_shapes=({0: "n"},))


def test_a_branch_on_the_size_is_no_assumption() -> None:
    model = Function(lambda x: x.squeeze().reshape(x.shape[0], -1) * (2 if x.shape[0] != 1 else 3))
    with pytest.warns(UserWarning, match="n != 1"):
        program = fxonnx.export(model, (torch.rand(4, 1, 4),), dynamic_shapes=({0: "n"},))
    with pytest.raises(fxonnx.ArgumentError, match="n != 1"):
        program(torch.rand(1, 1, 4))


@pytest.mark.parametrize("batch", [1, 3])
def test_one_element_of_another_dim_does_not_hide_a_limit(batch: int) -> None:
    """At one column, the axis of the rows is as good as that of the columns."""
    model, x = Function(lambda x: x.squeeze(0).unflatten(0, (-1, 1))), torch.rand(batch, 1)
    shapes = ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},)
    if batch == 1:
        with pytest.raises(fxonnx.CaptureError, match=r"requires x\.shape\[0\] != 1, but the example has"):
            fxonnx.export(model, (x,), dynamic_shapes=shapes)
        return
    with pytest.warns(UserWarning, match="!= 1"):
        program = fxonnx.export(model, (x,), dynamic_shapes=shapes)
    for rows, columns in ((2, 1), (4, 5)):
        y = torch.rand(rows, columns)
        assert_close(program(y)[0], model(y))
    with pytest.raises(fxonnx.ArgumentError, match="!= 1"):
        program(torch.rand(1, 5))


class Separates(nn.Module):
    """SepFormer of speechbrain: the decoded sound gets the length of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv1d(1, 4, 8, 4)
        self.decoder = nn.ConvTranspose1d(4, 1, 8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = _without_batch(self.decoder(self.encoder(x[:, None])))
        if x.shape[1] > y.shape[1]:
            return nn.functional.pad(y, (0, x.shape[1] - y.shape[1]))
        return y[:, : x.shape[1]]


def test_both_branches_beside_a_squeeze_of_the_batch() -> None:
    model = Separates().eval()
    with pytest.warns(UserWarning, match="samples >= 8") as found:
        program = fxonnx.export(model, (torch.randn(2, 40),), dynamic_shapes=({0: "batch", 1: "samples"},))
    assert not any("%" in str(one.message) for one in found)
    for shape in ((2, 40), (1, 42), (1, 48), (3, 41), (1, 8)):
        x = torch.randn(shape)
        assert_close(program(x)[0], model(x), atol=1e-5, rtol=1e-5)
