"""Relations between sizes: brought into one form, compared with what is known of the sizes, and written as Python."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import sympy
from sympy.printing.precedence import PRECEDENCE, precedence
from sympy.printing.str import StrPrinter

from fxonnx_translations._torch_compat import (
    FloorDiv,
    Max,
    Min,
    Mod,
    PythonMod,
    ValueRangeError,
    ValueRanges,
    bound_sympy,
    int_oo,
    sympy_functions,
    try_solve,
)

__all__ = [
    "Bounds",
    "always_holds",
    "bounds_of",
    "divisor_of",
    "follows",
    "least",
    "multiple",
    "normal_forms",
    "text_of",
]


def normal_forms(expression: sympy.Basic) -> Iterator[sympy.Basic]:
    """The relations that an expression is the conjunction of, those that bound one size as ``size >= number``."""
    if isinstance(expression, sympy.And):
        for part in expression.args:
            yield from normal_forms(part)
    elif isinstance(expression, sympy.Not) and isinstance(expression.args[0], sympy.Or):
        for part in expression.args[0].args:
            yield from normal_forms(sympy.Not(part))
    elif expression not in (sympy.true, True):
        form = _normal(_without_rounding(expression))
        if form != sympy.true:
            yield form


_ROUNDINGS = tuple(getattr(sympy_functions, name) for name in ("TruncToInt", "FloorToInt", "CeilToInt", "RoundToInt"))


def _without_rounding(expression: sympy.Basic) -> sympy.Basic:
    """Rounding of whole numbers removed: ``int(2.0 * float(n))``, the size of a scaled image, is ``2*n``."""

    def exact(rounding: sympy.Expr) -> sympy.Expr:
        value = rounding.args[0].replace(sympy_functions.ToFloat, lambda size: size)
        factor, rest = value.as_coeff_Mul()
        whole = float(factor).is_integer() and rest.is_integer
        return int(factor) * rest if whole else rounding

    found = expression.replace(lambda part: isinstance(part, _ROUNDINGS), exact)
    return found if isinstance(found, sympy.Basic) else expression


def _normal(expression: sympy.Basic) -> sympy.Basic:
    if isinstance(expression, sympy.Eq):
        expression = _shortened(expression)
        if not isinstance(expression, sympy.Eq):
            return expression
        found = [form for form in (_limit(expression), _divisibility(expression)) if form is not None]
        if found:
            return found[0]
    if isinstance(expression, sympy.Le | sympy.Ge):
        smaller, larger = (expression.lts, expression.gts)
        if (isinstance(smaller, Min) and larger in smaller.args) or (
            isinstance(larger, Max) and smaller in larger.args
        ):
            return sympy.true
    if isinstance(expression, sympy.Ne) and expression.rhs == 0:
        quotient = expression.lhs.as_coeff_Mul()[1]
        if isinstance(quotient, FloorDiv) and quotient.args[0].is_nonnegative:
            return _normal(sympy.Ge(quotient, 1))
    if not isinstance(expression, sympy.Rel) or isinstance(expression, sympy.Ne):
        return expression
    if len(expression.free_symbols) != 1:
        return expression
    (symbol,) = expression.free_symbols
    solved = try_solve(expression, symbol)
    if solved is None or solved[0].lhs != symbol or not solved[1].is_number or not symbol.is_integer:
        limit = least(expression, symbol) if symbol.is_positive else None
        return expression if limit is None else limit
    relation, number = solved
    if isinstance(relation, sympy.Eq):
        return relation if number.is_Integer else expression
    if isinstance(relation, sympy.Ge):
        return sympy.Ge(symbol, sympy.ceiling(number))
    if isinstance(relation, sympy.Gt):
        return sympy.Ge(symbol, sympy.floor(number) + 1)
    if isinstance(relation, sympy.Le):
        return sympy.Le(symbol, sympy.floor(number))
    return sympy.Le(symbol, sympy.ceiling(number) - 1)


def _shortened(equation: sympy.Eq) -> sympy.Basic:
    """An equation without the terms and the factors that both sides have; sizes are not 0."""
    common = sympy.Add(*set(sympy.Add.make_args(equation.lhs)).intersection(sympy.Add.make_args(equation.rhs)))
    equation = sympy.Eq(equation.lhs - common, equation.rhs - common)
    if not isinstance(equation, sympy.Eq):
        return equation
    if equation.rhs.is_number or equation.lhs.is_number or not all(s.is_positive for s in equation.free_symbols):
        return equation
    return sympy.Eq(*_reduced(equation.lhs, equation.rhs))


def _reduced(one: sympy.Expr, other: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """Both without their common factors."""
    (number, rest), (divisor, others) = one.as_coeff_Mul(), other.as_coeff_Mul()
    if not (number.is_Integer and divisor.is_Integer):
        return one, other
    # Numbers apart: sympy would multiply a fraction of them into a sum.
    rest, others = sympy.fraction(rest / others)
    common = math.gcd(int(number), int(divisor))
    return rest * (number / common), others * (divisor / common)


def _limit(equation: sympy.Eq) -> sympy.Basic | None:
    """``s == min(s, 512)`` or ``512 - max(512 - s, 0) == s`` is how torch says that a table was cut to s rows."""
    difference = equation.lhs - equation.rhs
    clamped = difference.atoms(Min, Max)
    if len(clamped) != 1:
        return None
    (clamp,) = clamped
    factor = difference.coeff(clamp)
    if abs(factor) != 1 or len(clamp.args) != 2:
        return None
    value = sympy.expand(clamp - difference / factor)
    for one, other in (clamp.args, clamp.args[::-1]):
        if sympy.expand(value - one) == 0:
            return _normal(_at_least(one, other) if isinstance(clamp, Max) else _at_least(other, one))
    return None


def _at_least(one: sympy.Expr, other: sympy.Expr) -> sympy.Basic:
    """``one >= other``; as ``a + b <= 64`` where all sizes are subtracted from a number."""
    number, sizes = sympy.expand(one - other).as_coeff_Add()
    if all(coefficient.is_negative for coefficient in sizes.as_coefficients_dict().values()):
        return sympy.Le(-sizes, number)
    return sympy.Ge(one, other)


def _divisibility(equation: sympy.Eq) -> sympy.Basic | None:
    """``e % k == 0``, also from torch's other way to write it, ``e == k * (e // k)``."""
    for one, other in (equation.args, equation.args[::-1]):
        if other == 0 and isinstance(one, Mod | PythonMod):
            return _whole_multiple(*one.args)
        for quotient in sorted(other.atoms(FloorDiv), key=str):
            value, divisor = quotient.args
            # sympy may have taken a common factor out of the quotient.
            if sympy.expand(other * value - one * quotient * divisor) == 0 and sympy.expand(one / value).is_Integer:
                return _whole_multiple(value, divisor)
    return None


def _whole_multiple(value: sympy.Expr, divisor: sympy.Expr) -> sympy.Basic:
    if divisor.is_Integer or all(symbol.is_positive for symbol in value.free_symbols | divisor.free_symbols):
        value, divisor = _reduced(value, divisor)
    quotient = sympy.cancel(value / divisor)
    if not divisor.is_number and sympy.fraction(quotient)[1] == 1 and quotient.is_polynomial(*quotient.free_symbols):
        return sympy.true
    if divisor.is_Integer:
        # What is left of the factor has nothing in common with the divisor.
        value = value.as_coeff_Mul()[1]
    return sympy.Eq(Mod(value, divisor), 0)


def bounds_of(relation: sympy.Basic) -> tuple[sympy.Symbol, Bounds] | None:
    """The size and the limits, for a relation that limits one size."""
    if not isinstance(relation, sympy.Ge | sympy.Le | sympy.Eq):
        return None
    for symbol, number in (relation.args, relation.args[::-1]):
        if symbol.is_Symbol and number.is_Integer:
            limit = int(number)
            if isinstance(relation, sympy.Eq):
                return symbol, Bounds(limit, limit)
            at_least = isinstance(relation, sympy.Ge) == (symbol is relation.args[0])
            return symbol, Bounds(limit, None) if at_least else Bounds(None, limit)
    return None


def divisor_of(relation: sympy.Basic) -> int | None:
    """The number that one size is a multiple of, for a relation like ``n % 4 == 0``."""
    if isinstance(relation, sympy.Eq):
        for remainder, zero in (relation.args, relation.args[::-1]):
            if zero == 0 and isinstance(remainder, Mod | PythonMod) and remainder.args[0].is_Symbol:
                return int(remainder.args[1]) if remainder.args[1].is_Integer else None
    return None


def follows(relation: sympy.Basic, bounds: Mapping[sympy.Symbol, Bounds]) -> bool:
    """Whether a relation is true for all sizes within the bounds, as far as can be told."""
    if isinstance(relation, sympy.Or):
        return any(all(follows(form, bounds) for form in normal_forms(part)) for part in relation.args)
    if isinstance(relation, sympy.And):
        return all(follows(part, bounds) for part in relation.args)
    if _with_exact_quotients(relation, bounds) in (sympy.true, True):
        return True
    ranges = {symbol: bounds.get(symbol, Bounds()).range() for symbol in relation.free_symbols}
    try:
        if bound_sympy(relation, ranges) == ValueRanges.wrap(sympy.true):
            return True
    except (ValueRangeError, NotImplementedError, TypeError, AttributeError, KeyError):
        # torch has no rule for it, or the bounds contradict it.
        return False
    if len(ranges) != 1:
        return False
    (symbol,) = ranges
    return always_holds(relation, symbol, bounds.get(symbol, Bounds()))


def _with_exact_quotients(relation: sympy.Basic, bounds: Mapping[sympy.Symbol, Bounds]) -> sympy.Basic:
    """``(7 * (n // 7)) // 7`` is a seventh of it."""
    exact = {}
    for quotient in relation.atoms(FloorDiv):
        value, divisor = quotient.args
        if len(value.free_symbols) == 1 and divisor.is_Integer and not value.is_Symbol:
            (symbol,) = value.free_symbols
            if always_holds(sympy.Eq(Mod(value, divisor), 0, evaluate=False), symbol, bounds.get(symbol, Bounds())):
                exact[quotient] = value / divisor
    relation = relation.xreplace(exact)
    is_same = isinstance(relation, sympy.Eq) and bool(exact) and sympy.expand(relation.lhs - relation.rhs) == 0
    return sympy.true if is_same else relation


class _Printer(StrPrinter):  # type: ignore[misc]
    """Python's notation; the names of sizes may hold any characters."""

    printmethod = "_fxonnx"  # torch's functions would print themselves otherwise

    def _print_Relational(self, relation: sympy.Rel) -> str:
        lhs, rhs = relation.lhs, relation.rhs
        if isinstance(relation, sympy.Eq | sympy.Ne):
            # sympy has an order of its own for these.
            lhs, rhs = sorted((lhs, rhs), key=lambda side: (side.is_number, not side.is_Symbol, str(side)))
        return f"{self._print(lhs)} {relation.rel_op} {self._print(rhs)}"

    def _binary(self, expression: sympy.Expr, sign: str) -> str:
        one, other = (self.parenthesize(side, PRECEDENCE["Mul"] + 1) for side in expression.args)
        return f"{one} {sign} {other}"

    def _print_FloorDiv(self, expression: sympy.Expr) -> str:
        return self._binary(expression, "//")

    _print_CleanDiv = _print_FloorDiv

    def _print_Mod(self, expression: sympy.Expr) -> str:
        return self._binary(expression, "%")

    _print_PythonMod = _print_Mod

    def _print_Min(self, expression: sympy.Expr) -> str:
        return f"min({', '.join(sorted(self._print(argument) for argument in expression.args))})"

    def _print_Max(self, expression: sympy.Expr) -> str:
        return f"max({', '.join(sorted(self._print(argument) for argument in expression.args))})"

    def _joined(self, expression: sympy.Basic, word: str) -> str:
        parts = [
            f"({self._print(part)})" if precedence(part) < PRECEDENCE["Relational"] else self._print(part)
            for part in expression.args
        ]
        return f" {word} ".join(sorted(parts))

    def _print_And(self, expression: sympy.Basic) -> str:
        return self._joined(expression, "and")

    def _print_Or(self, expression: sympy.Basic) -> str:
        return self._joined(expression, "or")

    def _print_Not(self, expression: sympy.Basic) -> str:
        return f"not ({self._print(expression.args[0])})"


def text_of(relation: sympy.Basic) -> str:
    """A relation as Python writes it: ``seq >= 9``, ``batch % 16 == 0``."""
    if isinstance(relation, sympy.Gt | sympy.Lt | sympy.Ge | sympy.Le) and relation.lhs.is_number:
        relation = relation.reversed
    return str(_Printer().doprint(relation))


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
