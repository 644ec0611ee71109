"""Bessel functions and orthogonal polynomials."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import fxonnx
from fxonnx_translations.aten import bessel, polynomials

from .harness import Case, T, run


def _bessel() -> Iterator[Case]:
    for record in bessel.TRANSLATIONS:
        (target,) = record.targets
        # K and Y are defined for positive numbers only, and NaN below.
        yield Case(str(target), target, (T(("n", 3), low=0.1),))
        yield Case(str(target), target, (torch.linspace(-12, 30, 60),), "wide", rtol=2e-5, atol=4e-5)


def _polynomials() -> Iterator[Case]:
    degrees = torch.tensor([-1, 0, 1, 2, 5, 8])
    for record in polynomials.TRANSLATIONS:
        tensors, x_scalar, n_scalar = record.targets
        yield Case(str(tensors), tensors, (T(("n", 1), low=-1.0, high=1.0), degrees), rtol=1e-4, atol=1e-4)
        yield Case(str(x_scalar), lambda n, f=x_scalar: f(0.3, n), (degrees,), rtol=1e-4, atol=1e-4)
        yield Case(str(n_scalar), lambda x, f=n_scalar: f(x, 3), (T(("n", 2)),), rtol=1e-4, atol=1e-4)


CASES = (*_bessel(), *_polynomials())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_translation(case: Case) -> None:
    run(case)


def test_float64_is_refused() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.bessel_j0(x)

    with pytest.raises(fxonnx.UnsupportedOperatorError, match="_bessel: Bessel functions are known to the precision"):
        fxonnx.export(Model(), (torch.ones(2, dtype=torch.float64),))
