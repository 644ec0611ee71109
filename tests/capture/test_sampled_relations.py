"""Sampling detects relations that sympy cannot decide; sympy decides all others."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import pytest
import sympy
from sympy.core.relational import is_eq, is_ge

from fxonnx._capture.constraints.size_forms import SizeSamples
from fxonnx_translations._torch_compat import CeilToInt, FloorDiv, IntTrueDiv, Max, Min, Mod, PythonMod

h, w, n = sympy.symbols("h w n", integer=True, positive=True)
u = sympy.Symbol("u", integer=True)
_STEPS = FloorDiv(h - 2, 32)

EXPRESSIONS = (
    sympy.Integer(0),
    sympy.Integer(1),
    sympy.Integer(64),
    h,
    u,
    h * w,
    (h + 1) * (w + 1),
    h * w + h + w + 1,
    n * h**2,
    32 * _STEPS + 32,
    Max(1, _STEPS),
    Min(h, w),
    Mod(h, 7),
    PythonMod(u, 3),
    CeilToInt(IntTrueDiv(h, 2)),
    FloorDiv(h, 2) * 2,
)


def _never(*sides: Any) -> None:
    pytest.fail(f"sympy was asked for {sides}")


@pytest.mark.parametrize("example", [1, 64])
def test_decisions_equal_those_of_sympy(example: int) -> None:
    samples = SizeSamples(examples=dict.fromkeys((h, w, n), example))
    for one, other in itertools.product(EXPRESSIONS, repeat=2):
        for decide, relation in ((is_eq, operator.eq), (is_ge, operator.ge)):
            assert samples.answer(decide, relation, one, other) == decide(one, other), (relation, one, other)


@pytest.mark.parametrize(
    ("relation", "one", "other"),
    [
        (operator.eq, h * w, w**2),
        (operator.eq, n, sympy.Integer(1)),
        (operator.eq, 32 * _STEPS + 32, sympy.Integer(0)),
        (operator.ge, h * w, 3 * w),
    ],
)
def test_sympy_is_not_called_for_relations_that_hold_for_some_sizes(relation: Any, one: Any, other: Any) -> None:
    samples = SizeSamples(examples={h: 64, w: 64, n: 1})
    assert samples.answer(_never, relation, one, other) is None


def test_sympy_is_called_once() -> None:
    asked = []
    samples = SizeSamples()
    for _ in range(2):
        assert (
            samples.answer(lambda *sides: asked.append(sides) or False, operator.eq, h + 3, sympy.Integer(1)) is False
        )
    assert asked == [(h + 3, sympy.Integer(1))]


@pytest.mark.parametrize(
    "expression", [sympy.Symbol("f"), sympy.Float(0.5) * h, FloorDiv(h, w - w * h), h**40 * w**40, sympy.sqrt(h)]
)
def test_sympy_is_called_for_other_expressions(expression: Any) -> None:
    asked = []
    SizeSamples().answer(lambda *sides: asked.append(sides), operator.eq, expression, h)
    assert asked
