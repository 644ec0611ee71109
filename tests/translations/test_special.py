"""Error functions, gamma functions and zeta."""

from __future__ import annotations

import math

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten

_X = T(("n", 3))
_WIDE = torch.linspace(-9.3, 40.0, 60)

POLES = torch.tensor(
    [0.0, -0.0, -1.0, -2.0, -3.0, -7.0, -0.5, -20.5, 1.5, 1e-3, 30.0, math.inf, -math.inf, math.nan, -1e10, 1e10]
)

CASES = (
    Case("aten.erfc.default", torch.erfc, (_X,)),
    Case("aten.erfc.default", torch.erfc, (torch.linspace(-4, 9, 40),), "tail", rtol=4e-6, atol=0),
    Case("aten.special_erfc.default", aten.special_erfc, (_X,)),
    Case("aten.special_erfcx.default", aten.special_erfcx, (torch.linspace(-4, 30, 40),)),
    Case(
        "aten.erfc.default", torch.erfc, (torch.tensor([1e3, 2e3, 1e20, -2e3, math.inf, -math.inf, math.nan]),), "far"
    ),
    Case("aten.erfc.default", torch.erfc, (torch.linspace(-6, 27, 67).double(),), "float64", rtol=1e-11, atol=0),
    Case("aten.special_erfcx.default", aten.special_erfcx, (torch.tensor([-30.0, -3.0, 9.0, 1e8, math.inf]),), "far"),
    Case(
        "aten.special_erfcx.default",
        aten.special_erfcx,
        (torch.linspace(-25, 60, 86).double(),),
        "float64",
        rtol=1e-11,
        atol=0,
    ),
    Case("aten.special_ndtri.default", aten.special_ndtri, (T(("n", 3), low=0.0, high=1.0),)),
    Case(
        "aten.special_ndtri.default",
        aten.special_ndtri,
        (torch.tensor([0.0, 1.0, -0.5, 1.5, math.nan, 0.5, 1e-30, 1e-6, 0.13, 0.14, 0.999999]),),
        "edges",
    ),
    Case("aten.erfinv.default", torch.erfinv, (T(("n", 3), low=-1.0, high=1.0),)),
    Case("aten.erfinv.default", torch.erfinv, (torch.tensor([-1.0, 1.0, 0.0, 1.5, math.nan, 0.999999]),), "edges"),
    Case("aten.special_erfinv.default", aten.special_erfinv, (T(("n", 3), low=-1.0, high=1.0),)),
    Case("aten.lgamma.default", torch.lgamma, (_X,)),
    Case(
        "aten.lgamma.default",
        torch.lgamma,
        (torch.cat([_WIDE, torch.tensor([0.0, -2.0, 1e30, math.inf, -math.inf])]),),
        "wide",
    ),
    Case("aten.special_gammaln.default", aten.special_gammaln, (_X,)),
    Case("aten.digamma.default", torch.digamma, (T(("n", 3), low=0.1),)),
    Case(
        "aten.digamma.default", torch.digamma, (torch.cat([_WIDE, torch.tensor([0.0, -0.0, -2.0, math.inf])]),), "wide"
    ),
    Case("aten.special_digamma.default", aten.special_digamma, (T(("n", 3), low=0.1),)),
    Case("aten.special_psi.default", aten.special_psi, (T(("n", 3), low=0.1),)),
    Case("aten.special_zeta.default", aten.special_zeta, (T(("n", 3), low=1.5, high=6.0), T((3,), low=0.1, high=30.0))),
    Case("aten.special_zeta.self_scalar", lambda q: aten.special_zeta(2.0, q), (T(("n", 3), low=0.1),)),
    Case(
        "aten.special_zeta.other_scalar",
        lambda s: aten.special_zeta(s, -3.5),
        (torch.tensor([2.0, 3.0, 1.0, 0.5, 2.5]),),
    ),
    Case("aten.polygamma.default", lambda x: torch.polygamma(1, x), (T(("n", 3), low=0.1),)),
    Case("aten.polygamma.default", lambda x: torch.polygamma(3, x), (T(("n", 3), low=0.1),), "third"),
    *(
        Case("aten.polygamma.default", lambda x, n=n: torch.polygamma(n, x), (POLES.to(dtype),), f"poles, {n}, {dtype}")
        for n in range(4)
        for dtype in (torch.float32, torch.float64, torch.float16)
    ),
    Case("aten.special_polygamma.default", lambda x: aten.special_polygamma(0, x), (T(("n", 3), low=0.1),)),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_special(case: Case) -> None:
    run(case)
