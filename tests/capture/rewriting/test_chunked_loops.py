"""Loops over the chunks of a dynamic dim, the last of which may be smaller, against eager torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import fxonnx
from fxonnx.errors import CaptureError

from ...functions import Function

# The loops are the cases, not the comprehensions in their place.
# ruff: noqa: PERF401

STEP = 4
SIZES = (1, 3, 4, 5, 8, 9, 10, 23)


def distances(x: Tensor) -> Any:
    found = []
    for start in range(0, len(x), STEP):
        found.append(torch.cdist(x[start : start + STEP], x).topk(1, largest=False).values)
    return torch.cat(found)


def two_lists(x: Tensor) -> Any:
    values, places = [], []
    for start in range(0, x.shape[0], STEP):
        found = (x[start : start + STEP, None] - x).abs().sum(-1).max(1)
        values.append(found.values)
        places.append(found.indices)
    return torch.cat(values, 0), torch.concat(places, dim=-1), len(values)


def second_function(x: Tensor) -> Any:
    return normalized(x, x * 2, step=3)


def normalized(x: Tensor, y: Tensor, step: int) -> Tensor:
    outs = []
    for i in range(0, x.size(0), step):
        outs.append(F.softmax(x[i : i + step] @ y.T, -1) @ y)
    return torch.cat(outs).view(x.shape[0], 1, -1) + x[:, None]


def end_of_each(x: Tensor) -> Any:
    n, outs = x.shape[0], []
    for i in range(0, n, STEP):
        end = min(i + STEP, n)
        outs.append(x[i:end].cumsum(0) > 1)
    return torch.concatenate(outs)


def several_items(x: Tensor) -> Any:
    outs = [x[:1]]
    for i in range(0, x.shape[0], STEP):
        outs += [x[i : i + STEP], torch.ones(2, 3), -x[i : i + STEP]]
    return torch.cat(outs), len(outs)


def second_start(x: Tensor) -> Any:
    outs = [x[:1] * 3]
    for i in range(1, x.shape[0], STEP):
        outs.append(x[i : i + STEP] * i)
    return torch.cat(outs)


def single_rows(x: Tensor) -> Any:
    outs = []
    for i in range(x.shape[0] - 1, -1, -1):
        outs.append(x[i : i + 1])
    return torch.cat(outs)


def counted(x: Tensor) -> Any:
    i, outs = 0, []
    while i < x.shape[0]:
        outs.append(x[i : i + STEP].softmax(0))
        i += STEP
    return torch.cat(outs)


def numbers_of_chunks(x: Tensor) -> Any:
    outs = []
    for i in range((x.shape[0] + STEP - 1) // STEP):
        outs.append(x[i * STEP : (i + 1) * STEP].mean(0) - x[i * STEP : (i + 1) * STEP])
    return torch.cat(outs)


def carried(x: Tensor) -> Any:
    outs, total = [], torch.zeros(3)
    for i, start in enumerate(range(0, x.shape[0], STEP)):
        outs.append(x[start : start + STEP] + total * i)
        total = total * 0.5 + x[start : start + STEP].sum(0)
    return torch.cat(outs), total


def columns(x: Tensor) -> Any:
    x, outs = x.T, []
    for i in range(0, x.shape[1], STEP):
        outs.append(x[:, i : i + STEP].flip(1)[None])
    return torch.cat(outs, -1) + torch.cat(list(outs), 2)


def flattened(x: Tensor) -> Any:
    outs = []
    for i in range(0, x.shape[0], STEP):
        outs.append(x[i : i + STEP].flatten())
    return torch.cat(outs)


def sizes_of_chunks(x: Tensor) -> Any:
    outs = []
    for i in range(0, x.shape[0], STEP):
        chunk = x[i : i + STEP]
        outs.append(chunk[:, :, None].expand(-1, -1, 2).reshape(chunk.shape[0], -1) + torch.arange(len(chunk))[:, None])
    return torch.cat(outs)


def comprehension(x: Tensor) -> Any:
    return torch.cat([x[i : i + STEP].flip(0) for i in range(0, x.shape[0], STEP)])


def split(x: Tensor) -> Any:
    outs = []
    for piece in x.split(STEP):
        outs.append(piece.flip(0))
    return torch.cat(outs)


def split_columns(x: Tensor) -> Any:
    total = torch.zeros(3)
    for i, piece in enumerate(torch.split(x.T, STEP, dim=1)):
        total = total * 0.5 + piece.amax(1) * i
    return total


def split_pairs(x: Tensor) -> Any:
    return torch.cat([a.cumsum(0) + b for a, b in zip(x.split(STEP), x.exp().split(split_size=STEP))])  # noqa: B905


def split_before(x: Tensor) -> Any:
    pieces, halves, outs = x.split(STEP), x.split(2), []
    nones = (None,) * len(pieces)
    for number, (piece, none) in enumerate(zip(pieces, nones, strict=False)):
        totals = []
        for half in halves:
            totals.append(half.sum(-1).amax() * (number + 1) if none is None else half.sum())
        outs.append(piece * torch.stack(totals).sum())
    return torch.cat(outs), len(halves)


def split_by_choice(x: Tensor) -> Any:
    pieces = x.split(3) if x.dtype == torch.float32 else x.split(2)
    return torch.cat([piece - piece.amax() for piece in pieces])


def split_and_read_again(x: Tensor) -> Any:
    pieces, outs = x.split(1), []
    for piece in pieces:
        outs.append(piece * pieces[0])
    return torch.cat(outs)


def split_and_extended(x: Tensor) -> Any:
    pieces = x.split(1)
    pieces += (x[:1] * 2,)
    return torch.cat([piece * 2 for piece in pieces])


def split_and_written(x: Tensor) -> Any:
    y = x.clone()
    for piece in y.split(STEP):
        piece.sub_(piece.mean(0))
    return y


def items_in_a_second_loop(x: Tensor) -> Any:
    outs = []
    for i in range(0, x.shape[0], STEP):
        outs.append(x[i : i + STEP] * i)
    return torch.stack([chunk.sum(0) for chunk in outs])


def in_a_branch(x: Tensor) -> Any:
    if x.sum() > 15:
        outs = []
        for i in range(0, x.shape[0], STEP):
            outs.append(x[i : i + STEP].flip(0))
        return torch.cat(outs)
    return -x


def in_a_loop(x: Tensor) -> Any:
    total = torch.zeros_like(x)
    for row in x:
        outs = []
        for i in range(0, x.shape[0], STEP):
            outs.append((x[i : i + STEP] - row).softmax(0))
        total = total + torch.cat(outs)
    return total


def joined_twice(x: Tensor) -> Any:
    outs = []
    for i in range(0, x.shape[0], STEP):
        outs.append(x[i : i + STEP] * 2)
    first, second = torch.cat(outs), torch.cat(outs)
    first.mul_(3)
    return first, second


class Blocks(nn.Module):
    """Layers of a chunk, whose number of rows is an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 5
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.out = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.GELU())

    def encode(self, chunk: Tensor) -> Tensor:
        rows = chunk.repeat(1, 4).view(chunk.shape[0], 2, 6)
        return self.out(self.attention(rows, rows, rows)[0]).flatten(1)

    def forward(self, x: Tensor) -> Any:
        outs = []
        for i in range(0, len(x), self.rows):
            outs.append(self.encode(x[i : i + self.rows]))
        return torch.cat(outs, dim=0)


FUNCTIONS = (
    *(distances, two_lists, second_function, end_of_each, several_items, second_start, single_rows, counted),
    *(numbers_of_chunks, carried, columns, flattened, sizes_of_chunks, comprehension, split, split_columns),
    *(split_before, split_by_choice, split_and_read_again, split_and_extended),
    *(split_pairs, split_and_written, items_in_a_second_loop, in_a_branch, in_a_loop, joined_twice),
)


@pytest.mark.parametrize(
    "model", [*map(Function, FUNCTIONS), Blocks()], ids=[*(f.__name__ for f in FUNCTIONS), "Blocks"]
)
def test_chunks_match_eager_torch(model: nn.Module, tmp_path: Path) -> None:
    model.eval()
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(10, 3, generator=generator)
    program = fxonnx.export(model, (x,), tmp_path / "model.onnx", dynamic_shapes=({0: "n"},))
    assert not program.record.constraints
    assert program.record.rewrites
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for size in SIZES:
        x = torch.rand(size, 3, generator=generator)
        with torch.no_grad():
            expected = pytree.tree_leaves(model(x))
        results = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        for result, value in zip(results, expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(result), torch.as_tensor(value), rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("rows", [3, 4, 12])
def test_the_model_does_not_depend_on_the_example(rows: int) -> None:
    program = fxonnx.export(Function(counted), (torch.rand(rows, 3),), dynamic_shapes=({0: "n"},))
    assert not program.record.constraints
    x = torch.rand(7, 3)
    torch.testing.assert_close(program(x)[0], counted(x))
    assert [str(value.shape) for value in program.model.graph.outputs] == ["[n,3]"]


def overlapping(x: Tensor) -> Any:
    outs = []
    for i in range(0, x.shape[0], 2):
        outs.append(x[i : i + STEP])
    return torch.cat(outs)


def growing(x: Tensor) -> Any:
    outs = []
    for i in range(x.shape[0]):
        outs.append(x[: i + 1])
    return torch.cat(outs)


def masked(x: Tensor) -> Any:
    outs = []
    for i in range(0, x.shape[0], STEP):
        chunk = x[i : i + STEP]
        outs.append(chunk[chunk[:, 0] > 0.5])
    return torch.cat(outs)


def at_the_front(x: Tensor) -> Any:
    outs = []
    for i in range(0, x.shape[0], STEP):
        outs.insert(0, x[i : i + STEP])
    return torch.cat(outs)


def filtered(x: Tensor) -> Any:
    outs = [x[:1]]
    for i in range(0, x.shape[0], STEP):
        if x[i].sum() > 1:
            outs.append(x[i : i + STEP])
    return torch.cat(outs)


def ended(x: Tensor) -> Any:
    outs = []
    for i in range(0, x.shape[0], STEP):
        outs.append(x[i : i + STEP])
        if x[i].sum() > 2:
            break
    return torch.cat(outs)


def single(x: Tensor) -> Any:
    outs = []
    for i in range(0, x.shape[0], STEP):
        outs.append(x[i : i + STEP])
    return outs[-1]


def appended_later(x: Tensor) -> Any:
    outs = []
    for i in range(0, x.shape[0], STEP):
        outs.append(x[i : i + STEP])
    outs.append(x[:1])
    return torch.cat(outs)


def stacked(x: Tensor) -> Any:
    outs = []
    for i in range(0, x.shape[0], 5):
        outs.append(x[i : i + 5])
    return torch.stack(outs)


def returned(x: Tensor) -> Any:
    outs = []
    for i in range(0, x.shape[0], STEP):
        outs.append(x[i : i + STEP])
    return outs


def written_later(x: Tensor) -> Any:
    x, outs = x.clone(), []
    for i in range(0, x.shape[0], STEP):
        outs.append(x[i : i + STEP])
    x.mul_(2)
    return torch.cat(outs)


SHAPES = r"the items that it adds to outs differ in their shape(?s:.*)hint: append tensors of one shape"
READ = r"its last item may be smaller than the others(?s:.*)hint: join it with torch.cat\(items, 0\)"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        *((function, SHAPES) for function in (overlapping, growing, masked, at_the_front, filtered, ended)),
        *((function, READ) for function in (single, appended_later, stacked, returned)),
        (written_later, "a tensor that shares memory with another one is written in place"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_other_lists_are_refused(function: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        fxonnx.export(Function(function), (torch.rand(10, 3),), dynamic_shapes=({0: "n"},))
