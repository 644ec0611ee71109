"""Sign bit, signed zeros, NaN, frexp and nextafter."""

from __future__ import annotations

import math

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten

_X, _Y = T(("n", 3)), T((3,))
_EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-30, -1e30])
_PAIRS = (_EDGES.repeat_interleave(9), _EDGES.repeat(9))


def _steps(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of numbers at the borders of the type and of its exponents."""
    limits = torch.finfo(dtype)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, limits.max, limits.min, 1.0 - limits.eps / 2, 0.1]
    small = [limits.smallest_normal * factor for factor in (1.0, -1.0, 2.0, 4.0, 0.5, limits.eps, 1 + limits.eps)]
    powers = [sign * 2.0**exponent for exponent in range(-12, 12) for sign in (1.0, -1.0)]
    values = torch.tensor([*special, *small, *powers], dtype=torch.float64).to(dtype)
    return values.repeat_interleave(len(values)), values.repeat(len(values))


CASES = (
    Case("aten.log1p.default", torch.log1p, (T(("n", 3), low=-0.9),)),
    Case("aten.log1p.default", torch.log1p, (torch.cat([_EDGES, torch.logspace(-12, -1, 24)]),), "edges", atol=0),
    Case("aten.special_log1p.default", aten.special_log1p, (_X,)),
    Case("aten.expm1.default", torch.expm1, (_X,)),
    Case("aten.expm1.default", torch.expm1, (torch.cat([_EDGES, torch.logspace(-12, -1, 24)]),), "edges", atol=0),
    Case("aten.special_expm1.default", aten.special_expm1, (_X,)),
    Case("aten.log1p.default", torch.log1p, (_EDGES.double(),), "float64", rtol=1e-14, atol=0),
    Case("aten.expm1.default", torch.expm1, (_EDGES.double(),), "float64", rtol=1e-14, atol=0),
    Case("aten.logaddexp.default", torch.logaddexp, (_X, _Y)),
    Case("aten.logaddexp.default", torch.logaddexp, _PAIRS, "edges"),
    Case("aten.logaddexp.default", torch.logaddexp, tuple(x.double() for x in _PAIRS), "float64"),
    Case("aten.logaddexp.default", torch.logaddexp, tuple(T((2, 3), torch.float16) for _ in "ab"), "float16"),
    Case("aten.logaddexp2.default", torch.logaddexp2, (_X, _Y)),
    Case("aten.logaddexp2.default", torch.logaddexp2, _PAIRS, "edges"),
    Case("aten.isclose.default", torch.isclose, (_X, _X)),
    Case("aten.isclose.default", torch.isclose, _PAIRS, "edges"),
    Case("aten.isclose.default", lambda x, y: torch.isclose(x, y, equal_nan=True), _PAIRS, "equal NaN"),
    Case("aten.isclose.default", lambda x, y: torch.isclose(x, y, 0, 0), _PAIRS, "equal"),
    Case("aten.isclose.default", lambda x, y: torch.isclose(x, y, 0, 1e30), _PAIRS, "absolute"),
    Case("aten.isclose.default", lambda x, y: torch.isclose(x, y, 0.5), (_X, T((3,), low=-1.0)), "relative"),
    Case("aten.isclose.default", torch.isclose, tuple(x.half() for x in _PAIRS), "float16"),
    Case("aten.isclose.default", torch.isclose, (T((9,), torch.int64), T((9,), torch.int64)), "int64"),
    Case("aten.signbit.default", torch.signbit, (_X,)),
    Case("aten.signbit.default", torch.signbit, (_EDGES[:6],), "edges"),
    Case("aten.signbit.default", torch.signbit, (T((3,), torch.int32),), "int32"),
    Case("aten.copysign.Tensor", torch.copysign, (_X, _Y)),
    Case("aten.copysign.Scalar", lambda x: torch.copysign(x, -0.0), (T(("n", 3), torch.int64),)),
    Case("aten.fmax.default", torch.fmax, (_X, _Y)),
    Case("aten.fmax.default", torch.fmax, _PAIRS, "edges"),
    Case("aten.fmin.default", torch.fmin, (_X, _Y)),
    Case("aten.fmin.default", torch.fmin, _PAIRS, "edges"),
    Case("aten.atan2.default", torch.atan2, (_X, _Y)),
    Case("aten.atan2.default", torch.atan2, _PAIRS, "edges"),
    Case("aten.arctan2.default", aten.arctan2, (T(("n", 3), torch.int64), _Y)),
    Case("aten.hypot.default", torch.hypot, (_X, _Y)),
    Case("aten.hypot.default", torch.hypot, _PAIRS, "edges"),
    *(
        Case("aten.nextafter.default", torch.nextafter, _steps(dtype), str(dtype), rtol=0, atol=0, numerics="exact")
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    ),
    Case("aten.nextafter.default", torch.nextafter, (_X, _Y), rtol=0, atol=0),
    Case("aten.frexp.Tensor", torch.frexp, (_X,)),
    Case(
        "aten.frexp.Tensor",
        torch.frexp,
        (
            torch.cat(
                [
                    torch.ldexp(torch.tensor([1.0, 0.75, 0.99999994]), torch.arange(-130, 128, 3)[:, None]).flatten(),
                    _EDGES[:2],
                ]
            ),
        ),
        "all exponents",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_translation(case: Case) -> None:
    run(case)
