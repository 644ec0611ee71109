"""Relations between sizes in forms that a person reads: with plain operators, of one size each, as Python code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import sympy
from sympy.printing.precedence import PRECEDENCE, precedence
from sympy.printing.str import StrPrinter

from fxonnx_translations._builder.exact_quotients import CONVERSIONS, exact_integer
from fxonnx_translations._torch_compat import FloorDiv, Max, Min, bound_sympy, sympy_functions

from .size_sets import SizeSet, size_function

__all__ = [
    "cases_of_extremes",
    "edge_of",
    "indicator_of",
    "text_of",
    "without_clamps",
    "without_floats",
    "without_known_quotients",
]


def without_floats(expression: sympy.Basic) -> sympy.Basic:
    """Replace conversions: ``int(2.0 * float(n))``, the size of a scaled image, by ``2*n``, float(n) by n."""
    if (quotient := _compared_with_its_floor(expression)) is not None:
        return expression.func(sympy_functions.PythonMod(*quotient.args), 0)
    found = expression.replace(lambda part: isinstance(part, CONVERSIONS), exact_integer)
    if isinstance(found, sympy.Rel) and any(isinstance(side, sympy_functions.ToFloat) for side in found.args):
        sides = [side.args[0] if isinstance(side, sympy_functions.ToFloat) else side for side in found.args]
        sides = [sympy.Integer(int(side)) if side.is_Float and float(side).is_integer() else side for side in sides]
        found = found.func(*sides) if all(side.is_integer for side in sides) else found
    if isinstance(found, sympy.Rel) and all(isinstance(side, sympy_functions.IntTrueDiv) for side in found.args):
        (one, by), (other, other_by) = (side.args for side in found.args)
        found = found.func(one, other) if by == other_by and by.is_Integer and by > 0 else found
    return found if isinstance(found, sympy.Basic) else expression


def _compared_with_its_floor(relation: sympy.Basic) -> sympy.Expr | None:
    """The quotient of ``(n / 2).is_integer()``."""
    if not isinstance(relation, sympy.Eq | sympy.Ne):
        return None
    for quotient, other in (relation.args, relation.args[::-1]):
        if isinstance(quotient, sympy_functions.IntTrueDiv) and quotient.args[1].is_Integer and other.args:
            floor = other.args[0] if isinstance(other, sympy_functions.ToFloat) else other
            if isinstance(floor, sympy.floor | sympy_functions.FloorToInt) and floor.args[0] == quotient:
                return quotient
    return None


def without_clamps(expression: sympy.Basic) -> sympy.Basic:
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


def without_known_quotients(relation: sympy.Rel) -> list[sympy.Basic]:
    """The relation with numbers for quotients such as ``(3*n - 1) // n``, which is 2, and the bounds of their divisors.

    ``x.split(n)`` computes such a number of parts.
    """
    numbers = {
        quotient: number
        for quotient in relation.atoms(FloorDiv)
        if (number := _known_quotient(*quotient.args)) is not None
    }
    bounds = {sympy.Ge(symbol, 1): None for quotient in numbers for symbol in quotient.args[1].free_symbols}
    return [relation.xreplace(numbers), *bounds] if numbers else [relation]


def _known_quotient(value: sympy.Expr, divisor: sympy.Expr) -> sympy.Integer | None:
    """The quotient of sizes by a positive multiple of one of them, if it is the same for all sizes."""
    factor, size = divisor.as_coeff_Mul()
    if not (factor.is_Integer and factor > 0 and size.is_Symbol and size.is_integer and size.is_nonnegative):
        return None
    number = sympy.floor(sympy.expand(value / divisor).as_coeff_Add()[0])
    for whole in (number, number - 1):
        rest = sympy.expand(value - whole * divisor)
        if _is_never_negative(rest, size) and _is_never_negative(divisor - 1 - rest, size):
            return sympy.Integer(whole)
    return None


def _is_never_negative(expression: sympy.Expr, positive: sympy.Symbol) -> bool:
    """Whether a polynomial of sizes, one of which is positive, has no negative term."""
    shifted = sympy.expand(expression.xreplace({positive: positive + 1}))
    terms = shifted.as_coefficients_dict()
    return all(symbol.is_nonnegative for symbol in shifted.free_symbols) and all(
        coefficient >= 0 and term.is_polynomial() for term, coefficient in terms.items()
    )


_MOST_CASES = 16
_INCREASING = (sympy_functions.RoundToInt, sympy_functions.FloorToInt, sympy_functions.CeilToInt)


def cases_of_extremes(relation: sympy.Basic) -> sympy.Basic | None:
    """Relations of one size each that are equivalent to one of several with Min and Max; None if there are none.

    ``h // max(1, round(min(h, w) / 256)) >= 11`` is ``h >= 11``.
    """
    if isinstance(relation, sympy.Eq) and any(side.is_Integer for side in relation.args):
        parts = [cases_of_extremes(kind(*relation.args)) for kind in (sympy.Ge, sympy.Le)]
        return None if None in parts else sympy.And(*parts)
    if not isinstance(relation, sympy.Ge | sympy.Gt | sympy.Le | sympy.Lt):
        return None
    least = 1 if isinstance(relation, sympy.Gt | sympy.Lt) else 0
    difference = relation.gts - relation.lts - least
    if not difference.is_integer or math.prod(len(part.args) for part in difference.atoms(Min, Max)) > _MOST_CASES:
        return None
    cases = _nonnegative_cases(difference)
    singles = {}
    for leaf in cases.atoms(sympy.Ge):
        symbols = leaf.free_symbols
        sizes = SizeSet.of(leaf, next(iter(symbols))) if len(symbols) == 1 else None
        limits = None if sizes is None else sizes.limits()
        if limits is not None:
            singles[leaf] = sympy.And(*limits)
    found = cases.xreplace(singles)
    return found if all(len(leaf.free_symbols) == 1 for leaf in found.atoms(sympy.Rel)) else None


def _nonnegative_cases(expression: sympy.Expr) -> sympy.Basic:
    """``expression >= 0`` as conditions without the Min and Max of its terms."""
    for extreme in expression.atoms(Min, Max):
        expression = _with_linear_terms(expression, extreme)
    for term in sympy.Add.make_args(expression):
        number, value = term.as_coeff_Mul()
        if not number.is_Integer or not number:
            continue
        others = expression - term
        if isinstance(value, FloorDiv) and others.is_Integer and value.args[1].is_positive:
            dividend, divisor = value.args
            if number > 0:
                return _nonnegative_cases(sympy.expand(dividend + (others // number) * divisor))
            return _nonnegative_cases(sympy.expand((others // -number + 1) * divisor - dividend - 1))
        extreme = _outer_extreme(value)
        if isinstance(extreme, Min | Max):
            parts = [_nonnegative_cases(others + number * one) for one in extreme.args]
            return sympy.Or(*parts) if isinstance(extreme, Max) == (number > 0) else sympy.And(*parts)
    return sympy.Ge(expression, 0)


def _with_linear_terms(expression: sympy.Expr, part: sympy.Expr) -> sympy.Expr:
    """``n + k - 1`` from ``n + (k - 1) // 2 + k // 2`` for a part ``k``."""
    symbol = sympy.Symbol("part", integer=True, positive=True)
    terms = sympy.Add.make_args(expression.xreplace({part: symbol}))
    own = [term for term in terms if term.free_symbols == {symbol}]
    function = size_function(sympy.Add(*own)) if len(own) > 1 else None
    if function is None or function.degree > 1 or not function.is_everywhere:
        return expression
    values = function.table(function.start + 2 * function.period + 1)
    steps = np.unique(np.diff(values))
    if len(steps) != 1:
        return expression
    found = sympy.Add(*(term for term in terms if term not in own), int(steps[0]) * symbol, int(values[0]))
    return found.xreplace({symbol: part})


def _outer_extreme(value: sympy.Expr) -> sympy.Expr:
    """``min(h // 2, w // 2)`` from ``min(h, w) // 2``."""
    has_divisor = isinstance(value, FloorDiv | sympy_functions.IntTrueDiv) and value.args[1].is_positive
    if not isinstance(value, _INCREASING) and not (has_divisor and value.args[1].is_Integer):
        return value
    inner = _outer_extreme(value.args[0])
    if not isinstance(inner, Min | Max):
        return value
    return inner.func(*(value.func(one, *value.args[1:]) for one in inner.args))


def indicator_of(condition: sympy.Basic) -> sympy.Expr | None:
    """1 where a condition on sizes holds, and 0 elsewhere."""
    if isinstance(condition, sympy.And | sympy.Or):
        parts = [part for part in map(indicator_of, condition.args) if part is not None]
        if len(parts) < len(condition.args):
            return None
        if isinstance(condition, sympy.And):
            return sympy.Mul(*parts)
        return 1 - sympy.Mul(*(1 - part for part in parts))
    if isinstance(condition, sympy.Not):
        negated = indicator_of(condition.args[0])
        return None if negated is None else 1 - negated
    condition = without_floats(condition)
    if not isinstance(condition, sympy.Rel) or not all(side.is_integer for side in condition.args):
        return None
    if isinstance(condition, sympy.Eq | sympy.Ne):
        difference = condition.lhs - condition.rhs
        differs = Min(1, difference if difference.is_nonnegative else Max(difference, -difference))
        return differs if isinstance(condition, sympy.Ne) else 1 - differs
    excess = condition.gts - condition.lts + (0 if isinstance(condition, sympy.Gt | sympy.Lt) else 1)
    return Max(0, Min(1, excess))


def edge_of(condition: sympy.Basic, ranges: Mapping[sympy.Symbol, Any]) -> tuple[sympy.Basic, bool] | None:
    """The sizes beside the edge of a condition as a relation, and the answer there; None without an edge."""
    condition = without_floats(condition)
    if isinstance(condition, sympy.Not):
        negated = edge_of(condition.args[0], ranges)
        return None if negated is None else (negated[0], not negated[1])
    if isinstance(condition, sympy.And) and all(isinstance(part, sympy.Eq) for part in condition.args):
        # Shapes are equal.
        return sympy.Or(*(sympy.Ne(*part.args) for part in condition.args)), False
    if not isinstance(condition, sympy.Rel) or not all(side.is_integer for side in condition.args):
        return None
    if isinstance(condition, sympy.Eq | sympy.Ne):
        return sympy.Ne(*condition.args), isinstance(condition, sympy.Ne)
    # The condition is that a number is positive.
    number = condition.gts - condition.lts + (0 if isinstance(condition, sympy.Gt | sympy.Lt) else 1)
    bounds = bound_sympy(number, dict(ranges))
    if bounds.lower == 0:
        return sympy.Ne(number, 0), True
    return (sympy.Ne(1 - number, 0), False) if bounds.upper == 1 else None


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
        if all(isinstance(part, sympy.Eq) and part.rhs.is_Integer for part in expression.args):
            values = {part.lhs: sorted(int(one.rhs) for one in expression.args) for part in expression.args}
            if len(values) == 1:
                ((value, numbers),) = values.items()
                return f"{self._print(value)} in {{{', '.join(map(str, numbers))}}}"
        return self._join_operands(expression, "or")

    def _print_Not(self, expression: sympy.Basic) -> str:
        return f"not ({self._print(expression.args[0])})"


def text_of(relation: sympy.Basic) -> str:
    """Print a relation as Python code: ``seq >= 9``, ``batch % 16 == 0``."""
    if isinstance(relation, sympy.Gt | sympy.Lt | sympy.Ge | sympy.Le) and relation.lhs.is_number:
        relation = relation.reversed
    return str(_Printer().doprint(relation))
