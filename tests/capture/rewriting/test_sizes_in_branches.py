"""Sizes that depend on values, inside a branch or a loop: their uses there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from .cases import SHAPES, check, signs


def filled(x: torch.Tensor) -> torch.Tensor:
    """A constant is written into some columns of the rows, which are a size of values."""
    y = torch.zeros_like(x)
    if (x > 0).any():
        part = x[x > 0][:, None] * torch.arange(3.0)
        part[..., -1] = 1.0
        y[x > 0] = part.sum(-1)
    return y


def padded(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(3)
    if (x > 0).any():
        rows = x[x[:, 0] > 0]
        total = total + torch.cat([rows, rows.new_ones(rows.shape[0], 3)]).sum(0)
    return total


def counted(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    if (x > 0).any():
        total = total + (x > 0).nonzero().shape[0]
    return total


def numbered(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    if (x > 0).any():
        chosen = torch.masked_select(x, x > 0)
        total = total + (chosen * torch.arange(chosen.shape[0])).sum()
    return total


def repeated(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(3)
    if (x > 0).any():
        several = x.repeat_interleave((x[:, 0] > 0).long() + 1, dim=0)
        total = total + (several + torch.ones(several.shape[0], 1)).mean(0)
    return total


def distinct(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    if (x > 0).any():
        values = x.unique()
        total = total + (values * torch.zeros(values.shape[0]).add(2)).sum()
    return total


@pytest.mark.parametrize("shapes", SHAPES, ids=["static", "dynamic"])
@pytest.mark.parametrize("function", [filled, padded, counted, numbered, repeated, distinct])
def test_sizes_of_values(function: Callable[..., torch.Tensor], shapes: object) -> None:
    check(function, signs, shapes, (4, 7))


def numbers(rows: int) -> list[tuple[torch.Tensor, ...]]:
    """Inputs whose second one is a size; the first two are small, for which the branches with zeros run."""
    x = torch.arange(1.0, rows + 1)
    return [(sign * x, torch.tensor(number)) for number in (2, 1, 0, 3, 4, 5, 6) for sign in (1, -1)]


def matrix(x: torch.Tensor, columns: Any, rows: Any = 2) -> torch.Tensor:
    return x[:1].expand(rows, columns).contiguous()


def requires_less(x: torch.Tensor, number: torch.Tensor) -> Any:
    z = matrix(x, int(number))
    rows, columns = z.size()
    first = z[:, :3].sum() if columns >= 3 else torch.cat([z, z.new_full((rows, 3 - columns), 0.5)], 1).sum()
    return first, z[:, :3].contiguous()


def requires_equal(x: torch.Tensor, number: torch.Tensor) -> Any:
    n = int(number)
    z = matrix(x, n)
    product = z @ x.new_ones(3) if n == 3 else z.sum(1)
    return product, z[:, :3].contiguous(), z.sum() * n


def requires_less_inside(x: torch.Tensor, number: torch.Tensor) -> Any:
    n = int(number)
    z = matrix(x, n)
    if n > 2:
        if n > 5:
            total = z[:, :5].sum(1) + z[:, 5:].sum(1)
        else:
            total = torch.cat([z, z.new_full((2, 5 - n), 0.25)], 1)[:, :5].sum(1)
    else:
        total = torch.cat([z, z.new_full((2, 2 - n), 0.25)], 1)[:, :2].sum(1)
    return total, z[:, :2].sum(), z[:, :5].sum()


def requires_less_in_a_loop(x: torch.Tensor, number: torch.Tensor) -> Any:
    n = int(number)
    total, count = x.new_zeros(()), 0
    while count < 3 - n:
        total = total + x.new_full((2, 3 - n), 0.5).sum()
        count = count + 1
    return total, matrix(x, n)[:, :3].contiguous()


@pytest.mark.parametrize(
    "function", [requires_less, requires_equal, requires_less_inside, requires_less_in_a_loop], ids=lambda f: f.__name__
)
def test_what_a_branch_requires_of_a_size_holds_only_there(function: Callable[..., Any]) -> None:
    check(function, numbers, {"x": {0: "n"}}, (4, 7))


def above_zero(rows: int) -> list[tuple[torch.Tensor, ...]]:
    """The inputs without a size of 0, for which reshapes need opset 14."""
    return [(x, number) for x, number in numbers(rows) if number]


def cut_or_padded(x: torch.Tensor, number: torch.Tensor) -> Any:
    z = matrix(x, int(number), int(number) + 1)
    rows, columns = z.shape
    z = z[:, :3].contiguous() if columns >= 3 else torch.cat([z, z.new_full((rows, 2), 0.5)], 1)
    return z, z.sum(1), z.T


def cut_or_padded_part(x: torch.Tensor, number: torch.Tensor) -> Any:
    """A part of rows whose layout has no size that is a value."""
    z = x[:, None].expand(-1, 6).cumsum(1)[:, : int(number)]
    z = z[:, :3] if z.shape[1] > 3 else torch.cat([z, z.new_full((x.shape[0], 1), 0.5)], 1)
    return z, z.sum(1)


def longer_or_wider(x: torch.Tensor, number: torch.Tensor) -> Any:
    n = int(number)
    z = matrix(x, n)
    z = torch.cat([z, z * 2]) if n > 2 else torch.cat([z, z, z], 1)
    return z, z.T + 1


def of_one_shape(x: torch.Tensor, number: torch.Tensor) -> Any:
    n = int(number)
    z = x[:1].expand(n + 1, n, 2).contiguous()
    y = z + 1 if x.sum() > 0 else z.flip(1) * 2
    return y.sum(0), y


def transposed(x: torch.Tensor, number: torch.Tensor) -> Any:
    n = int(number)
    z = matrix(x, n, n) * torch.arange(n)
    y = z.t() if x.sum() > 0 else z + 1
    return y.sum(0), y.reshape(-1), y


@pytest.mark.parametrize(
    "function", [cut_or_padded, cut_or_padded_part, longer_or_wider, of_one_shape, transposed], ids=lambda f: f.__name__
)
def test_branches_with_several_axes_whose_sizes_are_values(function: Callable[..., Any]) -> None:
    check(function, above_zero, {"x": {0: "n"}}, (4, 7))


def split_last(x: torch.Tensor, number: torch.Tensor) -> Any:
    n = int(number)
    z = x[:1].expand(n + 1, 2, n, 4) * torch.arange(4.0)
    rows, columns = z.shape[0], z.shape[2]
    y = z.transpose(1, 2)
    return y.reshape(rows, columns, -1), z.view((rows, -1, columns)), torch.reshape(y, (columns, rows, 4, -1))


def test_the_last_size_where_others_are_values() -> None:
    check(split_last, above_zero, {"x": {0: "n"}}, (4, 7))
