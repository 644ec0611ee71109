"""Sizes that depend on values, inside a branch or a loop: their uses there."""

from __future__ import annotations

from collections.abc import Callable

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
