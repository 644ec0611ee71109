"""Loops of unknown length that append to lists in branches, and in loops inside of them, against eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxonnx
from fxonnx.errors import CaptureError


def both_branches(x: Tensor) -> Any:
    out = []
    for i in range(x.shape[0]):
        if x[i].sum() > 0:
            out.append(x[i])
        else:
            out.append(x[i] * 0)
    return torch.stack(out)


def three_branches(x: Tensor) -> Any:
    out = []
    for row in x:
        if row.sum() > 1:
            out.append(row)
        elif row.sum() < -1:
            out.append(-row)
        else:
            out.append(row * 0)
    return torch.stack(out)


def branches_in_branches(x: Tensor) -> Any:
    out = []
    for row in x:
        if row.sum() > 0:
            if row.max() > 1:
                out.append(row * 2)
            else:
                out.append(row * 3)
        else:
            out.append(row * 0)
    return torch.stack(out)


def before_the_branches(x: Tensor) -> Any:
    out = []
    for row in x:
        out.append(row + 1)
        if row.sum() > 0:
            out.append(row)
        else:
            out.append(row * 0)
    return torch.stack(out)


def last_item(x: Tensor) -> Any:
    out = [x[0]]
    for row in x:
        if row.sum() > 0:
            out.append(out[-1] + row)
        else:
            out.append(out[-1] * 0.5)
    return torch.stack(out)


def at_the_front(x: Tensor) -> Any:
    out: list[Tensor] = []
    for row in x:
        if row.sum() > 0:
            out.insert(0, row)
        else:
            out.insert(0, row * 0)
    return torch.stack(out)


def two_lists(x: Tensor) -> Any:
    rows, doubled = [], []
    for row in x:
        if row.sum() > 0:
            rows.append(row)
            doubled.append(row * 2)
        else:
            rows.append(row * 0)
            doubled.append(row * 3)
    return torch.stack(rows), torch.stack(doubled)


def continued(x: Tensor) -> Any:
    out = []
    for row in x:
        if row.sum() > 0:
            out.append(row)
            continue
        out.append(row * 0)
    return torch.stack(out)


def counted_by_hand(x: Tensor) -> Any:
    out, i = [], 0
    while i < x.shape[0]:
        if x[i].max() > 1:
            out.append(x[i])
        else:
            out.append(x[i] + 1)
        i += 1
    return torch.cat(out)


def inner_loop(x: Tensor) -> Any:
    out = []
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out.append(x[i, j] * 2)  # noqa: PERF401 - the loop is the case
    return torch.stack(out)


FUNCTIONS = (
    *(both_branches, three_branches, branches_in_branches, before_the_branches, last_item, at_the_front, two_lists),
    *(continued, counted_by_hand, inner_loop),
)


class Model(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_lists_match_eager_torch(function: Callable[[Tensor], Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    program = fxonnx.export(Model(function), (torch.randn(3, 5, generator=generator),), dynamic_shapes=({0: "rows"},))
    for rows in (1, 2, 4, 7):
        x = torch.randn(rows, 5, generator=generator)
        expected = function(x)
        torch.testing.assert_close(program(x), expected if isinstance(expected, tuple) else (expected,))


def both_ends(x: Tensor) -> Any:
    out = []
    for row in x:
        if row.sum() > 0:
            out.append(row)
        else:
            out.insert(0, row)
    return torch.stack(out)


def unknown_number_of_items(x: Tensor) -> Any:
    out = []
    for i in range(x.shape[0]):
        for j in range(x.shape[0]):
            out.append(x[i] * x[j])  # noqa: PERF401 - the loop is the case
    return torch.stack(out)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (both_ends, "adds items to both ends of a list"),
        (unknown_number_of_items, "out is of type list before the loop and of type StackedList after an iteration"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_other_lists_are_refused(function: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        fxonnx.export(Model(function), (torch.ones(3, 5),), dynamic_shapes=({0: "rows"},))
