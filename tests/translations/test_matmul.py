"""Matrix products."""

from __future__ import annotations

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten

CASES = (
    Case("aten.linear.default", torch.nn.Linear(3, 5), (T(("n", 3)),), "2d", ops=("Gemm",)),
    Case("aten.linear.default", torch.nn.Linear(3, 5, bias=False), (T(("n", 3)),), "2d no bias", ops=("Gemm",)),
    Case("aten.linear.default", torch.nn.Linear(3, 5), (T((2, "n", 3)),), "3d", ops=("MatMul", "Add")),
    Case("aten.linear.default", torch.nn.Linear(3, 5), (T((3,)),), "1d"),
    Case("aten.linear.default", torch.nn.functional.linear, (T(("n", 3)), T((3,))), "vector weight"),
    Case("aten.linear.default", torch.nn.functional.linear, (T((2, "n", 3)), T((5, 3)), T((5,))), "runtime weight"),
    Case("aten.matmul.default", torch.matmul, (T(("n", 3)), T((3, "m")))),
    Case("aten.matmul.default", torch.matmul, (T((2, "n", 3)), T((3,))), "vector"),
    Case("aten.matmul.default", torch.matmul, (T((3,)), T((3,))), "dot"),
    Case("aten.mm.default", aten.mm.default, (T(("n", 3)), T((3, "m")))),
    Case("aten.bmm.default", aten.bmm.default, (T(("n", 2, 3)), T(("n", 3, 4)))),
    Case("aten.mv.default", aten.mv.default, (T(("n", 3)), T((3,)))),
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
