"""Values of different types on the paths of a branch: an error, never a conversion that changes the value."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fxonnx

from ...functions import VariadicFunction


def both(x: torch.Tensor, a: torch.Tensor, s: torch.Tensor) -> Any:
    return x + (a > 2 and s)


def either(x: torch.Tensor, a: torch.Tensor, s: torch.Tensor) -> Any:
    return x + (a > 2 or s)


def half_or_count(x: torch.Tensor, a: torch.Tensor, s: torch.Tensor) -> Any:
    return x * (1.5 if s > 1 else a)


def count_or_flag(x: torch.Tensor, a: torch.Tensor, s: torch.Tensor) -> Any:
    return x * (3 if s > 1 else a > 2)


@pytest.mark.parametrize("function", [both, either, half_or_count, count_or_flag], ids=lambda each: each.__name__)
def test_values_of_different_types_are_refused(function: Any) -> None:
    inputs = (torch.randn(2, 3), torch.tensor(3), torch.tensor(1.25))
    with pytest.raises(fxonnx.CaptureError, match=r"in one branch and .* in the other"):
        fxonnx.export(VariadicFunction(function).eval(), inputs)


def as_tests(x: torch.Tensor, a: torch.Tensor, s: torch.Tensor) -> Any:
    if a > 2 and s:
        x = x * 2
    y = x + 1 if s or a > 2 else x - 1
    while not (a > 9 or s > 100) and s:
        a, y = a + 1, y * 1.5
    return y


@pytest.mark.parametrize("function", [as_tests])
def test_the_truth_of_mixed_operands_decides_in_tests(function: Any) -> None:
    values = [(3, 1.25), (3, 0.0), (1, 0.0), (1, 2.0), (10, 1.0)]
    calls = [(torch.randn(2, 3), torch.tensor(a), torch.tensor(s)) for a, s in values]
    program = fxonnx.export(VariadicFunction(function).eval(), calls[0])
    for call in calls:
        torch.testing.assert_close(program(*call)[0], function(*call))
