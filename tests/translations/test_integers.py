"""Bit shifts, gcd and lcm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten


def _shifts() -> Iterator[Case]:
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        function = getattr(aten, name)
        for dtype in (torch.int64, torch.int32, torch.uint8):
            numbers = T(("n", 3), dtype, 0 if dtype == torch.uint8 else -100, 100)
            yield Case(f"aten.{name}.Tensor", function, (numbers, T((3,), dtype, 0, 7)), str(dtype))
        yield Case(f"aten.{name}.Tensor_Scalar", lambda x, f=function: f(x, 2), (T(("n", 3), torch.int64),))
        yield Case(f"aten.{name}.Scalar_Tensor", lambda x, f=function: f(7, x), (T(("n",), torch.int64, 0, 5),))
    yield Case(
        "aten.bitwise_right_shift.Tensor",
        torch.bitwise_right_shift,
        (torch.tensor([-9, 9, -(2**63)]), torch.tensor([63, 62, 63])),
        "all bits",
    )
    yield Case(
        "aten.__lshift__.Tensor",
        lambda x, y: aten.__lshift__(x, y),
        (T(("n", 3), torch.int64), T((3,), torch.int64, 0, 5)),
    )
    yield Case("aten.__lshift__.Scalar", lambda x: x << 3, (T(("n", 3), torch.int64),))
    yield Case(
        "aten.__rshift__.Tensor",
        lambda x, y: aten.__rshift__(x, y),
        (T(("n", 3), torch.int64), T((3,), torch.int64, 0, 5)),
    )
    yield Case("aten.__rshift__.Scalar", lambda x: x >> 1, (T(("n", 3), torch.int64),))


CASES = (
    *_shifts(),
    *(
        Case(
            "aten.__and__.Scalar",
            lambda x: x & 7,
            (torch.tensor([lowest, -9, -8, -1, 0, 7, 8, 15]).to(dtype),),
            f"mask of {dtype}, opset 17",
            opset=17,
            ops=("Mod",),
        )
        for dtype, lowest in ((torch.int64, -(2**63)), (torch.int32, -(2**31)), (torch.int8, -128), (torch.uint8, 0))
    ),
    Case("aten.gcd.default", torch.gcd, (T(("n", 3), torch.int64, -60, 60), T((3,), torch.int64, -60, 60))),
    Case(
        "aten.gcd.default",
        torch.gcd,
        (torch.tensor([0, 0, 12, 7540113804746346429]), torch.tensor([0, 5, 0, 4660046610375530309])),
        "edges",
    ),
    Case("aten.lcm.default", torch.lcm, (T(("n", 3), torch.int32, -60, 60), T((3,), torch.int32, -60, 60))),
    Case("aten.lcm.default", torch.lcm, (torch.tensor([0, 4]), torch.tensor([0, 6])), "zeros"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_translation(case: Case) -> None:
    run(case)
