"""Elementwise functions of one tensor."""

from __future__ import annotations

import math

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten

N, I, B = T(("n", 3)), T(("n", 3), torch.int64, -9, 9), T(("n", 3), torch.bool)
POSITIVE, UNIT, ABOVE_ONE = T(("n", 3), low=0.1), T(("n", 3), low=-0.9, high=0.9), T(("n", 3), low=1.1, high=3.0)
ODD = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0, -2.5, 0.5, 1.5])

_DOMAINS = {"acosh": ABOVE_ONE, "acos": UNIT, "asin": UNIT, "atanh": UNIT}
_FLOATS = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "erf",
    "exp",
    "log",
    "reciprocal",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "rsqrt",
    "square",
    "log2",
    "log10",
    "exp2",
    "erfc",
]

CASES = (
    *(Case(f"aten.{name}.default", getattr(aten, name).default, (_DOMAINS.get(name, POSITIVE),)) for name in _FLOATS),
    *(
        Case(f"aten.{name}.default", getattr(aten, name).default, (T(("n", 3), torch.int64, 1, 3),), "int64")
        for name in ("exp", "sqrt", "sigmoid", "rsqrt", "log2", "erfc", "exp2", "reciprocal", "square")
    ),
    Case("aten.log2.default", torch.log2, (2.0 ** torch.arange(-126.0, 128.0),), "powers of two", rtol=0, atol=0),
    Case("aten.log10.default", torch.log10, (10.0 ** torch.arange(-30.0, 11.0),), "powers of ten", rtol=0, atol=0),
    Case("aten.log2.default", torch.log2, (2.0 ** torch.arange(-1022, 1024).double(),), "double", rtol=0, atol=0),
    Case("aten.log10.default", torch.log10, (10.0 ** torch.arange(-22, 23).double(),), "double", rtol=0, atol=0),
    Case("aten.special_expit.default", aten.special_expit.default, (N,)),
    Case("aten.special_erf.default", aten.special_erf.default, (N,)),
    *(
        Case(f"aten.{name}.default", getattr(aten, name).default, inputs, kind)
        for name in ("ceil", "floor", "round", "trunc", "fix", "abs", "absolute", "neg", "negative")
        for kind, inputs in {"float": (ODD,), "int": (I,)}.items()
    ),
    *(
        Case(f"aten.{name}.default", getattr(aten, name).default, inputs, kind, numerics=numerics)
        for name in ("sign", "sgn")
        for kind, inputs, numerics in (
            ("NaN", (ODD,), "exact"),
            ("float", (ODD[1:],), "default"),
            ("int", (I,), "default"),
        )
    ),
    Case("aten.neg.default", torch.neg, (T((3,), torch.uint8, 0, 9),), "uint8 wraps"),
    Case("aten.sign.default", torch.sign, (B,), "bool"),
    Case("aten.logical_not.default", torch.logical_not, (ODD,), "float"),
    Case("aten.logical_not.default", torch.logical_not, (I,)),
    Case("aten.bitwise_not.default", torch.bitwise_not, (B,), "bool"),
    Case("aten.bitwise_not.default", torch.bitwise_not, (I,)),
    Case("aten.bitwise_not.default", torch.bitwise_not, (T((3,), torch.uint8, 0, 9),), "uint8, opset 17", opset=17),
    Case("aten.isnan.default", torch.isnan, (ODD,)),
    Case("aten.isnan.default", torch.isnan, (I,), "int64"),
    Case("aten.logit.default", torch.logit, (T(("n", 3), low=0.0, high=1.0),), ops=("Sub", "Div", "Log")),
    Case(
        "aten.logit.default",
        lambda x: torch.logit(x, 1e-6),
        (torch.tensor([-1.0, 0.0, 1e-7, 1e-6, 0.3, 1 - 1e-6, 1.0, 2.0]),),
        "clamped",
        ops=("Clip", "Sub", "Div", "Log"),
    ),
    Case("aten.logit.default", lambda x: torch.logit(x, 0.7), (T(("n", 3), low=0.0, high=1.0),), "exchanged limits"),
    Case("aten.isfinite.default", torch.isfinite, (ODD,), ops=("Abs", "Less")),
    Case("aten.isfinite.default", torch.isfinite, (I,), "int64"),
    Case("aten.isinf.default", torch.isinf, (ODD,)),
    Case("aten.isinf.default", torch.isinf, (ODD.half(),), "float16"),
    Case("aten.isinf.default", torch.isinf, (I,), "int64"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_unary(case: Case) -> None:
    run(case)
