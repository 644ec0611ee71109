"""Values of input tensors as the bounds of slices, as sizes and as trip counts: symbolic, or refused; never the example's.

Each program runs from the saved file in plain ONNX Runtime, at other values than the example's, among them negative ones
and ones outside of the axis.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxonnx

WIDTH = 12
BOUNDS = (6, 3, 0, WIDTH, -2, 20, -20)
SIZES = (4, 2, 6)

# The operations of a function ``f(x, a)`` that returns ``y``, which begins as ``x.clone()``, by kind.
WRITES = (
    "y[:, a:] = 0.0",
    "y[:, :a] += 1",
    "y[:, a:] *= 2; y[:, :a] /= 2",
    "y[:, a - 1 : a + 2] -= 1",
    "y[:, a:].zero_()",
    "y[:, :a].fill_(3.0)",
    "y[:, :a].copy_(x[:, :a] * 2)",
    "y[:, a:].masked_fill_(x[:, a:] > 0, 5.0)",
    "y[:, a:].clamp_(min=0); y[:, :a].neg_()",
    "y[:, a:] = x[:, a:].flip(1)",
    "y[-a:] = 0; y[..., a:] = 1",
    "y[:, a::2] = 0; y[0, a:] = 7; y[[0, 2], a:] = 9",
    "y.view(-1)[a:] = 0; y.t()[a:] = 1",
    "y[1:, a:][:, :2] = 7.0",
    "y[y[:, 0] > 0, a:] = 0",
    "y[:, a:] = y.sum()",
    "m = torch.ones(x.shape[1]); m[a + 1 :] = 0; y = y * m",
)
READS = (
    "y = x[:, a:] * 1",
    "y = x[:, :a] * 1",
    "y = x[:, a - 1 : a + 2] * 1",
    "y = x[:, -a:].sum(1)",
    "y = torch.cat([x[:, a:], x[:, :a]], 1)",
    "y = x[:, ::2][:, a:] + 1",
    "y = x[:, a:] @ x[:, a:].T",
    "y = torch.arange(12)[a:] * 2",
    "y = x + x[:, a : a + 2].mean() + x[:, a:].mean(1, keepdim=True)",
)
AS_SIZES = (
    "y = torch.zeros(a) + x[0, 0]",
    "y = torch.full((a, 3), 2.0) * x[0, 0]",
    "y = torch.arange(1, a + 1) * 2",
    "y = x[:, :1].expand(-1, a) + 1",
    "y = F.pad(x, (a, 1))",
    "y = torch.roll(x, a, 1)",
    "y = x.narrow(1, a, 2) + 1",
    "y.narrow(1, a, 2).zero_(); y.narrow(1, a - 2, 3).copy_(x[:, :3])",
    "v = y.narrow(1, a, 3); v += x[:, :3]; v[0] = 7; y = y * v.sum()",
    "b = a.clone(); v = torch.narrow(y, -1, b, 2); b += 1; v.mul_(2); y.narrow(1, b - 9, 1).t()[0] = 3",
    "y = x.repeat(a, 1)",
    "y = x.view(a, 48 // a) + 1",
    "y = x.split([a, 12 - a], 1)[1] + 1",
    "y = x.topk(a, 1)[0] + 1",
    "y = x[:, a] + x.select(1, a)",
    "y[:, a - 1] = 0.0",
)
INDICES = (
    "y[a.item() // 3, 2] = 9",
    "y[..., a.item()] = 9",
    "y[[0, 1], a.item()] = 7",
    "y = y[a.item() // 3, [0, 1]] + y[a // 3, x.shape[1] - 1]",
    "y[x.shape[0] - 1, 2] = 9; y[:, x.shape[1] - 2] += 1; y[x.shape[0] - 2] = 1",
    "y[a // 3, x.shape[1] - 1] = 3",
)


class Applied(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, a: torch.Tensor) -> Any:
        return self.function(x, a)


def made(operations: str) -> Callable[..., torch.Tensor]:
    """A function of these operations, without source code."""
    names: dict[str, Any] = {"torch": torch, "F": F}
    body = "\n    ".join(part.strip() for part in operations.split(";"))
    exec(f"def f(x, a):\n    y = x.clone()\n    {body}\n    return y", names)
    function: Callable[..., torch.Tensor] = names["f"]
    return function


def check(model: nn.Module, calls: list[tuple[torch.Tensor, ...]], path: Path, dynamic_shapes: Any = None) -> None:
    """Export a model with its first call, and compare the file with the model at all of them."""
    fxonnx.export(model.eval(), calls[0], path, dynamic_shapes=dynamic_shapes)
    session = onnxruntime.InferenceSession(path)
    for call in calls:
        feeds = {node.name: value.numpy() for node, value in zip(session.get_inputs(), call, strict=True)}
        expected = model(*call)
        torch.testing.assert_close(torch.from_numpy(session.run(None, feeds)[0]), expected, equal_nan=True)


def calls_at(values: tuple[int, ...], *, of_rank: int, widths: tuple[int, ...]) -> list[tuple[torch.Tensor, ...]]:
    """Inputs with each value at each width, the first width of the example first."""
    generator = torch.Generator().manual_seed(0)
    xs = [torch.randn(4, width, generator=generator) for width in widths]
    return [(x, torch.tensor(value).reshape((1,) * of_rank)) for x in xs for value in values]


@pytest.mark.parametrize("widths", [(WIDTH,), (WIDTH, 15)], ids=["static", "dynamic"])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("operations", [*WRITES, *READS])
def test_bounds_of_slices(operations: str, rank: int, widths: tuple[int, ...], tmp_path: Path) -> None:
    dynamic = {"x": {1: "t"}, "a": {}} if len(widths) > 1 else None
    check(Applied(made(operations)), calls_at(BOUNDS, of_rank=rank, widths=widths), tmp_path / "m.onnx", dynamic)


@pytest.mark.parametrize("operations", AS_SIZES)
def test_sizes(operations: str, tmp_path: Path) -> None:
    check(Applied(made(operations)), calls_at(SIZES, of_rank=0, widths=(WIDTH,)), tmp_path / "m.onnx")


@pytest.mark.parametrize("rows", [(4,), (4, 6)], ids=["static", "dynamic"])
@pytest.mark.parametrize("operations", INDICES)
def test_indices(operations: str, rows: tuple[int, ...], tmp_path: Path) -> None:
    calls = [(torch.randn(count, WIDTH), torch.tensor(value)) for count in rows for value in SIZES]
    check(Applied(made(operations)), calls, tmp_path / "m.onnx", ({0: "n"}, {}) if len(rows) > 1 else None)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_integers_of_other_types(dtype: torch.dtype, tmp_path: Path) -> None:
    calls = [(x, a.to(dtype)) for x, a in calls_at((6, 3, 0), of_rank=0, widths=(WIDTH,))]
    check(Applied(made("y[:, a:] = 0.0")), calls, tmp_path / "m.onnx")


def masked_rows(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    m = torch.ones(x.shape)
    for i, n in enumerate(lengths):
        m[i, n:] = 0
    return x * m


def rows_by_index(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    for i in range(x.shape[0]):
        y[i, : lengths[i]] += 1
    return y


def to_the_largest(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    m = torch.zeros(x.shape)
    m[:, : lengths.max()] = 1
    return x * m


def read_to_the_largest(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return x[:, : lengths.max()] * 1


def between(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return x[:, lengths[0] : lengths[1]] * 1


OF_ROWS = (masked_rows, rows_by_index, to_the_largest, read_to_the_largest, between)


@pytest.mark.parametrize("rows", [(4,), (4, 6)], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", OF_ROWS, ids=lambda function: function.__name__)
def test_bounds_of_each_row(function: Any, rows: tuple[int, ...], tmp_path: Path) -> None:
    calls = []
    for count in rows:
        x = torch.randn(count, WIDTH)
        calls += [(x, torch.tensor(numbers[:count])) for numbers in ([3, 12, 7, 1, 0, 5], [12, 12, 0, 5, 1, 2])]
    dynamic = {"x": {0: "b"}, "lengths": {0: "b"}} if len(rows) > 1 else None
    dynamic = None if dynamic is None else tuple(dynamic.values())
    check(Applied(function), calls, tmp_path / "m.onnx", dynamic)


class Cache(nn.Module):
    def forward(self, x: torch.Tensor, cache: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        c = cache.clone()
        c[:, position : position + x.shape[1]] = x
        return c


class NarrowedCache(nn.Module):
    def forward(self, x: torch.Tensor, cache: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        c = cache.clone()
        c.narrow(1, position, x.shape[1]).copy_(x)
        return c


@pytest.mark.parametrize("model", [Cache(), NarrowedCache()])
def test_a_window_of_a_cache(model: nn.Module, tmp_path: Path) -> None:
    calls = [(torch.randn(1, t, 4), torch.randn(1, 9, 4), torch.tensor(at)) for t, at in ((2, 3), (3, 5), (1, 0))]
    check(model, calls, tmp_path / "m.onnx", ({1: "t"}, {}, {}))


def test_lambdas_and_classes_made_by_type(tmp_path: Path) -> None:
    def forward(self: Any, x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[:, a:] = 0
        return y

    calls = calls_at(BOUNDS, of_rank=0, widths=(WIDTH,))
    check(type("Made", (nn.Module,), {"forward": forward})(), calls, tmp_path / "made.onnx")
    check(Applied(lambda x, a: x[:, a:] * 1), calls, tmp_path / "lambda.onnx")


def test_a_value_that_must_be_a_number_is_refused() -> None:
    x, a = calls_at(SIZES, of_rank=0, widths=(WIDTH,))[0]
    functions = Applied(lambda x, a: (torch.sin, torch.cos, torch.tanh, torch.exp, torch.sign)[a](x))
    with pytest.raises(
        fxonnx.CaptureError, match=r'(?s)value of a tensor, which depends on its inputs.*frozen=\["a"\]'
    ):
        fxonnx.export(functions, (x, a))


def test_frozen_and_followed_values_keep_the_example() -> None:
    functions = Applied(lambda x, a: (torch.sin, torch.cos, torch.tanh, torch.exp, torch.sign)[a](x)).eval()
    x, a = calls_at(SIZES, of_rank=0, widths=(WIDTH,))[0]
    torch.testing.assert_close(fxonnx.export(functions, (x, a), frozen=["a"])(x, a)[0], functions(x, a))
    with pytest.warns(UserWarning, match="branches on the values of its inputs"):
        followed = fxonnx.export(functions, (x, a), data_dependent="example")
    torch.testing.assert_close(followed(x, a)[0], functions(x, a))
    with pytest.raises(fxonnx.ArgumentError):
        followed(x, a - 1)
