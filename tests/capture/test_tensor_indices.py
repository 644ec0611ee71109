"""Indices that are integers in tensors, alone and in sequences: read, written, next to other indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor

import fxonnx

from ..functions import Function


def _assign(index: Callable[[Tensor], Any], value: Any = 5.0) -> Callable[[Tensor, Tensor], Tensor]:
    def assigned(x: Tensor, t: Tensor) -> Tensor:
        changed = x.clone()
        changed[index(t)] = value
        return changed

    return assigned


def _rows_and_columns(x: Tensor, t: Tensor) -> Tensor:
    """UDOP's: the rows of a matrix of indices, unzipped to two tuples of numbers."""
    rows, columns = zip(*torch.stack([t, t.flip(0)], -1), strict=True)
    inside = torch.full_like(x, True).bool()
    inside[rows, columns] = False
    return inside


CASES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "a number": lambda x, t: x[t[0]],
        "a number and a list": lambda x, t: x[t[0], [0, 1]],
        "a list and a number": lambda x, t: x[[0, 1], t[0]],
        "a number and a mask": lambda x, t: x[None].expand(4, -1, -1)[t[0], x > 0],
        "a mask and a number": lambda x, t: x[x[:, 0] > 0, t[0]],
        "a number, all and a list": lambda x, t: x[None].expand(4, -1, -1)[t[0], :, [0, 1]],
        "a list, an ellipsis and a number": lambda x, t: x[None].expand(4, -1, -1)[[0, 3], ..., t[0]],
        "a new axis, a number and a tensor": lambda x, t: x[None, t[0], t],
        "lists of numbers": lambda x, t: x[[t[0], t[1]], (t[1], 2)],
        "nested lists of numbers": lambda x, t: x[:, [[t[0]], [t[1]]]],
        "assignment to a row": _assign(lambda t: t[0]),
        "assignment to a column": _assign(lambda t: (slice(None), t[1])),
        "assignment to an element": _assign(lambda t: (t[0], t[1])),
        "assignment to the last axis": _assign(lambda t: (..., t[1]), torch.tensor(7.0)),
        "assignment to elements of a row": _assign(lambda t: (t[0], [t[0], 1])),
        "assignment to elements": _assign(lambda t: ([t[0], 3], t)),
        "assignment to unzipped rows and columns": _rows_and_columns,
    }
)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_indices(name: str, dynamic: bool) -> None:
    model = Function(CASES[name]).eval()
    torch.manual_seed(0)
    given = torch.randn(4, 3), torch.tensor([1, 2])
    shapes: Any = {"x": {0: "rows"}, "y": None} if dynamic else None
    program = fxonnx.export(model, given, dynamic_shapes=shapes, strict_shapes=True)
    for rows, numbers in ((4, (1, 2)), (4, (-1, 0)), (4, (2, -3)), *(((7, (0, -2)),) if dynamic else ())):
        x, t = torch.randn(rows, 3), torch.tensor(numbers)
        assert torch.equal(program(x, t)[0], model(x, t))


def _assign_by_bytes(x: Tensor) -> Tensor:
    changed = x.clone()
    changed[:, (x[0] > 0).byte()] += 1
    return changed


BYTES: Mapping[str, Callable[[Tensor], Any]] = MappingProxyType(
    {
        "a mask": lambda x: x[(x > 0).byte()],
        "a mask and a slice": lambda x: x[(x[:, 0] > 0).byte(), :1],
        "a mask without axes": lambda x: x[x.new_tensor(2, dtype=torch.uint8)],
        "assignment": _assign_by_bytes,
        "where": lambda x: torch.where((x > 0).byte(), x, -x),
        "where by name": lambda x: torch.where(condition=(x > 0).byte(), input=x, other=-x),
        "the method where": lambda x: x.where((x > 0).byte(), -x),
        "where with one argument": lambda x: torch.where((x > 0).byte()),
    }
)


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8", "ignore:where received a uint8 condition")
@pytest.mark.parametrize("name", BYTES)
def test_masks_of_bytes(name: str) -> None:
    model = Function(BYTES[name]).eval()
    program = fxonnx.export(model, (torch.randn(4, 3),), dynamic_shapes=({0: "n", 1: "m"},))
    for x in (torch.randn(4, 3), torch.randn(7, 5), -torch.ones(2, 2), torch.ones(1, 3)):
        for ours, theirs in zip(program(x), torch.utils._pytree.tree_leaves(model(x)), strict=True):
            assert torch.equal(ours, theirs)
