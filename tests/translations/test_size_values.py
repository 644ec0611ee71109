"""Values of size expressions: those of Python, and no error of sympy where there is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import sympy

from fxonnx_translations._builder.size_values import SizeProgram, SizeValues, UndefinedSizeError
from fxonnx_translations._torch_compat import FloorDiv, IntTrueDiv, Max, Min, Mod, PythonMod, int_oo, sympy_functions

n = sympy.Symbol("n", integer=True, positive=True)
m = sympy.Symbol("m", integer=True, positive=True)
f = sympy_functions

EXPRESSIONS: list[tuple[sympy.Basic, Callable[[int, int], Any]]] = [
    (n + 2 * m - 3, lambda n, m: n + 2 * m - 3),
    (n**2 * m, lambda n, m: n**2 * m),
    (n * m / 2, lambda n, m: n * m / 2),
    (FloorDiv(n - 9, 4), lambda n, m: (n - 9) // 4),
    (PythonMod(n - 9, 4), lambda n, m: (n - 9) % 4),
    (Mod(n, m), lambda n, m: n % m),
    (f.CeilDiv(n, m), lambda n, m: -(-n // m)),
    (f.ModularIndexing(n, 2, 3), lambda n, m: n // 2 % 3),
    (IntTrueDiv(n, m), lambda n, m: n / m),
    (f.FloatTrueDiv(f.ToFloat(n), sympy.Float(0.3)), lambda n, m: n / 0.3),
    (Mod(f.ToFloat(n), sympy.Float(0.1)), lambda n, m: n % 0.1),
    (f.TruncToInt(IntTrueDiv(n - 9, 2)), lambda n, m: int((n - 9) / 2)),
    (f.CeilToInt(IntTrueDiv(n, 3)), lambda n, m: math.ceil(n / 3)),
    (f.FloorToInt(IntTrueDiv(n, 3)), lambda n, m: math.floor(n / 3)),
    (f.RoundToInt(IntTrueDiv(n, 2)), lambda n, m: round(n / 2)),
    (f.RoundDecimal(IntTrueDiv(n, 3), 2), lambda n, m: round(n / 3, 2)),
    (f.FloatPow(f.ToFloat(n), sympy.Float(0.5)), lambda n, m: n**0.5),
    (f.OpaqueUnaryFn_sqrt(n), lambda n, m: math.sqrt(n)),
    (f.OpaqueUnaryFn_log2(n), lambda n, m: math.log2(n)),
    (Max(n, m, 4) + Min(n, m), lambda n, m: max(n, m, 4) + min(n, m)),
    (abs(n - m), lambda n, m: abs(n - m)),
    (f.BitwiseFn_bitwise_and(n, 6), lambda n, m: n & 6),
    (f.BitwiseFn_bitwise_or(n, 6), lambda n, m: n | 6),
    (sympy.Piecewise((n, n > m), (m, True)), lambda n, m: n if n > m else m),
    (sympy.And(n > 2, sympy.Or(sympy.Eq(m, 3), sympy.Ne(n, m))), lambda n, m: n > 2 and (m == 3 or n != m)),
    (sympy.Not(sympy.Eq(Mod(n, 2), 0)), lambda n, m: n % 2 != 0),
    (n < int_oo, lambda n, m: True),
]


@pytest.mark.parametrize(("expression", "function"), EXPRESSIONS, ids=[str(row[0]) for row in EXPRESSIONS])
def test_values(expression: sympy.Basic, function: Callable[[int, int], Any]) -> None:
    for one in (1, 2, 7, 64, 1001):
        for other in (1, 3, 8):
            assert SizeValues({n: one, m: other}).value(expression) == function(one, other)
            assert SizeProgram(expression).value({"n": one, "m": other}) == function(one, other)


def test_parts_are_computed_once() -> None:
    size: sympy.Expr = n
    for _ in range(8):
        size = FloorDiv(size - 1, 2) + FloorDiv(size + 1, 2)
    assert SizeValues({n: 7}).size(size) == 7


@pytest.mark.parametrize(
    "expression",
    [
        pytest.param(FloorDiv(8, n - 1), id="division by zero"),
        pytest.param(f.TruncToInt(f.FloatPow(f.ToFloat(n - 3), sympy.Float(0.5))), id="power of a negative number"),
        pytest.param(f.OpaqueUnaryFn_sqrt(n - 3), id="root of a negative number"),
        pytest.param(f.OpaqueUnaryFn_log2(n - 1), id="logarithm of zero"),
        pytest.param(n + m, id="another symbol"),
    ],
)
def test_sizes_without_a_value(expression: sympy.Expr) -> None:
    with pytest.raises(UndefinedSizeError):
        SizeValues({n: 1}).size(expression)
    if expression.free_symbols == {n}:
        with pytest.raises(UndefinedSizeError):
            SizeProgram(expression).value({"n": 1})


def test_other_symbols_have_the_default_value() -> None:
    assert SizeValues({n: 1}, default=7).size(n + m) == 8
