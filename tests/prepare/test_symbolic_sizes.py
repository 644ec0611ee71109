"""No pass fails for sizes that depend on data, or for the length of a graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxonnx
from fxonnx._prepare.pipeline import prepare

from .helpers import capture


class Selected(nn.Module):
    """A function of the rows that a mask selects, and of a parameter."""

    def __init__(self, function: Callable[[Tensor, Tensor], Any], shape: tuple[int, ...] = (4,)) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape))
        self.function = function

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        return self.function(x[mask], self.p)


def written(y: Tensor, p: Tensor, start: int | None, end: int | None) -> Tensor:
    out = torch.zeros_like(y)
    out[start:end] = y[start:end].round().clamp(-128, 127)
    return out * p


def scattered(y: Tensor, p: Tensor) -> Tensor:
    """Written to slices with a data-dependent end, as Siglip2's position embeddings are."""
    out = torch.zeros(9, 4)
    out[: y.shape[0]] = torch.round(y)
    out[1:3] = 1.0
    return out * p[:1]


def quantized(y: Tensor, p: Tensor) -> Tensor:
    return torch.clamp(torch.round(y / p) + 0.0, -128, 127) * p


def in_place(y: Tensor, p: Tensor) -> Tensor:
    y = F.dropout(y, 0.1, training=False)
    y += p
    return y


UNBACKED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "product": lambda y, p: y * torch.tanh(y) + (1 + p),
    "product of one column": lambda y, p: y[:, :1] * torch.tanh(y[:, 1:2]) + (1 + p[:1]),
    "product of rows": lambda y, p: torch.round(y[:, 0]) * torch.tanh(y[:, 1]) + p[:1],
    "rounded": lambda y, p: torch.round(y).clamp(0, 255) * p,
    "quantizer": lambda y, p: quantized(y, p[:1]),
    "quantizer with a scale for each row": lambda y, p: quantized(y, y.abs().amax(1, keepdim=True)),
    "all rows written": lambda y, p: written(y, p, None, None),
    "some rows written": lambda y, p: written(y, p, 1, -1),
    "as many rows written": scattered,
    "first of the sorted": lambda y, p: y[:, 0].sort().values[:5].round() * p[:1],
    "dropout in place": in_place,
    "dropout in place, resized": lambda y, p: F.interpolate(in_place(y, p).T[None], scale_factor=2),
    "layer norm": lambda y, p: F.layer_norm(y, (4,), p),
    "softmax": lambda y, p: torch.softmax(y @ y.T, -1) @ y,
    "attention": lambda y, p: F.scaled_dot_product_attention(y[None, None], y[None, None] * p, y[None, None]),
    "split": lambda y, p: torch.cat([part * p[:2] for part in y.split(2, 1)]),
    "joined": lambda y, p: torch.stack([torch.cat([y, p[None]]).round(), torch.cat([p[None], y])]),
    "where": lambda y, p: torch.where(torch.round(y) > 1, torch.ones(()), torch.round(y)) * p,
    "reshaped": lambda y, p: (y.reshape(-1) * 2).view(-1, 2).round() * p[:2],
    "expanded": lambda y, p: y[:, None].expand(-1, 3, -1).round() * p,
    "gelu": lambda y, p: 0.5 * y * (1 + torch.erf(y / 2**0.5)) * p,
    "rms norm": lambda y, p: y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * p,
}


@pytest.mark.parametrize("name", UNBACKED)
def test_sizes_that_depend_on_data(name: str) -> None:
    model = Selected(UNBACKED[name]).eval()
    x = torch.randn(9, 4) * 3
    program = fxonnx.export(model, (x, torch.arange(9) < 6), dynamic_shapes={"x": {0: "n"}, "mask": {0: "n"}})
    for count, size in ((6, 9), (2, 9), (7, 7)):
        given = (torch.randn(size, 4) * 3, torch.arange(size) < count)
        with torch.no_grad():
            torch.testing.assert_close(program(*given)[0], model(*given), atol=1e-5, rtol=1e-4)


class Resized(nn.Module):
    """A dropout in evaluation mode, written in place, as in DPT's decoder."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.dropout(torch.relu(x), 0.1, self.training)
        y += 1
        return F.interpolate(y, size=(x.shape[2] * 2, x.shape[3] * 3), mode="bicubic", antialias=True)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_resized_to_symbolic_sizes_after_an_in_place_operator(is_loaded: bool, tmp_path: Path) -> None:
    model: Any = Resized().eval()
    x = torch.randn(1, 3, 6, 7)
    if is_loaded:
        dims = {2: torch.export.Dim("h", min=2), 3: torch.export.Dim("w", min=2)}
        torch.export.save(torch.export.export(model, (x,), dynamic_shapes=({**dims},)), tmp_path / "model.pt2")
        program = fxonnx.export(torch.export.load(tmp_path / "model.pt2"))
    else:
        program = fxonnx.export(model, (x,), dynamic_shapes=({2: "h", 3: "w"},))
    for size in ((6, 7), (9, 4)):
        given = torch.randn(1, 3, *size)
        torch.testing.assert_close(program(given)[0], model(given), atol=1e-5, rtol=1e-4)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.rand(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.round(x) * self.p


@pytest.mark.parametrize(
    "target", [torch.ops.aten.flip.default, torch.ops.aten.t.default, torch.ops.aten.round.default]
)
@pytest.mark.parametrize("optimize", [False, True])
def test_chains_of_3000_nodes(target: Any, optimize: bool) -> None:
    program = capture(Scaled(), (torch.randn(4, 4),))
    (rounded,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.round.default)
    (product,) = rounded.users
    current = rounded
    for _ in range(3000):
        with program.graph.inserting_before(product):
            current = program.graph.call_function(target, (current, [0]) if "flip" in str(target) else (current,))
        current.meta = dict(rounded.meta)
    product.args = (current, product.args[1])
    prepared = prepare(program, lambda _: True, optimize=optimize)
    assert prepared.graph.output_node().all_input_nodes[0].target is torch.ops.aten.mul.Tensor
