"""Values of input tensors as bounds, sizes and trip counts: symbolic, with a name and a line, or refused; never the example's.

Each program runs from the saved file in plain ONNX Runtime, at other values than the example's, among them negative ones
and ones outside of the axis.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import fxonnx
from fxonnx import CaptureError
from tests.functions import Function

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
    "y = torch.linspace(0, 1, a) + x[0, 0]",
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


# Unbacked sizes: comparison with eager torch on three inputs with different counts, including 0.


V = torch.tensor
EXAMPLES = (V([[1.0, -2, 3], [-4, 5, 6]]), V([[-1.0, -2, -3], [-4, -5, -6], [-7, -8, -9]]), V([[2.0, 3, 4]]))
"""Five, none and three positive numbers, in two, three and one rows."""


def count(x: torch.Tensor) -> Any:
    """The sum as a Python int."""
    return (x > 0).sum().item()


def size(x: torch.Tensor) -> Any:
    number = count(x)
    torch._check(number >= 0)
    torch._check(number <= 100)
    return number


def first(x: torch.Tensor) -> Any:
    number = count(x)
    torch._check(number >= 0)
    torch._check(number <= 100)
    return torch.arange(100.0)[:number]


def written(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[x > 0] = 7.0
    return y


def written_rows(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[(x > 0).any(1)] = V([1.0, 2.0, 3.0])
    return y


def narrowed(x: torch.Tensor) -> torch.Tensor:
    number = count(x)
    torch._check(number >= 0)
    torch._check(number <= 10)
    return torch.arange(20.0).narrow(0, number, 3)


def images(x: torch.Tensor) -> torch.Tensor:
    return x[(x > 0).any(1)][:, :, None, None] * torch.arange(16.0).view(4, 4)


ROWS = {
    "nonzero": lambda x: (x > 0).nonzero(),
    "nonzero as a tuple": lambda x: (x > 0).nonzero(as_tuple=True),
    "argwhere": lambda x: torch.argwhere(x > 0),
    "where": lambda x: torch.where(x > 0),
    "masked_select": lambda x: x.masked_select(x > 0),
    "boolean index": lambda x: x[x > 0],
    "boolean index of rows": lambda x: x[(x > 0).any(1)],
    "boolean index beside a slice": lambda x: x[:, V([True, False, True])],
    "boolean index written to": written,
    "rows written to": written_rows,
    "masked_scatter": lambda x: x.masked_scatter(x > 0, torch.arange(9.0)),
    "index_put by positions": lambda x: torch.zeros_like(x).index_put(torch.where(x > 0), x[x > 0] * 2),
    "unique": lambda x: (x > 0).int().unique(),
    "unique with counts": lambda x: torch.unique((x // 2).long(), return_inverse=True, return_counts=True),
    "unique_consecutive": lambda x: torch.unique_consecutive((x > 0).int().flatten()),
    "bincount": lambda x: torch.bincount((x > 0).int().flatten(), minlength=2),
    "sum of selected elements": lambda x: (x[x > 0].sum(), x[x > 0].numel()),
    "arithmetic of selected elements": lambda x: x[x > 0] * 2 + 1,
    "softmax of selected elements": lambda x: torch.softmax(x[x > 0], 0),
    "cumsum of selected elements": lambda x: x[x > 0].cumsum(0),
    "sorted": lambda x: x[x > 0].sort(descending=True)[0],
    "product of rows": lambda x: x[(x > 0).any(1)] @ torch.ones(3, 2),
    "products of all pairs": lambda x: x[x > 0][:, None] * x[x > 0],
    "linear of rows": lambda x: F.linear(x[(x > 0).any(1)], torch.ones(2, 3), torch.ones(2)),
    "batch norm of rows": lambda x: F.batch_norm(x[(x > 0).any(1)], V([1.0, 2, 3]), V([4.0, 5, 6]), V([7.0, 8, 9])),
    "batch norm of images": lambda x: F.batch_norm(images(x), V([1.0, 2, 3]), V([4.0, 5, 6])),
    "instance norm": lambda x: F.instance_norm(images(x)),
    "convolution": lambda x: F.conv2d(images(x), torch.ones(2, 3, 3, 3)),
    "joined": lambda x: torch.cat([x[x > 0], x[x < 0], x.flatten()]),
    "stacked": lambda x: torch.stack([x[x > 0], x[x > 0] * 2]),
    "padded": lambda x: F.pad(x[x > 0], (1, 2)),
    "flipped": lambda x: x[x > 0].flip(0),
    "sliced": lambda x: x[x > 0][:2],
    "the last ones": lambda x: x[x > 0][-2:],
    "gathered twice": lambda x: x.flatten()[(x.flatten() > 0).nonzero()[:, 0]],
    "expanded": lambda x: x[x > 0][:, None].expand(-1, 3),
    "viewed": lambda x: x[(x > 0).any(1)].view(-1, 1),
    "transposed": lambda x: x[(x > 0).any(1)].t(),
    "one-hot": lambda x: F.one_hot((x > 0).nonzero()[:, 1], 3),
    "embedded": lambda x: F.embedding((x > 0).nonzero()[:, 1], torch.arange(6.0).view(3, 2)),
    "repeated by tensors": lambda x: x[:, 0].repeat_interleave((x > 0).sum(1)),
    "item": lambda x: x * count(x),
    "item in arange": lambda x: torch.arange(size(x)) * 2,
    "item in full": lambda x: torch.full((size(x), 2), 3.0),
    "item in zeros": lambda x: torch.zeros(size(x), x.shape[0]) + 1,
    "item in a slice": first,
    "item in narrow": narrowed,
    "item in expand": lambda x: x[:1].expand(size(x), 3),
    "item in repeat": lambda x: x[0].repeat(size(x)),
    "item in topk": lambda x: torch.arange(100.0).topk(size(x))[0],
    "item in linspace": lambda x: torch.zeros(size(x)).cumsum(0),
    "a branch by torch.where": lambda x: torch.where((x > 0).any(), x, -x),
    "how many there are": lambda x: x[x > 0].shape[0] * 2 + x.shape[0],
    "sizes of both": lambda x: x.new_ones((x[x > 0].shape[0], x.shape[0])),
}  # fmt: skip


@pytest.mark.parametrize("shapes", [None, ({0: "rows"},)], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ROWS)
def test_three_counts_match_eager_torch(name: str, shapes: Any) -> None:
    model = Function(ROWS[name]).eval()
    program = fxonnx.export(model, (EXAMPLES[0],), dynamic_shapes=shapes)
    examples = EXAMPLES if shapes is not None else (EXAMPLES[0], -EXAMPLES[0].abs(), EXAMPLES[0].abs())
    for x in examples:
        expected = pytree.tree_leaves(model(x))
        for one, other in zip(program(x), expected, strict=True):
            torch.testing.assert_close(one, torch.as_tensor(other))


WRONG = {
    "a branch": lambda x: x + 1 if count(x) > 2 else x,
    "a loop": lambda x: [x * index for index in range(count(x))],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_data_dependent_branch_is_an_error_with_the_line(name: str) -> None:
    with pytest.raises(
        CaptureError, match=r"(?s)computed from a tensor must be known.*at: .*test_tensor_bounds\.py:\d+ in <lambda>: "
    ):
        fxonnx.export(Function(WRONG[name]).eval(), (EXAMPLES[0],))


# Names and source lines of dims that depend on the values of inputs.


IMAGES = torch.rand(2, 10, 5)


class Detector(nn.Module):
    """The boxes above a score, for each of two images."""

    def forward(self, images: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        found = []
        for image in images:
            keep = (image[:, 4] > 0.5).nonzero().squeeze(1)
            found.append({"boxes": image[keep, :4], "scores": image[keep, 4], "labels": keep})
        return found


class Selected(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"boxes": x[x > 0.5]}


def shapes(program: fxonnx.ONNXProgram) -> dict[str, list[Any]]:
    return {
        str(output.name): [dim if isinstance(dim, int) else dim.value for dim in output.shape or ()]
        for output in program.model.graph.outputs
    }


@pytest.mark.parametrize(("name", "first", "second"), [("anchors", "", "_1"), ("num_detections", "_1", "_2")])
def test_the_number_of_detections(name: str, first: str, second: str) -> None:
    program = fxonnx.export(Detector().eval(), (IMAGES,), dynamic_shapes={"images": {1: name}}, verify="auto")
    expected = {}
    for image, number in enumerate((first, second)):
        dim = f"num_detections{number}"
        expected |= {f"{image}.boxes": [dim, 4], f"{image}.scores": [dim], f"{image}.labels": [dim]}
    assert shapes(program) == expected
    other = torch.rand(2, 7, 5)
    for result, value in zip(program(other), [one for part in Detector()(other) for one in part.values()], strict=True):
        torch.testing.assert_close(result, value)


def test_names_of_the_user_come_first() -> None:
    axes = {"images": {1: "anchors"}, "boxes": {0: "found"}}
    program = fxonnx.torch_onnx_export(
        Detector().eval(), (IMAGES,), output_names=["boxes"], dynamic_axes=axes, dynamo=True
    )
    assert shapes(program)["boxes"] == ["found", 4]


def test_other_dims_have_a_line(tmp_path: Path) -> None:
    program = fxonnx.export(
        Selected().eval(), (IMAGES,), diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path)
    )
    assert shapes(program) == {"boxes": ["u0"]}
    (page,) = tmp_path.glob("*.md")
    for text in (page.read_text(), program._repr_html_()):
        assert "u0: aten.index.Tensor at " in text or "u0: aten.nonzero at " in text
        assert f"{Path(__file__).name}:" in text


@pytest.mark.parametrize(
    ("function", "dims"),
    [
        (lambda x: x[0, 0].nonzero().squeeze(), ["u0"]),
        (lambda x: x[0, 0].nonzero().squeeze(0), ["u0"]),
        (lambda x: torch.bincount(x[0, 0].long()).squeeze(-1), ["u0"]),
        (lambda x: x[0, 0].nonzero().squeeze(1), []),
        (lambda x: torch.cat([x[0, 0].nonzero(), x[0].long()[:2, :1]]).squeeze(), []),
        (lambda x: x[:1].squeeze(), []),
    ],
    ids=["all", "axis", "bincount", "other axis", "at least 2", "size of an input"],
)
def test_squeezes_of_data_dependent_dims_are_warned_about(function: Any, dims: list[str]) -> None:
    """torch.export keeps these dims, which eager torch removes at size 1."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        fxonnx.export(Function(function).eval(), (torch.rand(2, 10, 5) + 1,), dynamic_shapes=({2: "n"},))
    found = [str(one.message) for one in caught if "squeezes dims whose sizes depend on values" in str(one.message)]
    assert [line.split()[0] for message in found for line in message.splitlines()[1:-1]] == dims
    assert all(re.search(r" at \S+\.py:\d+\nhint: name the axis", one) for one in found)
