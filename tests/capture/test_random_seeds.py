"""``torch.manual_seed`` in forward: the random numbers that follow are the same in every run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import pytest
import torch
from torch import Tensor

import fxonnx

from ..functions import Function


def _seeded(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        torch.manual_seed(7)
        return function(x)

    return forward


def _written(x: Tensor) -> Tensor:
    noise = torch.randn(3)
    noise *= 2
    noise[0] = 5
    return x + noise


def _seeded_again(x: Tensor) -> Tensor:
    first = torch.rand(3)
    torch.manual_seed(8)
    return x * first + torch.rand(3)


CASES: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "randn": lambda x: x @ torch.randn((3, 4), device=x.device, dtype=x.dtype),
        "rand": lambda x: x + torch.rand(x.shape[1]),
        "randint": lambda x: x + torch.randint(0, 9, (3,)),
        "randperm": lambda x: x[:, torch.randperm(3)],
        "several draws": lambda x: x * torch.rand(3) + torch.randn(3),
        "in-place writes": _written,
        "another seed": _seeded_again,
    }
)


@pytest.mark.parametrize("name", CASES)
def test_numbers_of_torch(name: str) -> None:
    model = Function(_seeded(CASES[name])).eval()
    state = torch.get_rng_state()
    program = fxonnx.export(model, (torch.ones(2, 3),), dynamic_shapes=({0: "n"},))
    assert torch.equal(torch.get_rng_state(), state)
    for rows in (2, 5):
        x = torch.rand(rows, 3)
        torch.testing.assert_close(program(x)[0], model(x))


def test_sizes_that_are_dynamic_are_a_warning() -> None:
    model = Function(_seeded(lambda x: x + torch.rand(x.shape))).eval()
    with pytest.warns(
        UserWarning, match="numbers of rand are not constants, .*arguments are dynamic or on a device other"
    ):
        program = fxonnx.export(model, (torch.ones(2, 3),), dynamic_shapes=({0: "n"},))
    x = torch.zeros(5, 3)
    assert not torch.equal(program(x)[0], program(x)[0])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.rand_like(x),
        lambda x: torch.empty(3).uniform_(),
        lambda x: torch.normal(x, 1.0),
        lambda x: x.bernoulli(0.5),
    ],
    ids=["rand_like", "uniform_", "normal", "bernoulli"],
)
def test_numbers_after_those_of_other_functions_are_drawn_at_run_time(function: Callable[[Tensor], Tensor]) -> None:
    model = Function(_seeded(lambda x: function(x) * 0 + torch.rand(3))).eval()
    with pytest.warns(UserWarning, match="are not constants, because it fills a tensor"):
        program = fxonnx.export(model, (torch.ones(2, 3),))
    assert not torch.equal(program(torch.ones(2, 3))[0], program(torch.ones(2, 3))[0])


def test_numbers_without_a_seed_are_drawn_at_run_time() -> None:
    model = Function(lambda x: x + torch.rand(3)).eval()
    program = fxonnx.export(model, (torch.ones(2, 3),))
    x = torch.zeros(2, 3)
    assert not torch.equal(program(x)[0], program(x)[0])
