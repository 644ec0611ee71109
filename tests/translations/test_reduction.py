"""Reductions and cumsum."""

from __future__ import annotations

import math

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten

X, I, B = T(("n", 3, 4)), T(("n", 3), torch.int64, -9, 9), T(("n", 3), torch.bool)
NAN = torch.tensor([[1.0, math.nan, 2.0], [3.0, math.inf, -math.inf]])
EMPTY = torch.zeros(0, 3)

FLOATS = torch.tensor(
    [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, 1e-40, -1e-45, 5e-324, 2.2e-308, 1.7e308, 3.4e38, 6e-8, -123.456],
    dtype=torch.float64,
)

CASES = (
    *(
        case
        for name in ("sum", "mean")
        for case in (
            Case(f"aten.{name}.default", getattr(torch, name), (X,)),
            Case(f"aten.{name}.default", getattr(torch, name), (T(()),), "0-dim"),
            Case(
                f"aten.{name}.dim" + ("_IntList" if name == "sum" else ""),
                lambda x, n=name: getattr(x, n)((0, -1), keepdim=True),
                (X,),
            ),
            Case(
                f"aten.{name}.default", getattr(torch, name), (T((9,), torch.float16),), "float16", rtol=1e-2, atol=1e-2
            ),
        )
    ),
    Case("aten.sum.dim_IntList", lambda x: x.sum(1), (I,), "int64"),
    Case("aten.sum.dim_IntList", lambda x: x.sum(1), (B,), "bool counts"),
    Case("aten.sum.dim_IntList", lambda x: x.sum(1, dtype=torch.float64), (I,), "dtype"),
    Case("aten.sum.dim_IntList", lambda x: x.sum(0), (EMPTY,), "empty"),
    Case("aten.sum.dim_IntList", lambda x: x.sum(-1), (X,), "opset 12", opset=12),
    Case("aten.sum_to_size.default", lambda x: x.sum_to_size(1, x.shape[-1]), (X,), "dynamic"),
    Case("aten.sum_to_size.default", lambda x: x.sum_to_size(2, 1, 4), (T((3, 2, 5, 4), torch.int32),), "leading"),
    Case("aten.sum_to_size.default", lambda x: x.sum_to_size(x.shape), (T((2, 3), torch.bool),), "as it is"),
    Case("aten.mean.dim", lambda x: x.mean(-1), (X,), "opset 17", opset=17, ops=("ReduceMean",)),
    Case("aten.prod.default", torch.prod, (T((2, 3)),)),
    Case("aten.prod.dim_int", lambda x: x.prod(1), (I,)),
    *(
        case
        for shape in (("n", 3), (70, 2), (0, 2), (1, 3))
        for dtype in (torch.int32, torch.int64, torch.uint8)
        for case in (
            Case("aten.prod.default", torch.prod, (T(shape, dtype, 50, 90),), f"wraps {shape} {dtype}"),
            Case("aten.prod.dim_int", lambda x: x.prod(0), (T(shape, dtype, 50, 90),), f"wraps {shape} {dtype}"),
        )
    ),
    *(
        Case(
            "aten.prod.dim_int", lambda x, d=dtype: x.prod(0, dtype=d), (T(("n", 3), torch.int64, -99, 99),), f"{dtype}"
        )
        for dtype in (torch.int8, torch.int16, torch.int32, torch.float32)
    ),
    Case("aten.prod.default", lambda x: (x > 0).prod(), (I,), "bool", ops=("Greater", "Cast", "ReduceProd")),
    Case("aten.prod.default", torch.prod, (torch.tensor(7, dtype=torch.int32),), "0-dim"),
    Case(
        "aten.sum.dim_IntList", lambda x: x.sum(0, dtype=torch.int32), (T(("n", 2), torch.int32, 2e9, 2.1e9),), "wraps"
    ),
    *(
        Case(
            f"aten.{name}.default",
            lambda x, n=name: getattr(torch, n)(x, 1),
            (inputs,),
            kind,
            numerics="exact" if inputs is NAN else "default",
        )
        for name in ("amax", "amin")
        for kind, inputs in {
            "float": X,
            "NaN": NAN,
            "int64": I,
            "bool": B,
            "int8": T((2, 3), torch.int8, -9, 9),
            "uint8": T((2, 3), torch.uint8, 0, 200),
        }.items()
    ),
    Case("aten.amax.default", lambda x: torch.amax(x, (), keepdim=True), (X,), "all dims"),
    Case("aten.max.default", torch.max, (NAN,), "NaN", numerics="exact"),
    Case("aten.max.default", torch.max, (I,)),
    Case("aten.min.default", torch.min, (X,)),
    *(
        case
        for name in ("any", "all")
        for case in (
            Case(f"aten.{name}.default", getattr(torch, name), (B,)),
            Case(f"aten.{name}.dim", lambda x, n=name: getattr(torch, n)(x, 1), (NAN,), "NaN is true"),
            Case(f"aten.{name}.dim", lambda x, n=name: getattr(torch, n)(x, 0), (EMPTY,), "empty"),
            Case(f"aten.{name}.dims", lambda x, n=name: getattr(aten, n).dims(x, [0, 1], True), (B,)),
            Case(f"aten.{name}.default", getattr(torch, name), (T((3,), torch.uint8, 0, 2),), "uint8 stays"),
        )
    ),
    *(
        case
        for name in ("var", "std")
        for case in (
            Case(f"aten.{name}.default", getattr(aten, name).default, (X,)),
            Case(f"aten.{name}.dim", lambda x, n=name: getattr(aten, n).dim(x, [1], False, True), (X,)),
            Case(f"aten.{name}.correction", lambda x, n=name: getattr(torch, n)(x, (0, 1), correction=1), (X,)),
            Case(
                f"aten.{name}.correction",
                lambda x, n=name: getattr(torch, n)(x, 0, correction=3),
                (T((2, 3)),),
                "too few",
            ),
        )
    ),
    *(
        Case(
            "aten.hash_tensor.default",
            torch.hash_tensor,
            (T((3, 5), dtype, 0 if dtype == torch.uint8 else -9, 9),),
            f"{dtype}",
        )
        for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)
    ),
    *(
        Case(
            "aten.hash_tensor.default",
            lambda x: (torch.hash_tensor(x), torch.hash_tensor(x[:, None], 1)),
            (FLOATS.to(dtype),),
            f"{dtype}",
        )
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    ),
    Case(
        "aten.hash_tensor.default", lambda x: torch.hash_tensor(x, 1, keepdim=True), (T((3, 7), torch.int64),), "axis"
    ),
    *(
        case
        for name in ("var_mean", "std_mean")
        for case in (
            Case(f"aten.{name}.default", getattr(aten, name).default, (X,)),
            Case(f"aten.{name}.dim", lambda x, n=name: getattr(aten, n).dim(x, [1], False, True), (X,)),
            Case(f"aten.{name}.correction", lambda x, n=name: getattr(torch, n)(x, (0, 1), correction=1), (X,)),
            Case(f"aten.{name}.correction", lambda x, n=name: getattr(torch, n)(x, 0, correction=0), (X,), "biased"),
            Case(
                f"aten.{name}.correction",
                lambda x, n=name: getattr(torch, n)(x, 1, correction=1),
                (T((2, 3), torch.float64),),
                "float64",
            ),
            Case(f"aten.{name}.correction", lambda x, n=name: getattr(torch, n)(x, 0, correction=0), (T(()),), "0-dim"),
        )
    ),
    Case("aten.std.correction", lambda x: x.std(0, correction=0), (T((2, 3)),), "biased"),
    Case("aten.logsumexp.default", lambda x: torch.logsumexp(x, (1, 2)), (X,)),
    Case("aten.cumsum.default", lambda x: x.cumsum(-1), (X,)),
    Case("aten.cumsum.default", lambda x: x.cumsum(0), (I,), "int64"),
    Case("aten.cumsum.default", lambda x: x.cumsum(0), (B,), "bool"),
    Case("aten.cumsum.default", lambda x: x.cumsum(0), (T(()),), "0-dim"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reduction(case: Case) -> None:
    run(case)
