"""Comparisons, logical and bitwise operators."""

from __future__ import annotations

import math

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten

N, ROW = T(("n", 3)), T((3,))
I, J = T(("n", 3), torch.int64, -3, 3), T((3,), torch.int64, -3, 3)
B, C = T(("n", 3), torch.bool), T((3,), torch.bool)
NAN = torch.tensor([float("nan"), 0.0, 1.0])

_NAMES = ("eq", "ne", "lt", "le", "gt", "ge")
CASES = (
    *(Case(f"aten.{name}.Tensor", getattr(torch, name), (N, NAN), "NaN") for name in _NAMES),
    *(Case(f"aten.{name}.Tensor", getattr(torch, name), (I, J), "int64") for name in _NAMES),
    *(Case(f"aten.{name}.Tensor", getattr(torch, name), (B, C), "bool") for name in _NAMES),
    *(
        Case(f"aten.{name}.Tensor", getattr(torch, name), (T((4,), d, 0, 3), T((4,), d, 0, 3)), f"{d}")
        for name in ("eq", "lt", "ge")
        for d in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.float64)
    ),
    *(Case(f"aten.{name}.Scalar", lambda a, n=name: getattr(torch, n)(a, 1.5), (I,), "promoted") for name in _NAMES),
    *(
        Case(f"aten.{name}.Scalar", lambda a, n=name: getattr(torch, n)(a, 0.5), (N,), "13", opset=11)
        for name in _NAMES
    ),
    Case("aten.not_equal.Tensor", lambda a, b: aten.not_equal.Tensor(a, b), (I, J)),
    *(
        Case(f"aten.{name}.default", getattr(torch, name), inputs, kind)
        for name in ("logical_and", "logical_or", "logical_xor")
        for kind, inputs in {"bool": (B, C), "int": (I, J), "float": (N, NAN)}.items()
    ),
    *(
        Case(f"aten.bitwise_{name}.Tensor", getattr(torch, f"bitwise_{name}"), inputs, kind)
        for name in ("and", "or", "xor")
        for kind, inputs in {"bool": (B, C), "int": (I, J)}.items()
    ),
    *(
        Case(f"aten.bitwise_{n}.Scalar", lambda a, n=n: getattr(aten, f"bitwise_{n}").Scalar(a, 5), (I,))
        for n in ("and", "or", "xor")
    ),
    *(
        Case(f"aten.__{n}__.Tensor", lambda a, b, n=n: getattr(aten, f"__{n}__").Tensor(a, b), (B, C))
        for n in ("and", "or", "xor")
    ),
    *(
        Case(f"aten.__{n}__.Scalar", lambda a, n=n: getattr(aten, f"__{n}__").Scalar(a, 3), (I,))
        for n in ("and", "or", "xor")
    ),
    *(
        Case(
            "aten.heaviside.default",
            torch.heaviside,
            (torch.tensor([-math.inf, -2.0, -0.0, 0.0, 3.0, math.inf, math.nan]).to(dtype), T((7,), dtype)),
            f"{dtype}, opset {opset}",
            opset=opset,
            ops=("Equal", "Greater", "Cast", "Where"),
        )
        for dtype, opset in ((torch.float32, 11), (torch.float32, 20), (torch.float16, 20), (torch.float64, 23))
    ),
    *(
        Case(
            "aten.heaviside.default",
            torch.heaviside,
            (T(("n", 3), torch.int64, lowest, highest), T((3,), torch.int64, -3, 3)),
            f"int64 from {lowest}",
            ops=("Equal", "Greater", "Cast", "Where"),
        )
        for lowest, highest in ((-2, 3), (-(2**63), 3))
    ),
    Case("aten.heaviside.default", torch.heaviside, (B, C), "bool", ops=("Or",)),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_comparison(case: Case) -> None:
    run(case)
