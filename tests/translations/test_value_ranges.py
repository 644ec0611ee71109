"""Value range analysis: masks that are constant for all sizes are folded, and the results are right."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import fxonnx
from tests.functions import Function

X, AXES = torch.randn(2, 3, 4), {0: "batch", 1: "length"}


def kinds(program: fxonnx.ONNXProgram) -> list[str]:
    return [node.op_type for node in program.model.graph]


def causal(x: Tensor) -> Tensor:
    """The mask of a decoder, with the search for packed sequences that transformers does."""
    batch, length = x.shape[:2]
    positions = torch.arange(length)[None].expand(batch, -1)
    starts = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1
    sequence = starts.cumsum(-1)
    rows, queries, keys = torch.arange(batch)[:, None, None], torch.arange(length)[:, None], torch.arange(length)
    same = sequence[rows, queries] == sequence[rows, keys]
    mask = (positions[rows, keys] <= positions[rows, queries]) & same
    return sdpa(x[:, None], x[:, None], x[:, None], mask[:, None])


def last_token(x: Tensor) -> Tensor:
    """The last token sees all that came before it."""
    length = x.shape[1]
    mask = torch.arange(length)[None, None, None] <= torch.arange(1)[:, None] + length - 1
    return sdpa(x[:, None, -1:], x[:, None], x[:, None], mask)


def inside(x: Tensor) -> Tensor:
    return torch.where((torch.arange(x.shape[1]) < x.shape[1])[:, None], x, 0.0)


def identity(x: Tensor) -> Tensor:
    return x[:, torch.arange(x.shape[1])].relu()


@pytest.mark.parametrize(
    ("function", "absent"),
    [
        (causal, {"CumSum", "Equal", "And", "Gather", "ReduceMax", "Expand", "Not"}),
        (last_token, {"LessOrEqual", "Range", "Add", "ReduceMax"}),
        (inside, {"Less", "Range"}),
        (identity, {"Gather", "Range"}),
    ],
)
@pytest.mark.parametrize("opset", [13, 20, 23])
def test_known_masks_are_folded(function: Callable[[Tensor], Tensor], absent: set[str], opset: int) -> None:
    program = fxonnx.export(Function(function), (X,), dynamic_shapes=(AXES,), opset_version=opset, verify="auto")
    assert not absent.intersection(kinds(program))


def shifted(x: Tensor) -> Tensor:
    """A mask of positions with fully masked rows."""
    length = x.shape[1]
    mask = torch.arange(length)[None] + 1 <= torch.arange(length)[:, None]
    return sdpa(x[:, None], x[:, None], x[:, None], mask)


def strict(x: Tensor) -> Tensor:
    length = x.shape[1]
    return sdpa(x[:, None], x[:, None], x[:, None], torch.arange(length)[None] < torch.arange(length)[:, None])


def descending(x: Tensor) -> Tensor:
    length = x.shape[1]
    return x[:, length - 1 - torch.arange(length)]


def half(x: Tensor) -> Tensor:
    return torch.where((torch.arange(x.shape[1]) * 2 < x.shape[1])[:, None], x, 0.0)


def wrapped(x: Tensor) -> Tensor:
    return torch.where(((torch.arange(x.shape[1]) - 1).to(torch.uint8) < 9)[:, None], x, 0.0)


@pytest.mark.parametrize("function", [shifted, strict, descending, half, wrapped])
@pytest.mark.parametrize("opset", [20, 23])
def test_similar_masks_are_not_folded(function: Callable[[Tensor], Tensor], opset: int) -> None:
    fxonnx.export(Function(function), (X,), dynamic_shapes=(AXES,), opset_version=opset, verify="auto")


def _random(seed: int) -> Callable[[Tensor], Any]:
    def function(x: Tensor) -> Any:
        generator = random.Random(seed)
        batch, length = x.shape[:2]
        row, column = torch.arange(length)[None].expand(batch, length), torch.arange(batch)[:, None]
        numbers = [row, column, row - 1, column + length, torch.zeros(batch, length, dtype=torch.int64)]
        masks = [row < length, column <= row]
        for _ in range(10):
            a, b, m, n = *generator.choices(numbers, k=2), *generator.choices(masks, k=2)
            kind = generator.randrange(9)
            if kind == 0:
                numbers.append(a + b)
            elif kind == 1:
                numbers.append(a - b)
            elif kind == 2:
                numbers.append(torch.broadcast_to(m, (batch, length)).long().cumsum(generator.randrange(2)))
            elif kind == 3:
                numbers.append(
                    torch.broadcast_to(a, (batch, length))[torch.arange(batch)[:, None], torch.arange(length)]
                )
            elif kind == 4:
                masks.append(generator.choice([torch.le, torch.lt, torch.ge, torch.gt, torch.eq, torch.ne])(a, b))
            elif kind == 5:
                masks.append(m & n)
            elif kind == 6:
                masks.append(m | n)
            elif kind == 7:
                masks.append(~m)
            else:
                numbers.append(torch.where(m, a, b))
        return numbers[-1], masks[-1], torch.where(torch.broadcast_to(masks[-2], (batch, length))[..., None], x, 0.0)

    return function


@pytest.mark.parametrize("seed", range(40))
def test_random_positions_compute_the_same(seed: int) -> None:
    fxonnx.export(Function(_random(seed)), (X,), dynamic_shapes=(AXES,), verify="auto")


class Biased(torch.nn.Module):
    """Attention with a bias for each pair: a parameter, or a buffer that may mask everything."""

    def __init__(self, is_buffer: bool) -> None:
        super().__init__()
        hidden = torch.full((3,), torch.finfo(torch.float32).min)
        bias = torch.stack([torch.zeros(3), hidden, torch.tensor([0.0, -torch.inf, 1.0])])
        if is_buffer:
            self.register_buffer("bias", torch.cat([bias, torch.full((1, 3), -torch.inf)]))
        else:
            self.bias = torch.nn.Parameter(torch.randn(4, 3))

    def forward(self, x: Tensor, order: Tensor) -> Tensor:
        return sdpa(x[:, None], x[:, None, :3], x[:, None, :3], self.bias[order][None, None])


@pytest.mark.parametrize("opset", [20, 23])
def test_only_parameters_are_assumed_to_be_finite(opset: int) -> None:
    args = (torch.randn(2, 4, 4), torch.tensor([3, 1, 0, 2]))
    program = fxonnx.export(Biased(is_buffer=False), args, opset_version=opset, verify=True)
    assert not {"ReduceMax", "Where", "Equal"}.intersection(kinds(program))
    program = fxonnx.export(Biased(is_buffer=True), args, opset_version=opset, verify=True)
    assert "Where" in kinds(program)


class Relative(torch.nn.Module):
    """Attention with a bias for each distance, which the export computes; ``hide`` masks the pairs of one distance."""

    def __init__(self, *, hide: bool) -> None:
        super().__init__()
        self.hide, self.table = hide, torch.nn.Parameter(torch.randn(7, 2))
        self.register_buffer("distances", torch.arange(4)[:, None] - torch.arange(4) + 3)

    def forward(self, x: Tensor) -> Tensor:
        bias = self.table[self.distances.view(-1)].view(4, 4, 2).permute(2, 0, 1)
        if self.hide:
            bias = bias.masked_fill(self.distances >= 0, -torch.inf)
        return sdpa(x, x, x, bias[None])


@pytest.mark.parametrize("hide", [False, True])
def test_indices_of_a_parameter_mask_nothing(hide: bool) -> None:
    x = torch.randn(2, 2, 4, 8)
    program = fxonnx.export(Relative(hide=hide), (x,), opset_version=20, verify=True)
    assert ("Where" in kinds(program)) == hide
