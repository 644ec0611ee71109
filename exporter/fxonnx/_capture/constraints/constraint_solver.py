"""Solver for relations between sizes: normal forms, implication by known bounds, and printing as Python code.

Relations of one size are decided by checking one period: sums, quotients and remainders by constants are
quasi-periodic.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import sympy
from sympy.printing.precedence import PRECEDENCE, precedence
from sympy.printing.str import StrPrinter

from fxonnx_translations._builder.exact_quotients import CONVERSIONS, exact_integer, factors_of, has_float_remainder
from fxonnx_translations._builder.size_values import EVALUATION_ERRORS
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

from .quasi_periodic import LONGEST_PERIOD, QuasiPeriodic, quasi_periodic

__all__ = [
    "Bounds",
    "always_holds",
    "bounds_of",
    "divisibility_of",
    "is_implied",
    "lower_limit",
    "merged_divisibility",
    "normal_forms",
    "range_of",
    "text_of",
]


def normal_forms(expression: sympy.Basic) -> Iterator[sympy.Basic]:
    """Split a conjunction into relations in normal form; a bound on one size has the form ``size >= number``."""
    if isinstance(expression, sympy.And):
        for part in expression.args:
            yield from normal_forms(part)
    elif isinstance(expression, sympy.Not) and isinstance(expression.args[0], sympy.Or):
        for part in expression.args[0].args:
            yield from normal_forms(sympy.Not(part))
    elif isinstance(expression, sympy.Eq) and len(parts := _divided_factors(expression)) > 1:
        for value, divisor in parts:
            yield _divisible_by(value, divisor)
    elif expression not in (sympy.true, True):
        form = _normal_form(_without_clamps(_without_floats(expression)))
        if form != sympy.true:
            yield form


def _without_floats(expression: sympy.Basic) -> sympy.Basic:
    """Replace conversions: ``int(2.0 * float(n))``, the size of a scaled image, by ``2*n``, float(n) by n."""
    found = expression.replace(lambda part: isinstance(part, CONVERSIONS), exact_integer)
    if isinstance(found, sympy.Rel) and any(isinstance(side, sympy_functions.ToFloat) for side in found.args):
        sides = [side.args[0] if isinstance(side, sympy_functions.ToFloat) else side for side in found.args]
        sides = [sympy.Integer(int(side)) if side.is_Float and float(side).is_integer() else side for side in sides]
        found = found.func(*sides) if all(side.is_integer for side in sides) else found
    return found if isinstance(found, sympy.Basic) else expression


def _without_clamps(expression: sympy.Basic) -> sympy.Basic:
    """Remove clamps that have no effect: ``max(min(s, 128) - s, 0)``, a slice of a slice, is 0."""

    def never_positive(value: sympy.Expr) -> bool:
        least = [part for part in sympy.Add.make_args(value) if isinstance(part, Min)]
        return any(sympy.expand(part - one - value) == 0 for part in least for one in part.args)

    def plain(clamp: sympy.Expr) -> sympy.Expr:
        if 0 not in clamp.args:
            return clamp
        others = [one for one in clamp.args if one != 0 and not never_positive(one)]
        is_plain = (
            len(others) == 1 and isinstance(others[0], Min) and all(part.is_nonnegative for part in others[0].args)
        )
        return others[0] if is_plain else Max(0, *others)

    found = expression.replace(lambda part: isinstance(part, Max), plain)
    return found if isinstance(found, sympy.Basic) else expression


def _normal_form(expression: sympy.Basic) -> sympy.Basic:
    if isinstance(expression, sympy.Eq):
        expression = _cancel_common_terms(expression)
        if not isinstance(expression, sympy.Eq):
            return expression
        for form in (_clamp_limit, _divisibility_of_size, _divisibility):
            found = form(expression)
            if found is not None:
                return found
    if isinstance(expression, sympy.Le | sympy.Ge):
        smaller, larger = (expression.lts, expression.gts)
        if (isinstance(smaller, Min) and larger in smaller.args) or (
            isinstance(larger, Max) and smaller in larger.args
        ):
            return sympy.true
    if isinstance(expression, sympy.Ne):
        divided = _divisibility_of_size(sympy.Eq(*expression.args, evaluate=False))
        if divided is not None:
            return sympy.Ne(*divided.args)
    if isinstance(expression, sympy.Ne) and expression.rhs == 0:
        quotient = expression.lhs.as_coeff_Mul()[1]
        if isinstance(quotient, FloorDiv) and quotient.args[0].is_nonnegative:
            return _normal_form(sympy.Ge(quotient, 1))
    if not isinstance(expression, sympy.Rel) or isinstance(expression, sympy.Ne):
        return expression
    if len(expression.free_symbols) != 1:
        return expression
    (symbol,) = expression.free_symbols
    solved = try_solve(expression, symbol)
    if solved is None or solved[0].lhs != symbol or not solved[1].is_number or not symbol.is_integer:
        limit = lower_limit(expression, symbol) if symbol.is_positive else None
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


def _cancel_common_terms(equation: sympy.Eq) -> sympy.Basic:
    """Cancel the terms and factors that both sides of an equation have in common; sizes are not 0."""
    common = sympy.Add(*set(sympy.Add.make_args(equation.lhs)).intersection(sympy.Add.make_args(equation.rhs)))
    equation = sympy.Eq(equation.lhs - common, equation.rhs - common)
    if not isinstance(equation, sympy.Eq):
        return equation
    if equation.rhs.is_number or equation.lhs.is_number or not all(s.is_positive for s in equation.free_symbols):
        return equation
    return sympy.Eq(*_cancel_common_factors(equation.lhs, equation.rhs))


def _cancel_common_factors(one: sympy.Expr, other: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """Cancel the common factors of two expressions."""
    (number, rest), (divisor, others) = (factors_of(side) for side in (one, other))
    # Numbers are cancelled separately: sympy would distribute a fraction of them over a sum.
    dividend, quotient = sympy.fraction(sympy.Mul(*rest.elements()) / sympy.Mul(*others.elements()))
    common = math.gcd(number, divisor)
    return dividend * (number // common), quotient * (divisor // common)


def _clamp_limit(equation: sympy.Eq) -> sympy.Basic | None:
    """``s <= 512`` from ``s == min(s, 512)`` or ``512 - max(512 - s, 0) == s``, torch's guards for a sliced table."""
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
            return _normal_form(
                _greater_or_equal(one, other) if isinstance(clamp, Max) else _greater_or_equal(other, one)
            )
    return None


def _greater_or_equal(one: sympy.Expr, other: sympy.Expr) -> sympy.Basic:
    """``one >= other``; in the form ``a + b <= 64`` if all sizes are subtracted from a number."""
    number, sizes = sympy.expand(one - other).as_coeff_Add()
    if all(coefficient.is_negative for coefficient in sizes.as_coefficients_dict().values()):
        return sympy.Le(-sizes, number)
    return sympy.Ge(one, other)


def _divisibility(equation: sympy.Eq) -> sympy.Basic | None:
    """``e % k == 0``, also from its equivalent ``e == k * (e // k)``."""
    for one, other in (equation.args, equation.args[::-1]):
        if other == 0 and isinstance(one, Mod | PythonMod):
            return _divisible_by(*one.args)
        for quotient in sorted(other.atoms(FloorDiv), key=str):
            value, divisor = quotient.args
            # sympy may have cancelled a common factor in the quotient.
            if sympy.expand(other * value - one * quotient * divisor) == 0 and sympy.expand(one / value).is_Integer:
                return _divisible_by(value, divisor)
    return None


def _divisibility_of_size(equation: sympy.Eq) -> sympy.Basic | None:
    """``n % 2 == 0`` from an equation that holds for these sizes only, such as ``n == 2*((n - 1) // 2) + 2``."""
    symbols = equation.free_symbols
    return merged_divisibility([equation], *symbols) if len(symbols) == 1 else None


def _divided_factors(equation: sympy.Eq) -> list[tuple[sympy.Expr, sympy.Expr]]:
    """The factors and divisors of ``h*w == 64*(h // 8)*(w // 8)``, which holds if all factors are divisible."""
    for one, other in (equation.args, equation.args[::-1]):
        (number, sizes), (divisor, quotients) = factors_of(one), factors_of(other)
        common = Counter(factor for factor in (sizes & quotients).elements() if factor.is_positive)
        sizes, quotients = sizes - common, quotients - common
        found = [(size, _divisor(size, quotient)) for quotient in quotients for size in sizes]
        parts = [(size, by) for size, by in found if by is not None]
        is_complete = len({size for size, _ in parts}) == len(parts) == sizes.total() == quotients.total()
        if is_complete and divisor == number * math.prod(by for _, by in parts):
            return [(size, sympy.Integer(by)) for size, by in parts]
    return []


def _divisor(size: sympy.Expr, quotient: sympy.Expr) -> int | None:
    """The number by which a positive size is divided for a quotient; ``n // 2`` by 8 for ``n // 16``."""
    if not isinstance(quotient, FloorDiv) or not quotient.args[1].is_Integer or not size.is_nonnegative:
        return None
    value, divisor = size.args if isinstance(size, FloorDiv) else (size, sympy.S.One)
    is_divided = value == quotient.args[0] and divisor.is_Integer and quotient.args[1] % divisor == 0
    return int(quotient.args[1] / divisor) if is_divided else None


def _divisible_by(value: sympy.Expr, divisor: sympy.Expr) -> sympy.Basic:
    if divisor.is_Integer or all(symbol.is_positive for symbol in value.free_symbols | divisor.free_symbols):
        value, divisor = _cancel_common_factors(value, divisor)
    quotient = sympy.cancel(value / divisor)
    if not divisor.is_number and sympy.fraction(quotient)[1] == 1 and quotient.is_polynomial(*quotient.free_symbols):
        return sympy.true
    if divisor.is_Integer:
        # The remaining numeric factor is coprime to the divisor.
        value = value.as_coeff_Mul()[1]
    return sympy.Eq(Mod(value, divisor), 0)


def bounds_of(relation: sympy.Basic) -> tuple[sympy.Symbol, Bounds] | None:
    """The symbol and its bounds, for a relation that bounds one symbol; None for other relations."""
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


def divisibility_of(relation: sympy.Basic) -> tuple[sympy.Expr, int] | None:
    """The value and the divisor of a relation ``value % divisor == 0``; None for other relations."""
    if isinstance(relation, sympy.Eq):
        for remainder, zero in (relation.args, relation.args[::-1]):
            if zero == 0 and isinstance(remainder, Mod | PythonMod) and remainder.args[1].is_Integer:
                return remainder.args[0], int(remainder.args[1])
    return None


def is_implied(relation: sympy.Basic, bounds: Mapping[sympy.Symbol, Bounds]) -> bool:
    """Whether a relation is proved to hold for all sizes within the bounds; False if it is undecided."""
    if isinstance(relation, sympy.Or):
        return any(all(is_implied(form, bounds) for form in normal_forms(part)) for part in relation.args)
    if isinstance(relation, sympy.And):
        return all(is_implied(part, bounds) for part in relation.args)
    if _with_exact_quotients(relation, bounds) in (sympy.true, True):
        return True
    ranges = {symbol: bounds.get(symbol, Bounds()).range() for symbol in relation.free_symbols}
    found = range_of(relation, ranges)
    if found is None or found == ValueRanges.wrap(sympy.true):
        return found is not None
    if len(ranges) != 1:
        return False
    (symbol,) = ranges
    return always_holds(relation, bounds.get(symbol, Bounds()))


def range_of(
    relation: sympy.Basic, ranges: Mapping[sympy.Symbol, ValueRanges[sympy.Expr]]
) -> ValueRanges[sympy.logic.boolalg.Boolean] | None:
    """The values of a relation for symbols in these ranges; None if torch cannot determine them."""
    if has_float_remainder(relation):
        # torch's rule is that of integers, and raises an error after it has logged a warning.
        return None
    try:
        return bound_sympy(relation, dict(ranges))
    except (*EVALUATION_ERRORS, ValueRangeError, NotImplementedError, AttributeError, KeyError):
        # torch's interval arithmetic has no rule for an operation, or the ranges contradict the relation.
        return None


def _with_exact_quotients(relation: sympy.Basic, bounds: Mapping[sympy.Symbol, Bounds]) -> sympy.Basic:
    """Replace floor divisions without remainder by exact ones: ``(7 * (n // 7)) // 7`` by ``n // 7``."""
    exact = {}
    for quotient in relation.atoms(FloorDiv):
        value, divisor = quotient.args
        if len(value.free_symbols) == 1 and divisor.is_Integer and not value.is_Symbol:
            (symbol,) = value.free_symbols
            if always_holds(sympy.Eq(Mod(value, divisor), 0, evaluate=False), bounds.get(symbol, Bounds())):
                exact[quotient] = value / divisor
    relation = relation.xreplace(exact)
    is_same = isinstance(relation, sympy.Eq) and bool(exact) and sympy.expand(relation.lhs - relation.rhs) == 0
    return sympy.true if is_same else relation


class _Printer(StrPrinter):  # type: ignore[misc]
    """Printer in Python's notation; names of sizes may contain any characters (``x.shape[0]``)."""

    printmethod = "_fxonnx"  # torch's functions would print themselves otherwise

    def _print_Relational(self, relation: sympy.Rel) -> str:
        lhs, rhs = relation.lhs, relation.rhs
        if isinstance(relation, sympy.Eq | sympy.Ne):
            # sympy's own order of the sides depends on the names.
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

    def _print_IntTrueDiv(self, expression: sympy.Expr) -> str:
        return self._binary(expression, "/")

    _print_FloatTrueDiv = _print_IntTrueDiv

    def _print_ToFloat(self, expression: sympy.Expr) -> str:
        # Python converts the integer in the operation that follows.
        return str(self.parenthesize(expression.args[0], PRECEDENCE["Atom"], strict=True))

    def _called(self, name: str, expression: sympy.Expr) -> str:
        return f"{name}({', '.join(map(self._print, expression.args))})"

    def _print_TruncToInt(self, expression: sympy.Expr) -> str:
        return self._called("int", expression)

    def _print_CeilToInt(self, expression: sympy.Expr) -> str:
        return self._called("ceil", expression)

    def _print_FloorToInt(self, expression: sympy.Expr) -> str:
        return self._called("floor", expression)

    def _print_RoundToInt(self, expression: sympy.Expr) -> str:
        return self._called("round", expression)

    _print_RoundDecimal = _print_RoundToInt

    def _print_FloatPow(self, expression: sympy.Expr) -> str:
        base, exponent = (self.parenthesize(side, PRECEDENCE["Pow"], strict=True) for side in expression.args)
        return f"{base}**{exponent}"

    _print_PowByNatural = _print_FloatPow

    def _print_Function(self, expression: sympy.Expr) -> str:
        return self._called(type(expression).__name__.removeprefix("OpaqueUnaryFn_"), expression)

    def _print_Min(self, expression: sympy.Expr) -> str:
        return f"min({', '.join(sorted(self._print(argument) for argument in expression.args))})"

    def _print_Max(self, expression: sympy.Expr) -> str:
        return f"max({', '.join(sorted(self._print(argument) for argument in expression.args))})"

    def _join_operands(self, expression: sympy.Basic, word: str) -> str:
        parts = [
            f"({self._print(part)})" if precedence(part) < PRECEDENCE["Relational"] else self._print(part)
            for part in expression.args
        ]
        return f" {word} ".join(sorted(parts))

    def _print_And(self, expression: sympy.Basic) -> str:
        return self._join_operands(expression, "and")

    def _print_Or(self, expression: sympy.Basic) -> str:
        return self._join_operands(expression, "or")

    def _print_Not(self, expression: sympy.Basic) -> str:
        return f"not ({self._print(expression.args[0])})"


def text_of(relation: sympy.Basic) -> str:
    """Print a relation as Python code: ``seq >= 9``, ``batch % 16 == 0``."""
    if isinstance(relation, sympy.Gt | sympy.Lt | sympy.Ge | sympy.Le) and relation.lhs.is_number:
        relation = relation.reversed
    return str(_Printer().doprint(relation))


@dataclass(frozen=True)
class Bounds:
    """The smallest and the largest valid size of a dim; None is unbounded."""

    low: int | None = None
    high: int | None = None

    def range(self) -> ValueRanges[sympy.Expr]:
        """Convert to torch's value range."""
        low = -int_oo if self.low is None else sympy.Integer(self.low)
        return ValueRanges(low, int_oo if self.high is None else sympy.Integer(self.high))

    def within(self, other: Bounds) -> Bounds:
        """Intersection of two bounds."""
        lows = [bound.low for bound in (self, other) if bound.low is not None]
        highs = [bound.high for bound in (self, other) if bound.high is not None]
        return Bounds(max(lows, default=None), min(highs, default=None))


def always_holds(relation: sympy.Basic, bounds: Bounds) -> bool:
    """Whether a relation of one size is proved to hold within the bounds, by checking one period."""
    low, high = bounds.low, bounds.high
    if low is None or not isinstance(relation, sympy.Rel):
        return False
    difference = _difference(relation)
    if difference is None:
        return False
    period = len(difference.values)
    last = low + period if high is None else min(low + period, high)
    values = [difference(size) for size in range(low, last + 1)]
    holds = all(bool(relation.func(value, 0)) for value in values)
    if not holds or (high is not None and high <= low + period):
        return holds
    if difference.slope == 0:
        return True
    if isinstance(relation, sympy.Ne):
        return min(values) > 0 if difference.slope > 0 else max(values) < 0
    return isinstance(relation, sympy.Ge | sympy.Gt if difference.slope > 0 else sympy.Le | sympy.Lt)


def lower_limit(relation: sympy.Basic, symbol: sympy.Symbol) -> sympy.Basic | None:
    """``symbol >= number``, if this is equivalent to an inequality of one size; otherwise None."""
    is_inequality = isinstance(relation, sympy.Ge | sympy.Gt | sympy.Le | sympy.Lt)
    difference = _difference(relation) if is_inequality else None
    if difference is None:
        return None
    if isinstance(relation, sympy.Le | sympy.Lt):
        difference = difference * -1
    if difference.slope <= 0:
        return None
    period = len(difference.values)
    smallest = min(difference(size) for size in range(1, 2 + period))
    least_value = 0 if isinstance(relation, sympy.Ge | sympy.Le) else 1
    # After this many periods even the smallest value is large enough.
    periods = max(0, -((smallest - least_value) // difference.slope))
    if period * (periods + 1) > LONGEST_PERIOD:
        return None
    holds = [difference(size) >= least_value for size in range(1, period * (periods + 1) + 1)]
    first = holds.index(True)
    return sympy.Ge(symbol, first + 1) if all(holds[first:]) else None


def merged_divisibility(relations: Sequence[sympy.Basic], symbol: sympy.Symbol) -> sympy.Basic | None:
    """``symbol % number == 0``, if this is equivalent to the conjunction of equations of one size; otherwise None."""
    differences = [quasi_periodic(relation.lhs - relation.rhs) for relation in relations]
    periodic = [difference for difference in differences if difference is not None and difference.slope == 0]
    if len(periodic) < len(differences):
        return None
    period = math.lcm(*(len(difference.values) for difference in periodic))
    if period > LONGEST_PERIOD:
        return None
    holds = [not any(difference(size) for difference in periodic) for size in range(1, 2 * period + 1)]
    if not any(holds):
        return None
    number = holds.index(True) + 1
    if any(true != (size % number == 0) for size, true in enumerate(holds, 1)):
        return None
    return sympy.Eq(Mod(symbol, number), 0)


def _difference(relation: sympy.Rel) -> QuasiPeriodic | None:
    """The left side minus the right side, as a function of the only size."""
    return quasi_periodic(sympy.Add(relation.lhs, -relation.rhs, evaluate=False))
