"""Lists to which only one branch of a condition appends, and comprehensions with a condition, against eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fxonnx
from fxonnx.errors import CaptureError

from ...functions import Function

# The loops are the cases, not the comprehensions in their place.
# ruff: noqa: PERF401


def appended(x: Tensor) -> Any:
    out = [x[0]]
    for row in x:
        if row.sum() > 0:
            out.append(row)
    return torch.stack(out), len(out)


def empty_or_not(x: Tensor) -> Any:
    out = []
    for i in range(x.shape[0]):
        if x[i].sum() > 0:
            out.append(x[i] * 2)
    if len(out) == 0:
        return x[:0]
    return torch.stack(out)


def continued(x: Tensor) -> Any:
    out = [x[0]]
    for row in x:
        if row.sum() < 0:
            continue
        out.append(row)
    return torch.cat(out)


def ended(x: Tensor) -> Any:
    out = [x[0]]
    for row in x:
        if row.sum() < -1:
            break
        out.append(row)
    return torch.stack(out)


def branches_in_branches(x: Tensor) -> Any:
    out = [x[0]]
    for row in x:
        if row.sum() > 0:
            if row[0] > 0:
                out.append(row)
        else:
            out.append(-row)
            out.append(row * 0)
    return torch.stack(out)


def at_the_front(x: Tensor) -> Any:
    out = [x[0]]
    for row in x:
        if row.sum() > 0:
            out.insert(0, row)
    return torch.stack(out)


def every_second(x: Tensor) -> Any:
    out = []
    for i in range(x.shape[0]):
        if i % 2 == 0:
            out.append(x[i])
    return torch.stack(out)


def larger_than_the_last(x: Tensor) -> Any:
    out = [x[0]]
    for row in x:
        if row.sum() > out[-1].sum():
            out.append(row)
    return torch.stack(out)


def two_lists(x: Tensor) -> Any:
    above, below = [x[0]], [x[0]]
    for row in x:
        if row.sum() > 0:
            above.append(row)
        else:
            below.append(row)
    return torch.stack(above).sum(0), torch.cat(below), len(above) - len(below)


def indices(x: Tensor) -> Any:
    kept = [torch.tensor(0)]
    for i in range(x.shape[0]):
        if x[i, 0] > 0:
            kept.append(torch.tensor(i))
    return x[torch.stack(kept)]


def far_from_all(x: Tensor) -> Any:
    """Suppression of the rows that are near one which is kept: the list is read in the loop, of static length."""
    kept = [x[0]]
    for i in range(1, 4):
        if (torch.stack(kept) - x[i % x.shape[0]]).abs().sum(1).min() > 1:
            kept.append(x[i % x.shape[0]])
    return torch.stack(kept)


def extended(x: Tensor) -> Any:
    out = [x[0]]
    for row in x:
        if row.sum() > 0:
            out.extend([row, row * 2])
        else:
            out += [row * 3]
    return torch.stack(out)


def used_after_the_loop(x: Tensor) -> Any:
    out = [x[0]]
    for row in x:
        if row.sum() > 0:
            out.append(row)
    out.append(x[-1] * 7)
    out.reverse()
    total = torch.zeros(5)
    for row in out:
        total = total * 0.5 + row
    return out[0], out[-1], total


def without_a_loop(x: Tensor) -> Any:
    rows = [x[0]]
    if x.sum() > 0:
        rows.append(x[-1])
    return torch.stack(rows)


def comprehension(x: Tensor) -> Any:
    return torch.stack([x[0]] + [row * 2 for row in x if row.sum() > 0])


def two_conditions(x: Tensor) -> Any:
    return torch.stack([x[0]] + [row * i for i, row in enumerate(x) if row.sum() > 0 if row[0] > 0])


def empty_comprehension(x: Tensor) -> Any:
    kept = [row for row in x if row.sum() > 0]
    if not kept:
        return x[:0]
    return torch.stack(kept)


def comprehension_of_a_range(x: Tensor) -> Any:
    return torch.stack([x[i] for i in range(x.shape[0]) if i % 2 == 0])


def summed_with_a_start(x: Tensor) -> Any:
    return sum((row for row in x if row.sum() > 0), torch.zeros(5))


FUNCTIONS = (
    *(appended, empty_or_not, continued, ended, branches_in_branches, at_the_front, every_second),
    *(larger_than_the_last, two_lists, indices, far_from_all, extended, used_after_the_loop, without_a_loop),
    *(comprehension, two_conditions, empty_comprehension, comprehension_of_a_range, summed_with_a_start),
)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_filtered_lists_match_eager_torch(function: Callable[[Tensor], Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    program = fxonnx.export(
        Function(function), (torch.randn(4, 5, generator=generator),), dynamic_shapes=({0: "rows"},)
    )
    for rows in (1, 2, 4, 7):
        for offset in (-1.0, 0.0, 1.0):
            x = torch.randn(rows, 5, generator=generator) + offset
            expected = function(x)
            expected = expected if isinstance(expected, tuple) else (expected,)
            for ours, theirs in zip(program(x), expected, strict=True):
                torch.testing.assert_close(ours, torch.as_tensor(theirs))


@pytest.mark.parametrize("offset", [-9.0, 9.0])
@pytest.mark.parametrize("function", [appended, comprehension, without_a_loop], ids=lambda function: function.__name__)
def test_the_example_keeps_none_or_all(function: Callable[[Tensor], Any], offset: float) -> None:
    program = fxonnx.export(Function(function), (torch.rand(4, 5) + offset,))
    for other in (-9.0, 0.0, 9.0):
        x = torch.rand(4, 5) + other
        expected = function(x)
        torch.testing.assert_close(program(x)[0], expected[0] if isinstance(expected, tuple) else expected)


def another_name(x: Tensor) -> Any:
    out = [x[0]]
    same = out
    for row in x:
        if row.sum() > 0:
            out.append(row)
    return torch.stack(same)


def another_function(x: Tensor) -> Any:
    out = [x[0]]

    def add(row: Tensor) -> None:
        if row.sum() > 0:
            out.append(row)

    add(x[0])
    add(x[1])
    return torch.stack(out)


def written_later(x: Tensor) -> Any:
    x = x.clone()
    out = [x[0]]
    for row in x:
        if row.sum() > 0:
            out.append(row)
    x.mul_(2)
    return torch.stack(out)


def read_in_the_loop(x: Tensor) -> Any:
    kept = [x[0]]
    for row in x:
        if (torch.stack(kept) - row).abs().min() > 1:
            kept.append(row)
    return torch.stack(kept)


def numbers(x: Tensor) -> Any:
    kept = []
    for i in range(x.shape[0]):
        if x[i, 0] > 0:
            kept.append(i)
    return x[kept]


def summed(x: Tensor) -> Any:
    return x.sum() + sum(row for row in x if row.sum() > 0)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (another_name, r"out has a different number of items in each branch, and another name, function or condition"),
        (
            another_function,
            r"another name, function or condition refers to it(?s:.*)hint: refer to the list as out only",
        ),
        (written_later, "a tensor that shares memory with another one is written in place"),
        (read_in_the_loop, "a list that a loop of unknown length appends to is read inside the loop"),
        (numbers, "kept has a different number of items in each branch, 1 and 0"),
        (summed, r"without items the result is a number(?s:.*)hint: use torch.stack\(items\).sum\(0\)"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("offset", [-9.0, 9.0])
def test_other_lists_are_refused(function: Callable[[Tensor], Any], message: str, offset: float) -> None:
    with pytest.raises(CaptureError, match=message):
        fxonnx.export(Function(function), (torch.rand(3, 5) + offset,), dynamic_shapes=({0: "rows"},))
