"""Every ordinary model, statically and dynamically, in every file format."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from torch import nn

from . import attention, containers, functional, literals, losses, modules, networks, shapes, writes
from .harness import OPSETS, Row, check, check_example_of_ones, check_in_half_precision, rows_of

ROWS = tuple(rows_of(literals, writes, containers, shapes, functional, modules, networks, attention, losses))

NOT_IN_THE_TABLE: Mapping[str, str] = {
    **dict.fromkeys(
        ("Module", "Container", "RNNBase", "RNNCellBase"), "bases of other modules, which compute nothing themselves"
    ),
    "DataParallel": "distributes batches over GPUs; export its inner module instead",
    "CrossMapLRN2d": "an autograd function of Torch 7 that resizes tensors; LocalResponseNorm computes the same",
    "NLLLoss2d": "NLLLoss by an older name",
}
"""Modules of torch.nn without a row, and why; lazy ones are others after their first call."""


def test_every_module_of_torch_is_in_the_table() -> None:
    public = {
        name
        for name, value in vars(nn).items()
        if inspect.isclass(value) and issubclass(value, nn.Module) and not name.startswith("Lazy")
    }
    used = {type(module).__name__ for row in ROWS for module in row.model().modules()}
    assert sorted(public - used - set(NOT_IN_THE_TABLE)) == []
    assert sorted(used & set(NOT_IN_THE_TABLE)) == []


def test_names_are_unique() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names)) >= 200


def _rows() -> Iterator[object]:
    """The rows; every third one also at one of the other opsets in turn."""
    for number, row in enumerate(ROWS):
        opset = None if number % 3 else OPSETS[number // 3 % len(OPSETS)]
        yield pytest.param(row, opset, id=row.name, marks=row.marks)


@pytest.mark.parametrize(("row", "opset"), _rows())
def test_ordinary(row: Row, opset: int | None, tmp_path: Path) -> None:
    check(row, tmp_path, opset)


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROWS if row.half])
def test_half_precision(row: Row, tmp_path: Path) -> None:
    check_in_half_precision(row, tmp_path)


DYNAMIC = tuple(row for row in ROWS if row.dims and not row.marks and not row.constrained)


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in DYNAMIC[::8]])
def test_example_of_ones(row: Row) -> None:
    check_example_of_ones(row)
