"""Quasi-periodic functions of one integer: sums, quotients and remainders of a size by constants.

Such a function repeats after a period, plus a slope: ``f(n + period) == f(n) + slope``. Its values in one period
determine it for all integers, so that sizes can be compared and simplified exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sympy

from fxonnx_translations._torch_compat import CeilToInt, FloorDiv, IntTrueDiv, Max, Min, Mod, PythonMod

__all__ = ["LONGEST_PERIOD", "QuasiPeriodic", "quasi_periodic"]

LONGEST_PERIOD = 4096
"""Functions with longer periods are not computed."""


@dataclass(frozen=True)
class QuasiPeriodic:
    """A function of integers with ``f(n + len(values)) == f(n) + slope``.

    Attributes:
        values: The values at 0, 1, ... for one period.
        slope: The growth in a period.
    """

    values: tuple[int, ...]
    slope: int

    def __call__(self, size: int) -> int:
        periods, index = divmod(size, len(self.values))
        return self.values[index] + periods * self.slope

    def __mul__(self, factor: int) -> QuasiPeriodic:
        return QuasiPeriodic(tuple(value * factor for value in self.values), self.slope * factor)

    def extended(self, period: int) -> QuasiPeriodic:
        """The same function with a multiple of the period."""
        times = period // len(self.values)
        values = tuple(value + index * self.slope for index in range(times) for value in self.values)
        return QuasiPeriodic(values, self.slope * times)


def quasi_periodic(
    expression: sympy.Expr, known: dict[sympy.Expr, QuasiPeriodic | None] | None = None
) -> QuasiPeriodic | None:
    """Compute an expression of one integer symbol as a quasi-periodic function.

    Args:
        expression: The expression.
        known: Cache of the functions of subexpressions; extended.

    Returns:
        The function; None for other operations and for periods longer than ``LONGEST_PERIOD``.
    """
    known = {} if known is None else known
    if expression not in known:
        known[expression] = _compute(expression, known)
    return known[expression]


def _compute(expression: sympy.Expr, known: dict[sympy.Expr, QuasiPeriodic | None]) -> QuasiPeriodic | None:
    if expression.is_Integer:
        return QuasiPeriodic((int(expression),), 0)
    if expression.is_Symbol:
        return QuasiPeriodic((0,), 1)
    if isinstance(expression, sympy.Mul):
        factor, rest = expression.as_coeff_Mul()
        function = quasi_periodic(rest, known) if factor.is_Integer and not isinstance(rest, sympy.Mul) else None
        return None if function is None else function * int(factor)
    if isinstance(expression, sympy.Add | Max | Min):
        operands = [quasi_periodic(part, known) for part in expression.args]
        functions = [function for function in operands if function is not None]
        if len(functions) < len(operands):
            return None
        if isinstance(expression, sympy.Add):
            return _sum(functions)
        return _extreme(functions, max if isinstance(expression, Max) else min)
    if isinstance(expression, FloorDiv | Mod | PythonMod) and len(expression.args) == 2:
        value, divisor = expression.args
        return _quotient(quasi_periodic(value, known), divisor, type(expression))
    if isinstance(expression, CeilToInt) and isinstance(expression.args[0], IntTrueDiv):
        value, divisor = expression.args[0].args
        return _quotient(quasi_periodic(value, known), divisor, CeilToInt)
    return None


def _common_period(functions: Sequence[QuasiPeriodic]) -> list[QuasiPeriodic] | None:
    period = math.lcm(*(len(function.values) for function in functions))
    return None if period > LONGEST_PERIOD else [function.extended(period) for function in functions]


def _sum(functions: Sequence[QuasiPeriodic]) -> QuasiPeriodic | None:
    extended = _common_period(functions)
    if extended is None:
        return None
    rows = zip(*(function.values for function in extended), strict=True)
    return QuasiPeriodic(tuple(map(sum, rows)), sum(function.slope for function in extended))


def _extreme(functions: Sequence[QuasiPeriodic], choose: Callable[..., int]) -> QuasiPeriodic | None:
    """The maximum or minimum of functions with equal slopes."""
    extended = _common_period(functions)
    if extended is None or len({function.slope for function in extended}) > 1:
        return None
    rows = zip(*(function.values for function in extended), strict=True)
    return QuasiPeriodic(tuple(map(choose, rows)), extended[0].slope)


def _quotient(function: QuasiPeriodic | None, divisor: sympy.Expr, kind: type) -> QuasiPeriodic | None:
    """``f(n) // divisor``, its remainder, or the quotient rounded up."""
    if function is None or not (divisor.is_Integer and divisor > 0):
        return None
    by = int(divisor)
    # The slope of the longer period is a multiple of the divisor.
    period = len(function.values) * (by // math.gcd(function.slope, by))
    if period > LONGEST_PERIOD:
        return None
    function = function.extended(period)
    if issubclass(kind, FloorDiv):
        return QuasiPeriodic(tuple(value // by for value in function.values), function.slope // by)
    if issubclass(kind, CeilToInt):
        return QuasiPeriodic(tuple(-(-value // by) for value in function.values), function.slope // by)
    return QuasiPeriodic(tuple(value % by for value in function.values), 0)
