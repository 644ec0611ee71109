"""Bessel functions and orthogonal polynomials."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

import fxonnx
from fxonnx_translations._aten.special import bessel_and_polynomials as special

from .harness import Case, T, run
from .operators import overload_of


def _bessel() -> Iterator[Case]:
    for record in special.BESSEL_FUNCTIONS:
        (target,) = map(overload_of, record.targets)
        # K and Y are defined for positive numbers only, and NaN for negative ones.
        yield Case(str(target), target, (T(("n", 3), low=0.1),))
        yield Case(str(target), target, (torch.linspace(-12, 30, 60),), "wide", rtol=2e-5, atol=4e-5)


def _polynomials() -> Iterator[Case]:
    degrees = torch.tensor([-1, 0, 1, 2, 5, 8])
    for record in special.ORTHOGONAL_POLYNOMIALS:
        tensors, x_scalar, n_scalar = map(overload_of, record.targets)
        yield Case(str(tensors), tensors, (T(("n", 1), low=-1.0, high=1.0), degrees), rtol=1e-4, atol=1e-4)
        yield Case(str(x_scalar), lambda n, f=x_scalar: f(0.3, n), (degrees,), rtol=1e-4, atol=1e-4)
        yield Case(str(n_scalar), lambda x, f=n_scalar: f(x, 3), (T(("n", 2)),), rtol=1e-4, atol=1e-4)


def _airy() -> Iterator[Case]:
    yield Case("aten.special_airy_ai.default", torch.special.airy_ai, (T(("n", 3), low=-5.0, high=5.0),))
    ends = torch.tensor([-2.09, 2.09, 120.0, math.inf, -math.inf, math.nan])
    wide = torch.cat([torch.linspace(-60, 20, 161), ends]).double()
    yield Case("aten.special_airy_ai.default", torch.special.airy_ai, (wide,), "wide", rtol=1e-9, atol=1e-13)


CASES = (*_bessel(), *_airy(), *_polynomials())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_translation(case: Case) -> None:
    run(case)


def test_float64_is_rejected() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.bessel_j0(x)

    with pytest.raises(
        fxonnx.UnsupportedOperatorError, match="_bessel: Bessel functions are available in float32 precision"
    ):
        fxonnx.export(Model(), (torch.ones(2, dtype=torch.float64),))
