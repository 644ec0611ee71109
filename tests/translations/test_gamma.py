"""Incomplete gamma functions."""

from __future__ import annotations

import math

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten

_A, _X = T(("n", 3), low=0.1, high=30.0), T((3,), low=0.1, high=30.0)
_ENDS = torch.tensor([0.0, 1.0, 0.5, -1.0, 1e-30, 1e30, math.inf, -math.inf, math.nan], dtype=torch.float64)
_SIZES = torch.logspace(-3, 9, 49).double()
_RATIOS = torch.tensor([0.1, 0.5, 0.9, 0.99, 1.0, 1.0001, 1.01, 1.1, 2.0, 9.0], dtype=torch.float64)
_PAIRS = (
    torch.cat([_ENDS.repeat_interleave(len(_ENDS)), _SIZES.repeat_interleave(len(_RATIOS))]),
    torch.cat([_ENDS.repeat(len(_ENDS)), torch.outer(_SIZES, _RATIOS).flatten()]),
)
_IS_NUMBER = ~(_PAIRS[0].isnan() | _PAIRS[1].isnan())
_WITHOUT_NAN = tuple(values[_IS_NUMBER] for values in _PAIRS)

CASES = (
    Case("aten.igamma.default", torch.igamma, (_A, _X)),
    Case("aten.igamma.default", torch.igamma, _PAIRS, "wide", rtol=1e-8, atol=1e-11, numerics="exact"),
    Case("aten.igamma.default", torch.igamma, _WITHOUT_NAN, "without NaN", rtol=1e-8, atol=1e-11),
    Case("aten.special_gammainc.default", aten.special_gammainc, (_A, _X)),
    Case("aten.igammac.default", torch.igammac, (_A, _X)),
    Case("aten.igammac.default", torch.igammac, _PAIRS, "wide", rtol=1e-8, atol=1e-11, numerics="exact"),
    Case("aten.igammac.default", torch.igammac, _WITHOUT_NAN, "without NaN", rtol=1e-8, atol=1e-11),
    Case(
        "aten.igammac.default", torch.igammac, (T(("n", 3), torch.float16, 0.1, 9.0), T((3,), torch.float16, 0.1, 9.0))
    ),
    Case("aten.special_gammaincc.default", aten.special_gammaincc, (_A, _X)),
    Case("aten.igamma.default", torch.igamma, (torch.ones(0), torch.ones(0)), "empty"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_translation(case: Case) -> None:
    run(case)
