"""Random numbers that forward draws from Python or NumPy are constants in the ONNX model, which is a warning."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

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
    with pytest.warns(UserWarning, match=r"(?s)draws random numbers of Python.*'rng' at .*:28 in forward: return x \*"):
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
