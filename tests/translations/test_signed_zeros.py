"""Exact numerics: the signs of zeros, of infinities and the places of NaN are torch's."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import fxonnx

from ..functions import VariadicFunction

_NUMBERS = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5])
_LEFT, _RIGHT = (grid.reshape(-1).contiguous() for grid in torch.meshgrid(_NUMBERS, _NUMBERS, indexing="ij"))
_ROWS = torch.tensor([[-0.0, -0.0], [0.0, -0.0], [-0.0, 0.0], [0.0, 0.0], [-0.0, 1.0], [-1.0, 1.0]])

_OF_ONE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{
        each.__name__: each
        for each in (
            *(
                torch.trunc,
                torch.frac,
                torch.floor,
                torch.ceil,
                torch.round,
                torch.abs,
                torch.neg,
                torch.sign,
                torch.tanh,
            ),
            *(
                torch.sin,
                torch.sinh,
                torch.asin,
                torch.asinh,
                torch.tan,
                torch.atan,
                torch.sqrt,
                torch.rsqrt,
                torch.erf,
            ),
            *(
                torch.expm1,
                torch.reciprocal,
                torch.square,
                torch.nan_to_num,
                torch.deg2rad,
                torch.sinc,
                F.relu,
                F.relu6,
            ),
            *(F.hardshrink, F.softsign, F.hardtanh, F.leaky_relu, F.silu),
        )
    },
    "threshold": lambda x: F.threshold(x, 0.0, -0.0),
    "clamp": lambda x: x.clamp(-1.0, 1.0),
    "where of a number": lambda x: torch.where(x > 0, x, -0.0),
    "where of a number first": lambda x: torch.where(x > 0, -0.0, x),
    "masked_fill": lambda x: x.masked_fill(x > 0, -0.0),
    "heaviside": lambda x: torch.heaviside(x, torch.tensor(-0.0, dtype=x.dtype)),
    "copysign of a number": lambda x: torch.copysign(x, -1.0),
    "floor_divide by a number": lambda x: x // 3,
    "floor_divide by a negative number": lambda x: x // -3.0,
    "floor_divide by one": lambda x: x // 1,
    "truncated quotient": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "remainder": lambda x: x % 3,
    "fmod": lambda x: torch.fmod(x, -3.0),
    "product with zero": lambda x: x * 0,
    "sum with zero": lambda x: x + 0,
    "sum with negative zero": lambda x: x + (-0.0),
    "difference from zero": lambda x: 0 - x,
}
_OF_TWO: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    **{
        each.__name__: each
        for each in (
            *(torch.add, torch.sub, torch.mul, torch.div, torch.floor_divide, torch.fmod, torch.remainder, torch.atan2),
            *(torch.maximum, torch.minimum, torch.hypot, torch.pow, torch.copysign, torch.heaviside, torch.nextafter),
        )
    },
    "truncated quotient": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "lerp": lambda x, y: torch.lerp(x, y, 0.7),
    "lerp near the start": lambda x, y: torch.lerp(x, y, 0.3),
    "where": lambda x, y: torch.where(x < y, x, y),
    "addcmul": lambda x, y: torch.addcmul(x, x, y),
}
_REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(1),
    "sum of all": lambda x: x[:1].sum(),
    "mean": lambda x: x.mean(1),
    "nansum": lambda x: x.nansum(1),
    "trace": lambda x: x[:2].trace(),
    "prod": lambda x: x.prod(1),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(1),
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(1),
    "matmul": lambda x: x @ x.T,
    "index_add": lambda x: x.index_add(0, torch.tensor([0, 1]), x[:2]),
    "angle of a sum": lambda x: torch.atan2(x.sum(1), x.sum(1)),
}
_CASES = (
    *((name, function, (_NUMBERS,)) for name, function in _OF_ONE.items()),
    *((f"{name} of two", function, (_LEFT, _RIGHT)) for name, function in _OF_TWO.items()),
    *((name, function, (_ROWS,)) for name, function in _REDUCTIONS.items()),
)


_FORMULAS = frozenset({"sinh", "asin", "asinh", "atan", "erf"})
"""ONNX Runtime has no kernel for float64; the formulas that replace it return 0.0 for -0.0, as docs/how-to/numerics.md says."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "function", "inputs"), _CASES, ids=[case[0] for case in _CASES])
def test_signs_of_zeros(
    name: str, function: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...], dtype: torch.dtype
) -> None:
    model, inputs = VariadicFunction(function).eval(), tuple(value.to(dtype) for value in inputs)
    program = fxonnx.export(model, inputs, options=fxonnx.ExportOptions(numerics="exact"))
    (found,), expected = program(*inputs), model(*inputs)
    torch.testing.assert_close(found, expected, equal_nan=True)
    is_zero = (expected == 0) & (dtype == torch.float32 or name not in _FORMULAS)
    assert torch.equal(torch.signbit(found)[is_zero], torch.signbit(expected)[is_zero])
