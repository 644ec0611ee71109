"""Binary arithmetic and torch's type promotion."""

from __future__ import annotations

import math

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten

N, I = T(("n", 3)), T(("n", 3), torch.int64, -9, 9)
POSITIVE = T(("n", 3), torch.int64, 1, 9)
B = T(("n", 3), torch.bool)
ROW = T((3,))
SIGNED = T((3,), torch.int64, -3, 0)

CASES = (
    Case("aten.add.Tensor", torch.add, (N, ROW), ops=("Add",)),
    Case("aten.add.Tensor", lambda a, b: torch.add(a, b, alpha=2.5), (N, ROW), "alpha"),
    Case("aten.add.Tensor", lambda a, b: a + b, (B, B), "bool"),
    Case("aten.add.Tensor", lambda a: a + 1, (I,), "number"),
    Case("aten.add.Tensor", lambda a: a + 1.5, (I,), "int tensor and float"),
    Case("aten.add.Tensor", lambda a: a + True, (I,), "bool number"),
    Case("aten.add.Tensor", torch.add, (T((3,), torch.float16), T((), torch.float64)), "0-dim does not promote"),
    Case("aten.add.Tensor", torch.add, (T((3,), torch.int32), T((3,), torch.float64)), "promotion"),
    Case("aten.add.Scalar", lambda a: aten.add.Scalar(a, 2, 3), (N,)),
    Case("aten.sub.Tensor", torch.sub, (N, ROW), ops=("Sub",)),
    Case("aten.sub.Tensor", lambda a, b: torch.sub(a, b, alpha=2), (I, POSITIVE), "alpha"),
    Case(
        "aten.sub.Tensor",
        lambda a, b: torch.sub(a, b, alpha=0.3),
        (T(("n", 3), torch.float16), T((3,), torch.float16)),
        "float16 is rounded once",
    ),
    Case("aten.sub.Scalar", lambda a: aten.sub.Scalar(a, 2), (N,)),
    Case("aten.rsub.Tensor", torch.rsub, (N, ROW)),
    Case("aten.rsub.Scalar", lambda a: torch.rsub(a, 1, alpha=3), (N,)),
    Case("aten.mul.Tensor", torch.mul, (N, ROW), ops=("Mul",)),
    Case("aten.mul.Tensor", lambda a, b: a * b, (B, B), "bool"),
    Case("aten.mul.Tensor", lambda a: a * -0.0, (N,), "negative zero"),
    Case("aten.mul.Scalar", lambda a: aten.mul.Scalar(a, 2), (N,)),
    Case("aten.multiply.Tensor", lambda a, b: aten.multiply.Tensor(a, b), (N, ROW)),
    Case("aten.div.Tensor", torch.div, (N, ROW)),
    Case("aten.div.Tensor", torch.div, (I, POSITIVE), "integers"),
    Case("aten.div.Scalar", lambda a: aten.div.Scalar(a, 2), (I,)),
    Case("aten.true_divide.Tensor", lambda a, b: aten.true_divide.Tensor(a, b), (N, ROW)),
    *(
        Case("aten.div.Tensor_mode", lambda a, b, m=mode: torch.div(a, b, rounding_mode=m), inputs, f"{mode} {kind}")
        for mode in (None, "floor", "trunc")
        for kind, inputs in {"float": (N, ROW), "int": (I, POSITIVE), "negative": (I, SIGNED)}.items()
    ),
    Case("aten.div.Scalar_mode", lambda a: aten.div.Scalar_mode(a, -3, rounding_mode="floor"), (I,)),
    Case("aten.floor_divide.default", torch.floor_divide, (I, SIGNED)),
    Case("aten.floor_divide.default", lambda a: a // 3, (T(("n",), torch.uint8, 0, 99),), "uint8"),
    Case(
        "aten.floor_divide.default",
        torch.floor_divide,
        (
            torch.tensor([1.0, 7.0, -1.0, 1.0, -7.5, 0.0, 3.0, -3.0, math.inf]),
            torch.tensor([0.1, 0.7, math.inf, -math.inf, 2.5, 3.0, 0.0, 0.0, 2.0]),
        ),
        "rounded quotients",
    ),
    Case("aten.floor_divide.Scalar", lambda a: aten.floor_divide.Scalar(a, 3), (I,)),
    Case("aten.remainder.Tensor", torch.remainder, (I, SIGNED)),
    Case("aten.remainder.Tensor", torch.remainder, (N, ROW), "float"),
    Case("aten.remainder.Scalar", lambda a: a % -2.5, (N,)),
    Case("aten.remainder.Scalar_Tensor", lambda a: 7 % a, (POSITIVE,)),
    Case("aten.fmod.Tensor", torch.fmod, (N, ROW)),
    Case("aten.fmod.Scalar", lambda a: torch.fmod(a, 3), (I,)),
    Case("aten.pow.Tensor_Tensor", torch.pow, (T(("n", 3), low=0.1), ROW)),
    Case("aten.pow.Tensor_Tensor", torch.pow, (I, T((3,), torch.int64, 0, 4)), "int64"),
    Case("aten.pow.Tensor_Tensor", torch.pow, (T((3,), torch.uint8, 0, 9), T((3,), torch.uint8, 0, 4)), "uint8 wraps"),
    Case(
        "aten.pow.Tensor_Tensor",
        torch.pow,
        (torch.tensor([3, -3, 2, 2, 1, -1, -1, 5, 0, 0]), torch.tensor([37, 39, 62, 64, -3, -3, -4, -2, -1, 0])),
        "int64 wraps, negative exponents",
    ),
    Case("aten.pow.Tensor_Tensor", torch.pow, (T((0,), torch.int64), T((0,), torch.int64)), "no integers"),
    Case("aten.pow.Tensor_Scalar", lambda a: a**41, (I,), "int64 wraps"),
    Case("aten.pow.Tensor_Scalar", lambda a: a**0, (I,), "int64 to the power of 0"),
    Case("aten.pow.Scalar", lambda a: 2**a, (T(("n", 3), torch.int32, -2, 40),), "int32 wraps"),
    *(
        Case("aten.pow.Tensor_Scalar", lambda a, e=e: a**e, (T(("n", 3), low=0.1),), str(e))
        for e in (2, 1, 0.5, -1, 3, 1.7, 0)
    ),
    Case("aten.pow.Tensor_Scalar", lambda a: a**2, (I,), "int64"),
    Case("aten.pow.Scalar", lambda a: 2**a, (N,)),
    Case("aten.addcmul.default", lambda a, b, c: torch.addcmul(a, b, c, value=0.5), (N, N, ROW)),
    Case("aten.addcdiv.default", lambda a, b, c: torch.addcdiv(a, b, c, value=2), (N, N, T((3,), low=0.5))),
    Case("aten.maximum.default", torch.maximum, (N, torch.tensor([0.0, float("nan"), 1.0])), "NaN"),
    Case("aten.maximum.default", torch.maximum, (T((3,), torch.int8, -9, 9), T((3,), torch.int8, -9, 9)), "int8"),
    Case("aten.max.other", lambda a, b: aten.max.other(a, b), (B, B), "bool"),
    Case("aten.minimum.default", torch.minimum, (N, ROW)),
    Case("aten.min.other", lambda a, b: aten.min.other(a, b), (I, SIGNED)),
    Case("aten.add.Tensor", lambda a: a + a.shape[0], (N,), "symbolic size"),
    Case("aten.mul.Tensor", lambda a: a * (a.shape[0] * 2 // 3), (I,), "size expression"),
    Case("aten.add.Tensor", torch.add, (N, ROW), "opset 11", opset=11),
    Case("aten.diff.default", torch.diff, (T(("n", "m")),)),
    Case("aten.diff.default", lambda x: torch.diff(x, 2, 0), (T((4, 3), torch.int64, -9, 9),), "twice"),
    Case("aten.diff.default", lambda x: torch.diff(x, 0) + 1, (N,), "not at all", ops=("Add",)),
    Case("aten.diff.default", torch.diff, (B,), "bool"),
    Case(
        "aten.diff.default",
        lambda x, y, z: torch.diff(x, dim=0, prepend=y, append=z),
        (T(("n", 2)), T((1, 2)), T(("m", 2))),
        "extended",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_arithmetic(case: Case) -> None:
    run(case)
