"""Chains of views, simplified by peepholes: random ones compute the same, known ones are short."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxonnx
from fxonnx_translations._builder.shape_inference import ints_of
from tests.functions import Function


def _split(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    axis = rng.randrange(1, x.dim())
    factors = [factor for factor in range(1, x.shape[axis] + 1) if x.shape[axis] % factor == 0]
    factor = rng.choice(factors)
    return x.reshape(*x.shape[:axis], factor, x.shape[axis] // factor, *x.shape[axis + 1 :])


def _joined(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    if x.dim() < 3:
        return x
    axis = rng.randrange(1, x.dim() - 1)
    return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])


def _permuted(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    axes = list(range(1, x.dim()))
    rng.shuffle(axes)
    return x.permute(0, *axes)


def _moved(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """An axis is inserted at one position and removed at another, as in the projections of multi-head attention."""
    x = x.unsqueeze(rng.randrange(0, x.dim() + 1))
    one = x.shape.index(1)
    other = rng.randrange(x.dim())
    return x.transpose(one, other).squeeze(other)


STEPS: tuple[Callable[[torch.Tensor, random.Random], torch.Tensor], ...] = (_split, _joined, _permuted, _moved)


@pytest.mark.parametrize("seed", range(80))
def test_random_chains(seed: int) -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        rng = random.Random(seed)
        for _ in range(6):
            x = rng.choice(STEPS)(x, rng)
        return x

    x = torch.arange(2 * 4 * 6 * 5, dtype=torch.float32).reshape(2, 4, 6, 5)
    model = Function(chain).eval()
    static = fxonnx.export(model, (x,))
    torch.testing.assert_close(static(x)[0], chain(x), rtol=0, atol=0)
    if seed % 4 == 0 and chain(x).shape[0] == 2:
        dynamic = fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},))
        larger = torch.cat([x, x + 1])
        torch.testing.assert_close(dynamic(larger)[0], chain(larger), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (
            lambda x: x.unflatten(-1, (3, 4)).unsqueeze(0).transpose(0, -2).squeeze(-2),
            ["Reshape", "Transpose"],
        ),
        (
            lambda x: x.reshape(5, 8, 3).transpose(0, 1).reshape(2, 4, 5, 3).sin(),
            ["Reshape", "Transpose", "Sin"],
        ),
        (lambda x: x.reshape(5, 24).transpose(0, 1).reshape(24, 5, 1), ["Reshape", "Transpose"]),
        (lambda x: x.transpose(0, 1).reshape(2, 1, 5, 12), ["Transpose", "Reshape"]),
        (lambda x: x.unsqueeze(1).transpose(1, 2).squeeze(1), None),
    ],
)
@pytest.mark.parametrize("opset", [11, 20])
def test_known_chains(function: Any, expected: list[str] | None, opset: int) -> None:
    x = torch.arange(120, dtype=torch.float32).reshape(5, 2, 12)
    program = fxonnx.export(Function(function).eval(), (x,), opset_version=opset, verify=True)
    if expected is not None:
        assert [node.op_type for node in program.model.graph] == expected


RESHAPED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flatten": lambda x: x.flatten(1),
    "x.shape[0]": lambda x: x.reshape(x.shape[0], 3, 8),
    "merged with the batch": lambda x: x.flatten(0, 1).sin().reshape(x.shape[0], 24),
    "transposed": lambda x: x.transpose(1, 2).reshape(x.shape[0], 24),
    "last": lambda x: x.permute(1, 2, 0).reshape(24, x.shape[0]),
    "windows": lambda x: x.view(x.shape[0], 2, 2, 6).transpose(1, 2).reshape(-1, 2, 6).reshape(x.shape[0], 24),
}


@pytest.mark.parametrize("name", RESHAPED)
def test_the_only_dynamic_size_is_inferred(name: str) -> None:
    """OpenCV takes a 0, which copies the size of the input, for the number of elements."""
    model = Function(RESHAPED[name]).eval()
    program = fxonnx.export(model, (torch.randn(2, 4, 6),), dynamic_shapes=({0: "n"},))
    targets = [ints_of(node.inputs[1]) for node in program.model.graph if node.op_type == "Reshape"]
    assert targets
    assert all(target is not None and 0 not in target for target in targets)
    for n in (0, 1, 7):
        x = torch.randn(n, 4, 6)
        torch.testing.assert_close(program(x)[0], model(x))


def test_a_size_beside_a_static_size_of_0_is_not_inferred() -> None:
    """The number of elements, 0, does not tell the batch."""
    model = Function(lambda x: x.reshape(x.shape[0], 0, 3)).eval()
    program = fxonnx.export(model, (torch.randn(2, 0, 6),), dynamic_shapes=({0: "n"},))
    for n in (0, 1, 7):
        assert program(torch.randn(n, 0, 6))[0].shape == (n, 0, 3)
