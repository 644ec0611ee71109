"""The context of the caller: an autocast, in which the model runs, and another capture, in which no export works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import fxonnx
from fxonnx import CaptureError, TranslationError


class Layers(nn.Module):
    """Operators that autocast runs in the lower precision, in float32, and in the widest of their operands."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.linear, self.layer_norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = torch.relu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        y = self.layer_norm(self.linear(y))
        return y, torch.softmax(y @ y.transpose(1, 2), -1), x.float().exp()


class OwnAutocast(Layers):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.autocast("cpu", enabled=False):
            first = self.linear(x.flatten()[:8])
        y, z, _ = super().forward(x)
        return y, z, first


class Looped(nn.Module):
    """Its loop is captured as an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        total = self.linear(x[0])
        for index in range(x.shape[0]):
            total = total + self.linear(x[index])
        return total


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("model", "example", "other"),
    [
        (nn.Linear(4, 4), torch.rand(2, 4), torch.rand(5, 4)),
        (Layers(), torch.rand(2, 3, 8, 8), torch.rand(3, 3, 8, 8)),
        (OwnAutocast(), torch.rand(2, 3, 8, 8), torch.rand(3, 3, 8, 8)),
        pytest.param(
            *(Looped(), torch.rand(3, 4), torch.rand(6, 4)),
            marks=pytest.mark.xfail(
                reason="torch.export records no region for an autocast around a control flow operator, also in forward",
                raises=TranslationError,
                strict=True,
            ),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_model_runs_in_the_autocast_of_the_caller(
    tmp_path: Path, model: nn.Module, example: Tensor, other: Tensor, dtype: torch.dtype
) -> None:
    model = model.eval()
    with torch.autocast("cpu", dtype=dtype):
        program = fxonnx.export(model, (example,), tmp_path / "m.onnx", dynamic_shapes=({0: "n"},), verify=True)
        expected = torch.utils._pytree.tree_leaves(model(other))
        assert torch.is_autocast_enabled("cpu")
        fxonnx.verify(tmp_path / "m.onnx", model, (other,))
    torch.testing.assert_close(list(program(other)), expected, rtol=0.05, atol=0.05)
    program.verify((other,))  # the context of the export, not the call's


def test_without_autocast_nothing_changes(tmp_path: Path) -> None:
    model, x = nn.Linear(4, 4).eval(), torch.rand(2, 4)
    fxonnx.export(model, (x,), tmp_path / "plain.onnx")
    with torch.autocast("cpu", enabled=False):
        fxonnx.export(model, (x,), tmp_path / "disabled.onnx")
    assert (tmp_path / "plain.onnx").read_bytes() == (tmp_path / "disabled.onnx").read_bytes()


class Exports(nn.Module):
    """Exports a part of itself in ``forward``."""

    def __init__(self, of_example: bool) -> None:
        super().__init__()
        self.linear, self.of_example = nn.Linear(4, 4), of_example

    def forward(self, x: Tensor) -> Tensor:
        fxonnx.export(self.linear, (torch.ones(2, 4) if self.of_example else x,))
        return self.linear(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("of_example", [False, True])
@pytest.mark.parametrize(
    "trace",
    [
        lambda model, x: fxonnx.export(model, (x,)),
        lambda model, x: fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},)),
        lambda model, x: torch.export.export(model, (x,)),
        lambda model, x: torch.jit.trace(model, (x,)),
        lambda model, x: make_fx(model)(x),
    ],
    ids=["export", "dynamic", "torch.export", "jit", "make_fx"],
)
def test_an_export_inside_of_a_capture_is_refused(trace: Callable[..., Any], of_example: bool) -> None:
    model, x = Exports(of_example).eval(), torch.ones(2, 4)
    with pytest.raises(
        CaptureError, match=r"called while torch traces a model.*\nhint: export one model after the other"
    ):
        trace(model, x)
    assert fxonnx.export(model.linear, (x,))(x)[0].shape == (2, 4)


class Reshapes(nn.Module):
    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor, more: dict[str, Tensor]) -> Tensor:
        self.change(more["y"])
        return more["y"] * 2 + x.sum()


@pytest.mark.parametrize("shapes", [None, {"x": None, "more": {"y": {1: "n"}}}], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    "change",
    [
        lambda y: y.unsqueeze_(0),
        lambda y: y.unsqueeze_(-1),
        lambda y: y.t_(),
        lambda y: y.transpose_(0, 1),
        lambda y: y.squeeze_(0),
    ],
    ids=["unsqueeze", "unsqueeze-last", "t", "transpose", "squeeze"],
)
def test_inputs_that_change_their_shape(change: Callable[[Tensor], Any], shapes: Any) -> None:
    """The result is right, or one error names the input."""
    model = Reshapes(change).eval()
    x, y = torch.rand(3), torch.rand(1, 4)
    expected = model(x, {"y": y.clone()})
    try:
        program = fxonnx.export(model, (x, {"y": y.clone()}), dynamic_shapes=shapes)
    except CaptureError as error:
        message = str(error)
    else:
        torch.testing.assert_close(program(x, {"y": y.clone()})[0], expected)
        return
    assert "forward changes the shape of its input \"more['y']\" in place" in message
    assert "hint: assign the result to a variable" in message


@pytest.mark.parametrize("shapes", [None, ({1: "n"},)])
def test_unsqueeze_of_an_input_is_refused(shapes: Any) -> None:
    class Unsqueezes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x.unsqueeze_(0)
            return x * 2

    x = torch.rand(2, 3)
    with pytest.raises(
        CaptureError, match=r"shape of its input 'x' in place.*\nhint: .* x = x.unsqueeze\(0\) in place"
    ):
        fxonnx.export(Unsqueezes().eval(), (x,), dynamic_shapes=shapes)
    assert x.shape == (2, 3)
