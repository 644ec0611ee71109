"""Random numbers: those that forward draws from Python or NumPy are constants, with a warning; seeds of torch hold in every run."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fxonnx
from fxonnx import CaptureError

from ..functions import Function

X = torch.ones(2, 4)


class Augmented(nn.Module):
    def __init__(self, generator: random.Random | np.random.Generator | np.random.RandomState) -> None:
        super().__init__()
        self.rng = generator

    def forward(self, x: Tensor) -> Tensor:
        return x * 3 + float(self.rng.random())


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn(4, generator=self.generator)


@pytest.mark.parametrize(
    "create", [random.Random, np.random.default_rng, np.random.RandomState], ids=["Random", "Generator", "RandomState"]
)
def test_a_generator_of_the_model_is_a_warning_and_set_back(create: Callable[[int], random.Random]) -> None:
    model = Augmented(create(3)).eval()
    with pytest.warns(UserWarning, match=r"(?s)draws random numbers of Python.*'rng' at .*:29 in forward: return x \*"):
        program = fxonnx.export(model, (X,), dynamic_shapes=({0: "n"},))
    for x in (torch.zeros(5, 4), torch.zeros(5, 4)):
        torch.testing.assert_close(program(x)[0], Augmented(create(3))(x))
    torch.testing.assert_close(model(X), Augmented(create(3))(X))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + random.random(),
        lambda x: x * torch.tensor(random.sample(range(4), 4)),
        lambda x: x + float(np.random.rand()),
    ],
)
def test_generators_of_the_process_are_a_warning(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.warns(UserWarning, match=r"are constants in the ONNX model.*\n  '(numpy\.)?random' at .*: lambda x: x"):
        fxonnx.export(Function(function).eval(), (X,))


def _seeded(x: Tensor) -> Tensor:
    random.seed(3)
    return x + random.random()


def _in_training(x: Tensor) -> Tensor:
    probability = random.uniform(0, 1)
    return x + 1 if torch.is_inference(x) and probability < 0.5 else x


@pytest.mark.parametrize("function", [_seeded, _in_training, lambda x: x + random.Random(3).random()])
def test_numbers_that_are_equal_in_every_call_or_not_used(function: Callable[[Tensor], Tensor]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = fxonnx.export(Function(function).eval(), (X,))
    torch.testing.assert_close(program(X)[0], function(X))


class Permuted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        return x[:, torch.randperm(4, generator=generator)]


@pytest.mark.parametrize("model", [Noisy(), Permuted()])
def test_numbers_of_a_generator_of_torch_are_refused(model: nn.Module) -> None:
    with pytest.raises(CaptureError, match=r"from a torch\.Generator, .*\n  at: .*generator=.*\nhint: omit generator="):
        fxonnx.export(model.eval(), (X,))


# ``torch.manual_seed`` in forward: the random numbers that follow are the same in every run.


def _with_seed(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
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
    model = Function(_with_seed(CASES[name])).eval()
    state = torch.get_rng_state()
    program = fxonnx.export(model, (torch.ones(2, 3),), dynamic_shapes=({0: "n"},))
    assert torch.equal(torch.get_rng_state(), state)
    for rows in (2, 5):
        x = torch.rand(rows, 3)
        torch.testing.assert_close(program(x)[0], model(x))


def test_sizes_that_are_dynamic_are_a_warning() -> None:
    model = Function(_with_seed(lambda x: x + torch.rand(x.shape))).eval()
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
    model = Function(_with_seed(lambda x: function(x) * 0 + torch.rand(3))).eval()
    with pytest.warns(UserWarning, match="are not constants, because it fills a tensor"):
        program = fxonnx.export(model, (torch.ones(2, 3),))
    assert not torch.equal(program(torch.ones(2, 3))[0], program(torch.ones(2, 3))[0])


def test_numbers_without_a_seed_are_drawn_at_run_time() -> None:
    model = Function(lambda x: x + torch.rand(3)).eval()
    program = fxonnx.export(model, (torch.ones(2, 3),))
    x = torch.zeros(2, 3)
    assert not torch.equal(program(x)[0], program(x)[0])
