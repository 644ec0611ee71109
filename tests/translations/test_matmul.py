"""Matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten


def _einsum(equation: str) -> Any:
    return lambda *tensors: torch.einsum(equation, *tensors)


def _covariances() -> Iterator[Case]:
    counts, factors = torch.tensor([1, 3, 2, 1, 4]), torch.tensor([0.5, 1.0, 0.25, 2.0, 1.5])
    x = T(("n", 5))
    for name, function, value in (
        ("", torch.cov, x),
        ("one variable", torch.cov, T(("n",))),
        ("one row", torch.cov, T((1, 5))),
        ("int64", torch.cov, T((3, 5), torch.int64)),
        ("float64", torch.cov, T((3, 5), torch.float64)),
        ("too few", partial(torch.cov, correction=9), x),
        ("counts", lambda x: torch.cov(x, fweights=counts), x),
        ("weights", lambda x: torch.cov(x, aweights=factors), x),
        ("both", lambda x: torch.cov(x, correction=2, fweights=counts, aweights=factors), x),
        ("both, biased", lambda x: torch.cov(x, correction=0, fweights=counts, aweights=factors), x),
    ):
        yield Case("aten.cov.default", function, (value,), name)
    for name, value in (
        ("", x),
        ("one variable", T((5,))),
        ("constant", torch.ones(2, 3)),
        ("int64", T((3, 5), torch.int64)),
        ("float64", T((3, 5), torch.float64)),
    ):
        yield Case("aten.corrcoef.default", torch.corrcoef, (value,), name)


CASES = (
    *_covariances(),
    Case("aten.linear.default", torch.nn.Linear(3, 5), (T(("n", 3)),), "2d", ops=("Gemm",)),
    Case("aten.linear.default", torch.nn.Linear(3, 5, bias=False), (T(("n", 3)),), "2d no bias", ops=("Gemm",)),
    Case("aten.linear.default", torch.nn.Linear(3, 5), (T((2, "n", 3)),), "3d", ops=("MatMul", "Add")),
    Case("aten.linear.default", torch.nn.Linear(3, 5), (T((3,)),), "1d"),
    Case("aten.linear.default", torch.nn.functional.linear, (T(("n", 3)), T((3,))), "vector weight"),
    Case("aten.linear.default", torch.nn.functional.linear, (T((2, "n", 3)), T((5, 3)), T((5,))), "runtime weight"),
    *(
        Case(
            "aten.einsum.default",
            _einsum(equation),
            (T(first, dtype), T(second, dtype)),
            f"{equation} {dtype}",
            ops=ops,
        )
        for dtype in (torch.float32, torch.float16)
        for equation, first, second, ops in (
            ("bgid,bgjd->bgij", ("n", 2, 3, 4), ("n", 2, 5, 4), ("Transpose", "MatMul")),
            ("bgij,bgjd->bgid", ("n", 2, 3, 4), ("n", 2, 4, 5), ("MatMul",)),
            ("bid,bdj->bji", ("n", 3, 4), ("n", 4, 5), ("Transpose", "Transpose", "MatMul")),
            ("bdi,bjd->bji", ("n", 4, 3), ("n", 5, 4), ("MatMul",)),
            ("ik,kj->ij", ("n", 4), (4, "m"), ("MatMul",)),
        )
    ),
    Case(
        "aten.einsum.default",
        _einsum("bhwc,hkc->bhwk"),
        (T(("n", 3, 4, 5)), T((3, 6, 5))),
        "broadcast",
        ops=("Einsum",),
    ),
    Case("aten.einsum.default", _einsum("nc,kc,k->nk"), (T(("n", 3)), T((4, 3)), T((4,))), "three", ops=("Einsum",)),
    Case("aten.einsum.default", _einsum("ii->i"), (T((3, 3)),), "diagonal"),
    *(
        Case(
            "aten.einsum.default",
            _einsum(equation),
            tuple(T(shape, dtype) for shape in shapes),
            f"{name} {dtype}",
            ops=ops if dtype == torch.float32 else None,
        )
        for dtype in (torch.float32, torch.float16, torch.int32)
        for name, equation, shapes, ops in (
            ("heads", "...hd,hod->...ho", (("n", "m", 4, 2), (4, 3, 2)), ("Einsum",)),
            ("heads of another length", "...c,b...d,cdh->b...h", (("m", 2), ("n", "m", 3), (2, 3, 4)), ("Einsum",)),
            ("scores", "...ic,...jc->...ij", (("n", "m", 4), ("n", 3, 4)), None),
            ("summed ellipsis", "...i->i", (("n", "m", 4),), ("ReduceSum",)),
            ("no result", "bij,bik", (("n", "m", 4), ("n", "m", 4)), ("Einsum",)),
            ("no result, with an ellipsis", "...zy,...ya", (("n", "m", 4), ("n", 4, 3)), None),
            ("diagonals", "...ii->...i", (("n", "m", "m"),), None),
            ("trace", "bii->b", (("n", "m", "m"),), None),
            ("diagonal times vector", "bii,i->b", (("n", "m", "m"), ("m",)), None),
            ("outer", "bi,bj->bij", (("n", "m"), ("n", 3)), ("Einsum",)),
            ("one", "btc,bsc->bts", (("n", 1, 4), ("n", "m", 4)), None),
            ("broadcast", "btc,btc->bt", (("n", "m", 1), ("n", "m", 4)), None),
            ("broadcast batch", "...c,...c->...", ((1, "m", 4), ("n", "m", 4)), None),
            ("labels of one operand", "bic,dj->cb", (("n", "m", 4), (3, 2)), ("Einsum",)),
        )
    ),
    Case(
        "aten.einsum.default",
        lambda x, y, z: torch.ops.aten.einsum("ab,bc,cd->ad", [x, y, z], path=[1, 2, 0, 1]),
        (T(("n", 3), torch.float16), T((3, "m"), torch.float16), T(("m", 2), torch.float16)),
        "path",
    ),
    Case("aten.einsum.default", _einsum("...ij,...jk"), (T((2, "n", 3)), T((2, 3, 4))), "ellipsis"),
    Case("aten.einsum.default", _einsum("bij,bjk->bik"), (T((1, 2, 3)), T((4, 3, 2))), "size 1"),
    Case("aten.einsum.default", _einsum("nc,kc->n"), (T(("n", 3), torch.float16), T((4, 3), torch.float16)), "half"),
    Case("aten.einsum.default", _einsum("nc,kc->n"), (T(("n", 3)), T((4, 3))), "opset 11", opset=11),
    Case("aten.einsum.default", _einsum("ni,i->ni"), (T(("n", 3)), T((3,), torch.float64)), "promotion"),
    Case("aten.einsum.default", _einsum("i->"), (T(("n",), torch.int32),), "sum of integers"),
    Case("aten.einsum.default", _einsum("ij,jk->ik"), (T(("n", 3), torch.int32), T((3, 4), torch.int32)), "integers"),
    Case("aten.matmul.default", torch.matmul, (T(("n", 3)), T((3, "m")))),
    Case("aten.matmul.default", torch.matmul, (T((2, "n", 3)), T((3,))), "vector"),
    Case("aten.matmul.default", torch.matmul, (T((3,)), T((3,))), "dot"),
    Case("aten.mm.default", aten.mm.default, (T(("n", 3)), T((3, "m")))),
    Case("aten.bmm.default", aten.bmm.default, (T(("n", 2, 3)), T(("n", 3, 4)))),
    Case("aten.mv.default", aten.mv.default, (T(("n", 3)), T((3,)))),
    Case("aten.mv.default", lambda a, v: aten.mv(a.t(), v), (T(("n", "m")), T(("n",))), "transposed", ops=("MatMul",)),
    Case(
        "aten.mv.default", lambda a, v: aten.mv(a.t() + a.t().exp(), v), (T(("n", 3)), T(("n",))), "sum of transposed"
    ),
    Case(
        "aten.matmul.default",
        lambda a, v: a.mT.double() @ v.double(),
        (T((2, "n", 3)), T(("n",))),
        "transposed, double",
    ),
    Case("aten.dot.default", aten.dot.default, (T(("n",)), T(("n",)))),
    Case("aten.addmm.default", aten.addmm.default, (T((4,)), T(("n", 3)), T((3, 4)))),
    Case(
        "aten.addmm.default",
        lambda a, b, c: torch.addmm(a, b, c, beta=0, alpha=2),
        (torch.full((4,), float("nan")), T(("n", 3)), T((3, 4))),
        "beta 0 ignores NaN",
    ),
    Case(
        "aten.addmm.default",
        lambda a, b, c: torch.addmm(a, b, c, beta=2, alpha=3),
        (T((4,), torch.int64, -9, 9), T(("n", 3), torch.int64, -9, 9), T((3, 4), torch.int64, -9, 9)),
        "int64",
    ),
    *(
        Case(
            f"aten.{function.__name__}.default",
            lambda a, b, c, f, call=function: call(a, b, c, beta=f / 3, alpha=f),
            (
                T(("n",) if function is torch.addmv else ("n", 3)),
                T(("n", 3) if function is torch.addmv else ("n",)),
                T((3,)),
                T((), dtype, 1, 5),
            ),
            f"{dtype} as factor",
        )
        for function in (torch.addmv, torch.addr)
        for dtype in (torch.float32, torch.int64)
    ),
    Case(
        "aten.addmm.default",
        lambda a, b, f: torch.addmm(a, b, a, beta=f / 3, alpha=f),
        (T((3, 3)), T((3, 3)), T(())),
        "a tensor as factor",
    ),
    Case("aten.addmv.default", lambda a, b, c: torch.addmv(a, b, c, alpha=0.5), (T(("n",)), T(("n", 3)), T((3,)))),
    Case(
        "aten.baddbmm.default",
        lambda a, b, c: torch.baddbmm(a, b, c, beta=0.5),
        (T(("n", 2, 4)), T(("n", 2, 3)), T(("n", 3, 4))),
    ),
    Case("aten.outer.default", torch.outer, (T(("n",)), T(("m",)))),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matmul(case: Case) -> None:
    run(case)
