"""Limits of sizes: short, and equivalent to the guards, which are compared with them at every size of a range."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
import sympy
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

import fxonnx
from fxonnx._capture.constraints.constraint_solver import Bounds, is_implied, limits_of, normal_forms
from fxonnx._capture.constraints.relation_forms import text_of
from fxonnx._capture.constraints.size_sets import SizeSet, size_function
from fxonnx_translations._builder.size_values import SizeValues
from fxonnx_translations._torch_compat import (
    CeilToInt,
    FloorDiv,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    PythonMod,
    sympy_functions,
)
from tests.functions import Function

h, w = (sympy.Symbol(name, integer=True, positive=True) for name in "hw")
k = sympy.Symbol("k", integer=True)

RELATIONS: tuple[type[sympy.Rel], ...] = (sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)


def strided(size: sympy.Expr, stride: int) -> sympy.Expr:
    """The size of the result of a strided convolution."""
    return FloorDiv(size - 1, stride) + 1


def random_size(chance: random.Random, symbol: sympy.Symbol, depth: int) -> sympy.Expr:
    size: sympy.Expr = symbol
    for _ in range(depth):
        number = chance.randint(2, 6)
        kinds: list[Callable[[sympy.Expr, int], sympy.Expr]] = [
            lambda size, number: FloorDiv(size + chance.randint(-3, 3), number),
            lambda size, number: number * size,
            lambda size, number: size + PythonMod(-size, number),
            lambda size, number: PythonMod(size, number),
            lambda size, number: CeilToInt(IntTrueDiv(size, sympy.Integer(number))),
            lambda size, number: sympy_functions.RoundToInt(IntTrueDiv(size, sympy.Integer(number))),
            lambda size, number: FloorDiv(size, Max(2, Min(symbol, number))),
            lambda size, number: Max(size, number),
            lambda size, number: Min(size, 4 * number),
            lambda size, number: size * (symbol + number),
            lambda size, number: size - chance.randint(0, 9),
        ]
        size = chance.choice(kinds)(size, number)
    return size


def random_guards(chance: random.Random, symbol: sympy.Symbol) -> list[sympy.Basic]:
    """Guards of one size, all of which its example satisfies."""
    example = chance.randint(1, 40)
    found: list[sympy.Basic] = []
    while len(found) < chance.randint(1, 4):
        one = random_size(chance, symbol, chance.randint(1, 4))
        other = chance.choice([sympy.Integer(chance.randint(0, 12)), random_size(chance, symbol, chance.randint(0, 2))])
        guard = chance.choice(RELATIONS)(one, other)
        if not guard.free_symbols:
            continue
        if SizeValues({symbol: example}).value(guard) is not True:
            guard = sympy.Not(guard)
        if guard.free_symbols:
            found.append(guard)
    return found


def limits(guards: Sequence[sympy.Basic], bounds: Bounds = Bounds(1)) -> list[sympy.Basic]:  # noqa: B008  # it is frozen
    symbols = {symbol: bounds for guard in guards for symbol in guard.free_symbols}
    forms = [form for guard in guards for form in normal_forms(guard) if not is_implied(form, symbols)]
    return list(limits_of(dict.fromkeys(forms), symbols))


def accepted(conditions: Sequence[sympy.Basic], sizes: dict[sympy.Symbol, int]) -> bool:
    values = SizeValues(sizes)
    return all(values.value(condition) is True for condition in conditions)


@pytest.mark.parametrize("seed", range(40))
def test_limits_and_random_guards_of_one_size_accept_the_same_sizes(seed: int) -> None:
    chance = random.Random(seed)
    symbol = chance.choice([h, h, k])
    guards = random_guards(chance, symbol)
    found = limits(guards, Bounds() if symbol is k else Bounds(1))
    for size in range(-200 if symbol is k else 1, 400):
        assert accepted(found, {symbol: size}) == accepted(guards, {symbol: size}), (guards, found, size)
    for limit in found:
        assert not all(accepted([limit], {symbol: size}) for size in range(-200 if symbol is k else 1, 2000)), limit


@pytest.mark.parametrize("seed", range(20))
def test_limits_and_random_guards_of_two_sizes_accept_the_same_sizes(seed: int) -> None:
    chance = random.Random(seed)
    stride = chance.choice([2, 4, 8])
    guards = [
        chance.choice([sympy.Eq(strided(h, 2), 2 * strided(h, 4)), sympy.Eq(Mod(h, stride), 0), h > stride]),
        chance.choice([sympy.Eq(strided(w, 4), 2 * strided(w, 8)), sympy.Eq(Mod(w, stride), 0), w < 5 * stride]),
        chance.choice(
            [
                sympy.Eq(Mod(strided(h, 2) * strided(w, 4), 4), 0),
                sympy.Eq(h * w, 16 * FloorDiv(h, 4) * FloorDiv(w, 4)),
                sympy.Eq(16 * strided(h, 4) * strided(w, 4), (4 * strided(h, 4)) * sympy.expand(4 * strided(w, 4))),
                sympy.Ge(h * w, 2 * h),
                sympy.Eq(Mod(h + w, 2), 0),
                sympy.Eq(FloorDiv(h, 4) * FloorDiv(w, 4), 1),
                sympy.Ne(Mod(h * w, 3), 0),
            ]
        ),
    ]
    found = limits(guards)
    for sizes in itertools.product(range(1, 50), repeat=2):
        given = dict(zip((h, w), sizes, strict=True))
        assert accepted(found, given) == accepted(guards, given), (guards, found, sizes)


SHORT = [
    pytest.param([sympy.Eq(strided(h, 16), 2 * strided(h, 32)), sympy.Eq(strided(h, 8), 4 * strided(h, 32))], ["h % 32 == 0 or h % 32 >= 25"], id="pyramid"),
    pytest.param([sympy.Eq(h, 2 * FloorDiv(h, 2)), sympy.Eq(FloorDiv(h, 2), 4 * FloorDiv(h, 8)), h > 60], ["h % 8 == 0", "h >= 64"], id="multiple"),
    pytest.param([sympy.Eq(h, 2 * FloorDiv(h, 2)), h < 9, h > 3], ["h in {4, 6, 8}"], id="few"),
    pytest.param([sympy.Eq(Mod(h, 2), 0), sympy.Eq(Mod(h, 3), 0)], ["h % 6 == 0"], id="two-divisors"),
    pytest.param([sympy.Ne(Mod(h, 3), 2)], ["h % 3 != 2"], id="all-but-a-remainder"),
    pytest.param([sympy.Ne(strided(h, 2), 3)], ["h != 5", "h != 6"], id="all-but-two"),
    pytest.param([sympy.Lt(-h + CeilToInt(IntTrueDiv(h - 1, 1) + 1.0), h)], [], id="excludes-nothing"),
    pytest.param([sympy.Ge(2 * strided(h, 32) + 2, 1)], [], id="always-positive"),
    pytest.param([sympy.Eq(Mod(h, 32), 0), sympy.Eq(Mod(w, 32), 0), sympy.Eq(Mod(strided(h, 16) * strided(w, 16), 4), 0)], ["h % 32 == 0", "w % 32 == 0"], id="product"),
    pytest.param([sympy.Eq(FloorDiv(h, 4) * FloorDiv(w, 4), 1)], ["h >= 4", "h <= 7", "w >= 4", "w <= 7"], id="factors-of-one"),
    pytest.param([sympy.Or(h < 3, h > 10)], ["h < 3 or h > 10"], id="no-short-form"),
    pytest.param([sympy.Eq(PythonMod(k, 3), 1), k < 0], ["k <= -2", "k % 3 == 1"], id="negative"),
]  # fmt: skip


@pytest.mark.parametrize(("guards", "texts"), SHORT)
def test_limits_are_short(guards: Sequence[sympy.Basic], texts: list[str]) -> None:
    symbols = {symbol for guard in guards for symbol in guard.free_symbols}
    assert [text_of(limit) for limit in limits(guards, Bounds(None if k in symbols else 1))] == texts


def test_a_limit_has_the_relations_that_it_follows_from() -> None:
    relations = [sympy.Ge(h, 4), sympy.Eq(Mod(h, 2), 0), sympy.Ne(h, 7), sympy.Eq(Mod(h, 3), 0)]
    assert limits_of(relations, {}) == {sympy.Eq(Mod(h, 6), 0): [relations[1], relations[3]]}


def test_sizes_that_are_known_need_no_limits() -> None:
    known = [sympy.Eq(Mod(h, 8), 0), sympy.Ge(w, 5)]
    asked = [sympy.Ne(h, 1), sympy.Ne(w, 6), sympy.Eq(Mod(h * w, 4), 0), sympy.Ge(h + w, 13), sympy.Ge(h + w, 14)]
    assert list(limits_of(asked, {}, known)) == [sympy.Ne(w, 6), sympy.Ge(h + w, 14)]


NOT_COMPUTED = [FloorDiv(h, w), sympy.sqrt(h), FloorDiv(h, 9973), FloorDiv(h, -2), h**9, Min(h, 1 << 40), 2.5 * h]


@pytest.mark.parametrize("expression", NOT_COMPUTED, ids=str)
def test_functions_that_are_not_computed(expression: sympy.Expr) -> None:
    assert size_function(expression.xreplace({w: FloorDiv(h, 2)})) is None
    assert SizeSet.of(sympy.Ge(expression.xreplace({w: FloorDiv(h, 2)}), 3, evaluate=False), h) is None


def _asks(guards: Sequence[tuple[int, int, int]]) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        for offset, divisor, period in guards:
            # The value of a condition; of a branch on it, both sides would be exported.
            differs = bool((x.shape[1] + offset) // divisor % period != 0)
            if differs:
                return x * 3
        return x * 2

    return forward


@pytest.mark.parametrize("guards", [[(7, 8, 4)], [(0, 1, 2), (3, 4, 3)], [(1, 2, 3), (0, 5, 2)]], ids=str)
def test_the_file_accepts_the_sizes_of_the_guards(guards: Sequence[tuple[int, int, int]]) -> None:
    def holds(size: int) -> bool:
        return all((size + offset) // divisor % period == 0 for offset, divisor, period in guards)

    example = next(size for size in range(2, 200) if holds(size))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*cannot be exported for all requested sizes")
        program = fxonnx.export(Function(_asks(guards)).eval(), (torch.rand(2, example),), dynamic_shapes=({1: "n"},))
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    for size in range(1, 80):
        x = np.ones((2, size), np.float32)
        run: Any = lambda x=x: session.run(None, {session.get_inputs()[0].name: x})[0]  # noqa: E731
        if holds(size):
            np.testing.assert_array_equal(run(), 2 * x)
        else:
            with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match="requires n"):
                run()


_window = Max(1, sympy_functions.RoundToInt(IntTrueDiv(Min(h, w), sympy.Integer(256))))
_parity = Max(Mod(h, 2), Mod(w, 2))
_frames = CeilToInt(IntTrueDiv(h - Min(315, h), Min(315, h) - 62))
EXTREMES: list[tuple[sympy.Basic, list[str]]] = [
    (FloorDiv(h, _window) >= 11, ["h >= 11"]),
    (FloorDiv(h, _window) - 10 >= 0, ["h >= 10"]),
    (FloorDiv(h, _window) > 0, []),
    (FloorDiv(h + FloorDiv(_window - 1, 2) + FloorDiv(_window, 2), _window) + 2 >= 3, []),
    (_window <= 1, ["h <= 383 or w <= 383"]),
    (sympy.Eq(_window, 2), ["h <= 640 or w <= 640", "h >= 384", "w >= 384"]),
    (FloorDiv(h + _parity, 2) >= 1, []),
    (FloorDiv(h + _parity, 2) >= 3, ["(h + max(h % 2, w % 2)) // 2 >= 3"]),
    (FloorDiv(Min(h, w), 4) >= 2, ["h >= 8", "w >= 8"]),
    (FloorDiv(Max(h, w), 4) < 9, ["h <= 35", "w <= 35"]),
    (w * (_frames + 1) >= 0, ["h != 62"]),
    ((Min(315, h) - 62) * _frames + Min(315, h) >= 0, ["h != 62"]),
]


@pytest.mark.parametrize(("relation", "expected"), EXTREMES, ids=[text_of(row[0]) for row in EXTREMES])
def test_limits_of_the_smaller_and_the_larger_size(relation: sympy.Basic, expected: list[str]) -> None:
    found = list(normal_forms(relation))
    assert sorted(map(text_of, found)) == expected
    chance = random.Random(0)
    for most in (20, 80, 1000, 5000):
        for _ in range(300):
            sizes = {h: chance.randint(1, most), w: chance.randint(1, most)}
            if not (relation.has(_frames) and sizes[h] == 62):
                assert accepted([relation], sizes) == accepted(found, sizes), sizes


@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize("name", torch.signal.windows.__all__)
def test_windows_of_torch_have_other_values_at_one_element(name: str, is_symmetric: bool) -> None:
    """torch's code returns them after a comparison of the size, which is a limit as one of the model's."""
    window, more = getattr(torch.signal.windows, name), {"a": [0.4, 0.3, 0.3]} if name == "general_cosine" else {}
    model = Function(lambda x: x * window(x.shape[0], sym=is_symmetric, **more)).eval()
    program = fxonnx.export(model, (torch.rand(6),), dynamic_shapes=({0: "n"},))
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    found = {}
    for n in (0, 1, 2, 7):
        x = torch.rand(n)
        try:
            (found[n],) = session.run(None, {"x": x.numpy()})
        except (Fail, InvalidArgument, RuntimeException):
            continue
        torch.testing.assert_close(torch.from_numpy(found[n]), model(x), atol=1e-6, rtol=1e-5)
    assert {2, 7} <= found.keys()
