"""Functions that ``torch.jit.script`` compiled in the forward of a module, against the scripts at other sizes and values.

They run in their Python form, so that the capture rewrites their control flow, or are interpreted where an operator of
TorchScript has another result than Python's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import fxonnx

# mypy: disable-error-code="operator, arg-type"


def power(x: Tensor, n: int = 3) -> Tensor:
    return x * 2**n + torch.full((1,), 2**n)


def rounded(x: Tensor, a: float = 2.5) -> Tensor:
    return torch.full((2,), round(a)) + x.sum()


def longer_size(x: Tensor) -> Tensor:
    return x.reshape(x.shape[:-1] + [3, 1])  # noqa: RUF005


def equal_size(x: Tensor) -> Tensor:
    if x.shape[1:] == [3]:
        return x + 1
    return x - 1


def integer_as_float(x: Tensor, a: float = 2) -> Tensor:
    return torch.full((2,), a) + x.sum()


def inside_of_a_script(x: Tensor) -> Tensor:
    if torch.jit.is_scripting():
        return x + 1
    return x - 1


def branch(x: Tensor) -> Tensor:
    if bool(x.sum() > 0):
        return x * 2
    return x - 3


def halves(x: Tensor) -> tuple[Tensor, int]:
    steps = 0
    while bool((x.abs() > 0.1).any()) and steps < 20:
        x = x / 2
        steps += 1
    return x, steps


def positive_rows(x: Tensor) -> Tensor:
    """A number that data-dependent conditions count in a loop of dynamic length."""
    count = 0
    for i in range(x.shape[0]):
        count += int(x[i].sum() > 0)
    return x + count


def columns(x: Tensor) -> Tensor:
    """Keys of a dict that are made of numbers."""
    found: dict[str, Tensor] = {}
    for i in range(x.shape[1]):
        found[str(i)] = x[:, i]
    return torch.stack([found[name] for name in found.keys()])  # noqa: SIM118


def first_positive(x: Tensor) -> Tensor:
    """A return in a loop of dynamic length."""
    for i in range(x.shape[0]):
        if bool(x[i, 0] > 0.5):
            return x[i]
    return x[0] * 0


def decayed(x: Tensor) -> Tensor:
    total = torch.zeros(3)
    for i in range(x.shape[0]):
        total = total * 0.5 + x[i]
    return total


def appended(rows: list[Tensor]) -> Tensor:
    """A script works on a copy of a list that it receives."""
    rows.append(rows[0] * 2)
    return torch.stack(rows)


def appended_inside(rows: list[list[Tensor]]) -> Tensor:
    """A script copies the lists in a list as well."""
    rows[0].append(rows[0][0] * 2)
    return torch.stack(rows[0])


scripted_branch = torch.jit.script(branch)


def calls_of_scripts(x: Tensor) -> Tensor:
    y = scripted_branch(x)
    for i in range(x.shape[0]):
        y = y + scripted_branch(x[i])
    return y


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = torch.jit.script(function)

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class Lists(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.nested = function is appended_inside
        self.function = torch.jit.script(function)

    def forward(self, x: Tensor) -> Any:
        rows = [x, x + 1]
        given = [rows] if self.nested else rows
        return self.function(given), torch.stack(rows), len(rows)


FUNCTIONS = (
    power,
    rounded,
    longer_size,
    equal_size,
    integer_as_float,
    inside_of_a_script,
    branch,
    halves,
    positive_rows,
    columns,
    first_positive,
    decayed,
    appended,
    appended_inside,
    calls_of_scripts,
)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_scripted_function(function: Callable[..., Any]) -> None:
    model = (Lists if function in (appended, appended_inside) else Calls)(function).eval()
    program = fxonnx.export(model, (torch.rand(4, 3),), dynamic_shapes=({0: "n"},))
    assert not program.record.constraints
    for size in (1, 2, 4, 7):
        for offset in (-1.0, -0.5, 0.0, 0.3):
            x = torch.rand(size, 3) + offset
            expected = [torch.as_tensor(value) for value in tree_leaves(model(x))]
            torch.testing.assert_close(tree_leaves(program(x)), expected)
