"""Relations between sizes: brought into one form, compared with what is known of the sizes, and written as Python."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import sympy
from sympy.printing.precedence import PRECEDENCE, precedence
from sympy.printing.str import StrPrinter

from fxonnx_translations.torch_compat import (
    FloorDiv,
    Max,
    Min,
    Mod,
    PythonMod,
    ValueRangeError,
    ValueRanges,
    bound_sympy,
    sympy_functions,
    try_solve,
)

from .periods import Bounds, always_holds, least

__all__ = ["bounds_of", "divisor_of", "follows", "normal_forms", "text_of"]


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
