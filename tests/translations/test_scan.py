"""cummax, cummin, cumprod and logcumsumexp."""

from __future__ import annotations

import math

import pytest
import torch

import fxonnx

from ..functions import Function
from .harness import Case, T, run

_NAN = torch.tensor([[1.0, math.nan, 3.0, math.nan, 2.0], [math.inf, -math.inf, -0.0, 0.0, 1.0]])

CASES = (
    Case("aten.cummax.default", lambda x: torch.cummax(x, 1), (T(("n", "t")),)),
    Case("aten.cummax.default", lambda x: torch.cummax(x, 1), (_NAN,), "nan", numerics="exact"),
    Case("aten.cummax.default", lambda x: torch.cummax(x, 0), (T((5, 2), torch.int64),), "ties"),
    Case("aten.cummax.default", lambda x: torch.cummax(x, -1), (T((2, 4), torch.bool),), "bool"),
    Case("aten.cummin.default", lambda x: torch.cummin(x, -2), (T(("n", "t")),)),
    Case("aten.cummin.default", lambda x: torch.cummin(x, 1), (_NAN,), "nan", numerics="exact"),
    Case("aten.cumprod.default", lambda x: torch.cumprod(x, 1), (T(("n", "t")),)),
    Case("aten.cumprod.default", lambda x: torch.cumprod(x, 0), (T(("n", 3), torch.int64, -3, 4),), "int64"),
    Case("aten.cumprod.default", lambda x: x.cumprod(0, dtype=torch.int32), (T((3, 2), torch.uint8, 0, 9),), "int32"),
    Case("aten.cumprod.default", lambda x: x.cumprod(0, dtype=torch.uint8), (T((3, 2), torch.uint8, 0, 9),), "wraps"),
    Case("aten.cumprod.default", lambda x: x.cumprod(-1), (T((3, 9), torch.bfloat16),), "bfloat16", opset=13),
    Case("aten.cumprod.default", lambda x: x.sum().cumprod(0), (T(("n",)),), "number"),
    Case("aten.logcumsumexp.default", lambda x: torch.logcumsumexp(x, 1), (T(("n", "t"), low=-30, high=90),)),
    Case(
        "aten.logcumsumexp.default",
        lambda x: torch.logcumsumexp(x, 0),
        (torch.tensor([-math.inf, -math.inf, 1.0, math.inf, 2.0, math.nan]),),
        "infinities",
    ),
    Case("aten.logcumsumexp.default", lambda z: torch.logcumsumexp(z, 1), (T(("n", "t"), torch.complex64),), "complex"),
    Case("aten.logcumsumexp.default", lambda z: torch.logcumsumexp(z, 0), (T(("n", 3), torch.complex128),), "double"),
    Case(
        # The imaginary part goes on from that of the largest element, beyond pi.
        "aten.logcumsumexp.default",
        lambda z: torch.logcumsumexp(10 * z, -1),
        (T((4, "t"), torch.complex64),),
        "turns",
    ),
    Case(
        "aten.logcumsumexp.default",
        lambda z: torch.logcumsumexp(z, 1),
        (torch.tensor([[complex(-math.inf, 1), complex(-math.inf, 2), 1 - 3j], [1j, complex(math.inf, 2), 1 + 1j]]),),
        "infinite parts",
    ),
    Case(
        "aten.logcumsumexp.default",
        lambda z: torch.logcumsumexp(z, 1),
        (
            torch.tensor(
                [[complex(math.inf, 0)] * 2 + [1.0], [complex(1, math.nan), 1.0, 2.0], [complex(math.nan, 1), 1, 2]]
            ),
        ),
        "infinite and NaN parts",
        numerics="exact",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_translation(case: Case) -> None:
    run(case)


def test_data_dependent_lengths() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        positive = x[x > 0]
        turned = torch.complex(positive, positive).logcumsumexp(0)
        return positive.cumprod(0), positive.logcumsumexp(0), torch.view_as_real(turned)

    x = torch.tensor([1.0, -1.0, 3.0, 2.0])
    program = fxonnx.export(Function(function).eval(), (x,), dynamic_shapes=({0: "n"},))
    for inputs in (x, torch.ones(3), -x[:1], -torch.ones(2)):
        torch.testing.assert_close(program(inputs), function(inputs))
