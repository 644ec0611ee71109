"""Values that a model keeps for the sizes of its last call, and conditions on whole shapes, at which it asks for them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxonnx

from ..functions import Function

SIZES = ((8, 12), (8, 8), (12, 12), (12, 8), (8, 5), (1, 12), (3, 1), (1, 1), (17, 24))


class Grid(nn.Module):
    """Coordinates as further channels, which are kept while the sizes remain."""

    def __init__(self, keep: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.keep = keep
        self.grid: Tensor | None = None
        self.sizes: Any = None

    def forward(self, x: Tensor) -> Tensor:
        sizes = self.keep(x)
        if self.grid is None or self.sizes != sizes:
            rows, columns = (torch.linspace(0, 1, size) for size in x.shape[-2:])
            self.grid = rows[:, None] + columns * 2
            self.sizes = sizes
        return torch.cat((x, self.grid.expand(len(x), 1, -1, -1)), 1)


class Bound(Grid):
    """A bound that no ordinary input reaches, and which is another one for the sizes of the last call."""

    def forward(self, x: Tensor) -> Tensor:
        if self.grid is None or self.sizes != x.shape[-2:]:
            self.grid, self.sizes = torch.full((1,), 60.0 if self.grid is not None else 50.0), x.shape[-2:]
        return torch.minimum(x, self.grid.expand(x.shape[-2], 1))


def shape(x: Tensor) -> Any:
    return x.shape[-2:]


def a_tuple(x: Tensor) -> Any:
    return (x.shape[-2], x.shape[-1])


def one_size(x: Tensor) -> Any:
    return x.shape[3:]


def moves_to_the_center(x: Tensor) -> Tensor:
    """Numbers of sizes, beside a padding that the example does not need."""
    rest = -x.shape[-1] % 4
    if rest > 0:
        x = F.pad(x, (0, rest))
    h, w = x.shape[-2:]
    center = torch.tensor([(h - 1) / 2, (w - 1) / 2])
    return x.mean((2, 3)) * h / w - center.sum()


def clamps_by_a_size(x: Tensor) -> Tensor:
    """At the edge, a bound is not the one of the other sizes, and no ordinary input reaches it."""
    w = x.shape[-1]
    limit = 50.0 + 2.0 * w if w % 4 else 70.0
    return x.clamp(-limit, limit)


def fills_by_a_size(x: Tensor) -> Tensor:
    w = x.shape[-1]
    limit = torch.full((1,), 50.0 + 2.0 * w if w % 4 else 70.0) * 2
    return torch.minimum(x, limit.expand(3, 1, 1))


def is_one_row(x: Tensor) -> Tensor:
    """A whole shape of one size."""
    scales = torch.ones(x.shape[-2])
    scale = scales.expand(4) if scales.shape == (1,) else scales.sum() * torch.ones(4)
    return x[..., :1] * scale


def has_a_mask(x: Tensor) -> Tensor:
    """A tensor in one branch, and nothing in the other."""
    mask, rest = None, -x.shape[-1] % 4
    if rest > 0:
        mask = torch.arange(x.shape[-1] + rest) < x.shape[-1]
        x = F.pad(x, (0, rest))
    blocks = x.unflatten(3, (-1, 4))
    if mask is not None:
        return blocks.sum(4) / mask.unflatten(0, (-1, 4)).sum(1)
    return blocks.mean(4)


@contextmanager
def exported(model: nn.Module, example: tuple[int, int], path: Path) -> Iterator[Callable[[Tensor], Tensor | None]]:
    """The file as a function, which returns None where the file fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dims = {0: "b", 2: "h", 3: "w"}
        fxonnx.export(model.eval(), (torch.randn(1, 3, *example),), path, dynamic_shapes=(dims,))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options)

    def run(x: Tensor) -> Tensor | None:
        try:
            return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
        except Exception:  # noqa: BLE001 - of ONNX Runtime
            return None

    yield run


@pytest.mark.parametrize("keep", [shape, a_tuple, one_size])
@pytest.mark.parametrize("called", [None, (8, 12), (12, 8)], ids=["never called", "called", "called with other sizes"])
def test_a_grid_that_is_kept_for_its_sizes(keep: Any, called: tuple[int, int] | None, tmp_path: Path) -> None:
    model = Grid(keep).eval()
    if keep is one_size:
        model = nn.Sequential(Function(lambda x: x.mean(2, keepdim=True)), model)
    if called is not None:
        model(torch.randn(1, 3, *called))
    with exported(model, (8, 12), tmp_path / "m.onnx") as run:
        for size in SIZES:
            x = torch.randn(2, 3, *size)
            torch.testing.assert_close(run(x), model(x))


def test_a_bound_that_is_kept_is_not_replaced_by_another_one(tmp_path: Path) -> None:
    model = Bound(shape).eval()
    x = torch.full((1, 3, 8, 12), 100.0)
    kept = model(x)
    with exported(model, (8, 12), tmp_path / "m.onnx") as run:
        torch.testing.assert_close(run(x), kept)
        for size in SIZES[1:]:
            other = torch.full((1, 3, *size), 100.0)
            found = run(other)
            assert found is None or (found == 60).all()


@pytest.mark.parametrize("example", [(8, 12), (1, 13)], ids=str)
@pytest.mark.parametrize("function", [moves_to_the_center, clamps_by_a_size, fills_by_a_size, is_one_row, has_a_mask])
def test_branches_beside_numbers_of_sizes(
    function: Callable[..., Any], example: tuple[int, int], tmp_path: Path
) -> None:
    with exported(Function(function), example, tmp_path / "m.onnx") as run:
        for size in SIZES:
            x = torch.randn(2, 3, *size) * 1000
            torch.testing.assert_close(run(x), function(x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "clamped",
    [
        lambda x, n: x.clamp(max=8.0 if n % 4 == 0 else 6.0) * 8.0,
        lambda x, n: x.clamp(max=torch.tensor(8.0 if n % 4 == 0 else 6.0)) * 8.0,
        lambda x, n: torch.minimum(x, torch.full((n,), 8.0 if n % 4 == 0 else 6.0)) + 8.0,
        lambda x, n: x.clamp(max=n / 2 if n % 4 == 0 else float(n)) + n / 2,
        lambda x, n: x.masked_fill(torch.tensor([True]), 8.0 if n % 4 == 0 else 6.0) * 8.0,
    ],
    ids=["number", "tensor", "full", "of the size", "mask"],
)
def test_a_bound_at_an_edge_is_not_that_of_another_operator(
    clamped: Callable[[Tensor, int], Tensor], tmp_path: Path
) -> None:
    """Inputs that are no larger than the bounds do not tell them apart."""
    model = Function(lambda x: clamped(x, x.shape[-1])).eval()
    with exported(model, (9, 13), tmp_path / "m.onnx") as run:
        for size in ((9, 13), (8, 12), (9, 16), (3, 4), (7, 5)):
            x = torch.full((2, 3, *size), 7.0)
            found = run(x)
            assert found is None or torch.equal(found, model(x))
