"""Sums, quotients and remainders of one size repeat themselves, but for a slope: what holds for a period holds on."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import sympy

from fxonnx_translations.torch_compat import FloorDiv, Mod, PythonMod, ValueRanges, int_oo

__all__ = ["Bounds", "always_holds", "least", "multiple"]

_PYTHON = MappingProxyType({FloorDiv: operator.floordiv, Mod: operator.mod, PythonMod: operator.mod})

# Longer periods than this are left undecided: the relation is kept.
LONGEST_PERIOD = 4096


@dataclass(frozen=True)
class Bounds:
    """The smallest and the largest size a dim may have; None is no limit."""

    low: int | None = None
    high: int | None = None

    def range(self) -> ValueRanges[sympy.Expr]:
        """It as torch's value range."""
        low = -int_oo if self.low is None else sympy.Integer(self.low)
        return ValueRanges(low, int_oo if self.high is None else sympy.Integer(self.high))

    def within(self, other: Bounds) -> Bounds:
        """What satisfies both."""
        lows = [bound.low for bound in (self, other) if bound.low is not None]
        highs = [bound.high for bound in (self, other) if bound.high is not None]
        return Bounds(max(lows, default=None), min(highs, default=None))


def always_holds(relation: sympy.Basic, symbol: sympy.Symbol, bounds: Bounds) -> bool:
    """Decides a relation of sums, quotients and remainders of one size, which repeats itself but for a slope."""
    low, high = bounds.low, bounds.high
    if low is None or not isinstance(relation, sympy.Rel):
        return False
    period = math.lcm(_period(relation.lhs), _period(relation.rhs))
    if not 0 < period <= LONGEST_PERIOD:
        return False
    last = low + period if high is None else min(low + period, high)
    values = _values(relation.lhs - relation.rhs, symbol, low, last)
    holds = all(bool(relation.func(value, 0)) for value in values)
    if not holds or (high is not None and high <= low + period):
        return holds
    slope = values[-1] - values[0]
    if slope == 0:
        return True
    if isinstance(relation, sympy.Ne):
        return min(values) > 0 if slope > 0 else max(values) < 0
    return isinstance(relation, sympy.Ge | sympy.Gt) if slope > 0 else isinstance(relation, sympy.Le | sympy.Lt)


def _values(expression: sympy.Expr, symbol: sympy.Symbol, low: int, high: int) -> list[int]:
    """What an expression is at the sizes from ``low`` to ``high``."""
    for kind, function in _PYTHON.items():
        expression = expression.replace(kind, sympy.Function(f"{function.__name__}_of_two"))
    functions = {f"{function.__name__}_of_two": function for function in _PYTHON.values()}
    at = sympy.lambdify([symbol], expression, modules=[functions, "math"])
    return [int(at(size)) for size in range(low, high + 1)]


def least(relation: sympy.Basic, symbol: sympy.Symbol) -> sympy.Basic | None:
    """``symbol >= number``, for a relation that is true from there on, and for no smaller size."""
    sign = 1 if isinstance(relation, sympy.Ge | sympy.Gt) else -1
    period = math.lcm(_period(relation.lhs), _period(relation.rhs))
    if not 0 < period <= LONGEST_PERIOD:
        return None
    difference = sign * (relation.lhs - relation.rhs)
    values = _values(difference, symbol, 1, 1 + period)
    slope = values[-1] - values[0]
    if slope <= 0:
        return None
    wanted = 0 if isinstance(relation, sympy.Ge | sympy.Le) else 1
    # So many periods later even the smallest value is large enough.
    periods = max(0, -((min(values) - wanted) // slope))
    if period * (periods + 1) > LONGEST_PERIOD:
        return None
    holds = [value >= wanted for value in _values(difference, symbol, 1, period * (periods + 1))]
    first = holds.index(True)
    return sympy.Ge(symbol, first + 1) if all(holds[first:]) else None


def multiple(relations: Sequence[sympy.Basic], symbol: sympy.Symbol) -> sympy.Basic | None:
    """``symbol % number == 0``, for equations of one size that say no more and no less than that together."""
    sides = [_repetition(relation.lhs - relation.rhs) for relation in relations]
    if any(side is None or side[1] for side in sides):
        return None
    period = math.lcm(*(side[0] for side in sides if side is not None))
    if period > LONGEST_PERIOD:
        return None
    values = [_values(relation.lhs - relation.rhs, symbol, 1, 2 * period) for relation in relations]
    holds = [not any(differences) for differences in zip(*values, strict=True)]
    if not any(holds):
        return None
    number = holds.index(True) + 1
    if any(true != (size % number == 0) for size, true in enumerate(holds, 1)):
        return None
    return sympy.Eq(Mod(symbol, number), 0)


def _period(expression: sympy.Expr) -> int:
    """After how many steps of the size its differences repeat; 0 if it is of no such kind."""
    found = _repetition(expression)
    return 0 if found is None else found[0]


def _repetition(expression: sympy.Expr) -> tuple[int, int] | None:
    """After how many steps of the size an expression repeats itself, and how much larger it is then."""
    if expression.is_Integer:
        return 1, 0
    if expression.is_Symbol:
        return 1, 1
    if isinstance(expression, sympy.Add):
        parts = [_repetition(part) for part in expression.args]
        known = [part for part in parts if part is not None]
        period = math.lcm(*(steps for steps, _ in known))
        return (period, sum(slope * period // steps for steps, slope in known)) if len(known) == len(parts) else None
    if isinstance(expression, sympy.Mul):
        factor, rest = expression.as_coeff_Mul()
        found = _repetition(rest) if factor.is_Integer and not isinstance(rest, sympy.Mul) else None
        return None if found is None else (found[0], found[1] * int(factor))
    if isinstance(expression, FloorDiv | Mod | PythonMod):
        value, divisor = expression.args
        found = _repetition(value) if divisor.is_Integer and divisor > 0 else None
        if found is None:
            return None
        # So often until the growth is a multiple of the divisor.
        times = int(divisor) // math.gcd(found[1], int(divisor))
        growth = found[1] * times // int(divisor) if isinstance(expression, FloorDiv) else 0
        return found[0] * times, growth
    return None
