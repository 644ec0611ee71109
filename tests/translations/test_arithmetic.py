"""Binary arithmetic and torch's type promotion."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import fxonnx

from ..functions import VariadicFunction
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
    Case("aten.add.Tensor", lambda a, b: torch.add(a, b, alpha=False), (B, B), "bool, alpha=False"),
    Case("aten.add.Tensor", lambda a: torch.add(a, True, alpha=False), (B,), "bool and number, alpha=False"),
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
    Case("aten.sub.Tensor", lambda a, f: torch.sub(a, a.exp(), alpha=f / 2), (N, T(())), "a tensor as factor"),
    Case(
        "aten.rsub.Tensor", lambda a, f: torch.rsub(a, a.exp(), alpha=1 / f), (N, T((), low=1.0)), "a tensor as factor"
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
            torch.tensor([1.0, 7.0, -1.0, 1.0, -7.5, 0.0, 3.0, -3.0]),
            torch.tensor([0.1, 0.7, 3.0, -0.3, 2.5, 3.0, 0.0, 0.0]),
        ),
        "rounded quotients",
        ops=("Cast", "Cast", "Div", "Floor", "Cast"),
    ),
    Case(
        "aten.floor_divide.default",
        lambda a, b: (a // b, a // 2, a // 0.1, a // math.inf, torch.div(a, 3.0, rounding_mode="trunc")),
        (torch.tensor([1.0, -1.0, 1.0, -1.0, math.inf]), torch.tensor([0.1, math.inf, -math.inf, 0.0, 2.0])),
        "infinities",
        numerics="exact",
    ),
    Case("aten.floor_divide.Scalar", lambda a: aten.floor_divide.Scalar(a, 3), (I,)),
    Case("aten.remainder.Tensor", torch.remainder, (I, SIGNED)),
    Case("aten.remainder.Tensor", torch.remainder, (N, ROW), "float"),
    Case("aten.remainder.Scalar", lambda a: a % -2.5, (N,)),
    Case("aten.remainder.Scalar_Tensor", lambda a: 7 % a, (POSITIVE,)),
    Case("aten.fmod.Tensor", torch.fmod, (N, ROW)),
    Case("aten.fmod.Scalar", lambda a: torch.fmod(a, 3), (I,)),
    Case("aten.fmod.Scalar", lambda a: torch.fmod(torch.ones_like(a), -3), (T(("n",), torch.int64, -9, 9),), "of ones"),
    Case(
        "aten.fmod.Tensor",
        lambda a: torch.fmod(torch.tensor(1), a.abs() + 2),
        (T(("n",), torch.int64, -9, 9),),
        "of one",
    ),
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
    Case(
        "aten.diff.default",
        lambda x: torch.diff(x, n=3, prepend=x[:, :2]),
        (T((2, "n")),),
        "extended, three times",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_arithmetic(case: Case) -> None:
    run(case)


def _integers(dtype: torch.dtype) -> torch.Tensor:
    """All numbers near zero and near the limits of a signed type."""
    limits = torch.iinfo(dtype)
    near = [*range(limits.min, limits.min + 12), *range(-12, 13), *range(limits.max - 12, limits.max + 1)]
    return torch.tensor(near, dtype=dtype)


_FLOATS = [0.0, 0.1, 0.3, 1.0, 1.5, 2.0, 6.0, 7.5, 1e-45, 1e-38, 1e-3, 1e3, 12345.678, 2.0**24, 2.0**25 + 4, 1e30]


@pytest.mark.parametrize("opset", [11, 16, 20, 23])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8], ids=str)
def test_quotients_of_all_integers_by_a_constant(dtype: torch.dtype, opset: int) -> None:
    x = _integers(dtype)
    divisors = (1, -1, 2, 4, 64, 3, 7, 100, -2, -3, -100)
    model = VariadicFunction(
        lambda x: [f(x, c) for c in divisors for f in (torch.floor_divide, torch.remainder)]
    ).eval()
    program = fxonnx.export(model, (x,), opset_version=opset)
    for ours, expected in zip(program(x), model(x), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=0)


@pytest.mark.parametrize("opset", [11, 20])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8], ids=str)
def test_quotients_of_all_integers(dtype: torch.dtype, opset: int) -> None:
    x = _integers(dtype)
    divisors = x[(x != 0) & (x != -1)]
    model = VariadicFunction(lambda a, b: (a[:, None] // b, a[:, None] % b, torch.fmod(a[:, None], b))).eval()
    program = fxonnx.export(model, (x, divisors), opset_version=opset)
    for ours, expected in zip(program(x, divisors), model(x, divisors), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=0)


def _quotients(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    constants = (2.0, 0.5, -4.0, 1.0, -1.0, 0.1, 3.0, -1.5, 1e-3, -7.0, 0.0)
    return [
        a[:, None] // b,
        a[:, None] % b,
        *[f(a, c) for c in constants for f in (torch.floor_divide, torch.remainder)],
    ]


@pytest.mark.parametrize(("dtype", "numerics"), [(torch.float32, "exact"), (torch.float64, "default")], ids=str)
def test_quotients_of_floats(dtype: torch.dtype, numerics: Any) -> None:
    x = torch.tensor([*_FLOATS, *(-number for number in _FLOATS), math.inf, -math.inf, math.nan], dtype=dtype)
    # torch's limit: its remainder is NaN where the quotient overflows.
    divisors = x[(x == 0) | ~(x.abs() < 1e-4)]
    model = VariadicFunction(_quotients).eval()
    program = fxonnx.export(model, (x, divisors), options=fxonnx.ExportOptions(numerics=numerics))
    for ours, expected in zip(program(x, divisors), model(x, divisors), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)


def _hard_quotients(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Dividends next to multiples of the divisors, of any size."""
    generator = torch.Generator().manual_seed(0)
    random, count = lambda: torch.rand(400, generator=generator, dtype=torch.float64) * 2 - 1, 400
    exponents = random() * (12 if dtype == torch.float16 else 60)
    divisors = torch.ldexp(random(), exponents).to(dtype)
    multiples = divisors.double() * torch.ldexp(random(), random().abs() * 30).round()
    dividends = multiples.to(dtype)
    beside = [torch.nextafter(dividends, torch.full_like(dividends, limit)) for limit in (math.inf, -math.inf)]
    tiny = torch.finfo(dtype).smallest_normal
    x = torch.cat([dividends, *beside, torch.tensor([tiny, -tiny, 1.0, -1.0, 0.0, -0.0, 7.0], dtype=dtype)])
    y = torch.cat([divisors] * 3 + [torch.tensor([-(2.0**15), 2.0**15, 0.1, 0.0, 0.0, -2.0, -0.0], dtype=dtype)])
    assert len(x) == 3 * count + 7
    return x[x.isfinite()], y[x.isfinite()]


@pytest.mark.parametrize(
    ("dtype", "opset"),
    [(torch.float32, 7), (torch.float32, 20), (torch.float16, 11), (torch.float16, 23), (torch.bfloat16, 18)],
    ids=str,
)
def test_floors_of_quotients_are_exact(dtype: torch.dtype, opset: int) -> None:
    """Large quotients are exact as well, where torch's are not: float64 has enough bits for these."""
    x, y = _hard_quotients(dtype)
    constants = (2.0, 0.5, -4.0, 1.0, 0.1, 3.0, -7.7, 0.0)
    model = VariadicFunction(lambda a, b: [a // b, *(a // c for c in constants)]).eval()
    program = fxonnx.export(model, (x, y), opset_version=opset)
    # torch does not round a number to half precision.
    single = [torch.tensor(c, dtype=torch.float32).double() for c in constants]
    found = program(x, y)
    for ours, divisor in zip(found, [y.double(), *single], strict=True):
        expected = (x.double() / divisor).floor().to(dtype)
        torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)
    for ours, expected in zip(found, model(x, y), strict=True):
        small = ~(expected.abs() >= {torch.float16: 2**9, torch.bfloat16: 2**6}.get(dtype, 2**22))
        torch.testing.assert_close(ours[small], expected[small], rtol=0, atol=0, equal_nan=True)
        zero = small & (expected == 0)
        assert torch.equal(ours[zero].signbit(), expected[zero].signbit())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_truncated_quotients(dtype: torch.dtype) -> None:
    x, y = _hard_quotients(dtype)
    y = torch.where(y == 0, 1, y)
    constants = (3.0, -7.7, 0.1, 1.0)
    model = VariadicFunction(
        lambda a, b: [torch.div(a, c, rounding_mode="trunc") for c in (b, b[:1], *constants)]
    ).eval()
    program = fxonnx.export(model, (x, y))
    for ours, expected in zip(program(x, y), model(x, y), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("function", "inputs", "operators"),
    [
        (lambda x: x // 3, (_integers(torch.int64),), "Clip Sub Div Add"),
        (lambda x: x // -3, (_integers(torch.int64),), "Clip Sub Div Sub"),
        (lambda x: x // 4, (_integers(torch.int64),), "Mod Sub Div"),
        (lambda x: x // -1, (_integers(torch.int64),), "Sub"),
        (lambda x: x % 3, (_integers(torch.int64),), "Mod"),
        (lambda x: torch.fmod(x, 3), (_integers(torch.int64),), "Div Mul Sub"),
        (lambda x: torch.fmod(x, 3), (_integers(torch.int32),), "Mod"),
        (lambda x: torch.div(x, 3, rounding_mode="trunc"), (_integers(torch.int64),), "Div"),
        (lambda x, y: x // y, (torch.arange(3), torch.arange(1, 4)), "Mod Sign Mul Div Clip Add"),
        (
            lambda x, y: x // y,
            (_integers(torch.int32), torch.tensor([3], dtype=torch.int32)),
            "Mod Sign Mul Div Clip Add",
        ),
        (lambda x: x // torch.arange(1, 51), (_integers(torch.int64),), "Clip Sub Div Add"),
        (lambda x: x % 2.5, (torch.ones(3),), "Mod Less Add Where"),
        (lambda x: x // 2.5, (torch.ones(3),), "Cast Div Floor Cast"),
        (lambda x: x // 2, (torch.ones(3),), "Floor Div Floor"),
        (lambda x: x // -4, (torch.ones(3),), "Ceil Div Floor"),
        (lambda x: x // 0.5, (torch.ones(3),), "Div Floor"),
        (lambda x: x // 1, (torch.ones(3),), "Floor"),
        (lambda x: x // 2.5, (torch.ones(3, dtype=torch.float16),), "Cast Div Floor Cast"),
        (lambda x: torch.div(x, 3, rounding_mode="trunc"), (torch.ones(3),), "Div Mod Sub"),
        (lambda x, y: x % y, (torch.ones(3), torch.ones(3)), "Mod Sign Mul Less Add Where"),
    ],
)
def test_operators_of_quotients(function: Any, inputs: tuple[torch.Tensor, ...], operators: str) -> None:
    program = fxonnx.export(VariadicFunction(function).eval(), inputs)
    assert [node.op_type for node in program.model.graph] == operators.split()


def test_quotients_of_positions() -> None:
    """Positions are not negative: their truncated quotient is the floor. Sizes are positive divisors."""
    model = VariadicFunction(
        lambda x: (x + torch.arange(x.shape[0]) // 3, torch.arange(5) // x.shape[0], x.long() // x.shape[0])
    ).eval()
    x = torch.arange(-8.0, 3.0)
    program = fxonnx.export(model, (x[:4],), dynamic_shapes=(({0: "n"},),))
    operators = [node.op_type for node in program.model.graph]
    assert (operators.count("Div"), operators.count("Clip"), operators.count("Mod")) == (3, 1, 0)
    for ours, expected in zip(program(x), model(x), strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("base", [2, 3, -1])
def test_integer_powers_of_every_number_of_bits(base: int) -> None:
    """The largest exponent determines the number of squarings."""

    class Power(nn.Module):
        def forward(self, exponents: torch.Tensor) -> torch.Tensor:
            return base**exponents

    program = fxonnx.export(Power().eval(), (torch.arange(3),), dynamic_shapes={"exponents": {0: "n"}})
    for largest in range(300):
        exponents = torch.tensor([largest, 0, largest // 2])
        torch.testing.assert_close(program(exponents)[0], base**exponents)
