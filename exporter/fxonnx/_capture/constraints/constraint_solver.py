"""Solver for relations between sizes: normal forms and implication.

Relations of one size are decided by the set of sizes that satisfy them. Equations of several sizes are decided on a
grid: both sides are polynomials for the sizes of each remainder, so that a few sizes of each remainder prove equality.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import sympy

from fxonnx_translations._builder.exact_quotients import factors_of, has_float_remainder
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
    try_solve,
)

from .relation_forms import cases_of_extremes, without_clamps, without_floats, without_known_quotients
from .size_sets import LONGEST_PERIOD, RELATIONS, Bounds, NotComputableError, SizeSet, Values, size_function

__all__ = [
    "Bounds",
    "are_equal",
    "bounds_of",
    "cancelled",
    "holds_where",
    "is_implied",
    "limits_of",
    "normal_forms",
    "range_of",
    "required_multiples",
]

_LARGEST_GRID = 1 << 20
_LARGEST_VALUE = 1 << 60


def normal_forms(expression: sympy.Basic) -> Iterator[sympy.Basic]:
    """Split a conjunction into relations in normal form; a bound on one size has the form ``size >= number``."""
    if isinstance(expression, sympy.And):
        for part in expression.args:
            yield from normal_forms(part)
    elif isinstance(expression, sympy.Not) and isinstance(expression.args[0], sympy.Or):
        for part in expression.args[0].args:
            yield from normal_forms(sympy.Not(part))
    elif isinstance(expression, sympy.Eq) and len(factors := _factors_of_one(expression)) > 1:
        for factor in factors:
            yield from normal_forms(sympy.Eq(factor, 1))
    elif isinstance(expression, sympy.Eq) and len(parts := _divided_factors(expression)) > 1:
        for value, divisor in parts:
            yield from normal_forms(_divisible_by(value, divisor))
    elif isinstance(expression, sympy.Rel) and len(parts := without_known_quotients(expression)) > 1:
        for part in parts:
            yield from normal_forms(part)
    elif expression not in (sympy.true, True):
        yield from _limits(without_clamps(without_floats(expression)))


def _limits(expression: sympy.Basic) -> Iterator[sympy.Basic]:
    parts = [cancelled(part) if isinstance(part, sympy.Eq) else part for part in sympy.Or.make_args(expression)]
    expression = sympy.Or(*map(_without_positive_factors, parts))
    if expression in (sympy.true, True) or _holds_in_all_cases(expression):
        return
    if len(expression.free_symbols) == 1:
        (symbol,) = expression.free_symbols
        limit = bounds_of(expression)
        sizes = None if limit is not None and isinstance(expression, sympy.Eq) else SizeSet.of(expression, symbol)
        limits = None if sizes is None else sizes.limits()
        if limits is not None:
            yield from limits
            return
    cases = cases_of_extremes(expression) if expression.has(Min, Max) else None
    if cases is not None and cases != expression:
        yield from normal_forms(cases)
        return
    # A bound or a remainder of 0, if an equation has this meaning.
    meanings = (_clamp_limit, _divisibility) if isinstance(expression, sympy.Eq) else ()
    found = next((form for meaning in meanings if (form := meaning(expression)) is not None), expression)
    if found != expression:
        yield from normal_forms(found)
        return
    if isinstance(expression, sympy.Le | sympy.Ge):
        smaller, larger = (expression.lts, expression.gts)
        if (isinstance(smaller, Min) and larger in smaller.args) or (
            isinstance(larger, Max) and smaller in larger.args
        ):
            return
        if smaller == 0 and _is_remainder(larger):
            return
    yield _solved(expression)


_MOST_INDICATORS = 4


def _holds_in_all_cases(relation: sympy.Basic) -> bool:
    """Whether a relation of a size that conditions choose, ``m + max(0, min(1, m - n))*(n - m)``, holds for each."""
    indicators = [one for one in relation.atoms(Max) if one.args[0] == 0 and isinstance(one.args[-1], Min)]
    indicators = [one for one in indicators if len(one.args) == 2 and 1 in one.args[1].args]
    if not 0 < len(indicators) <= _MOST_INDICATORS:
        return False
    answers = itertools.product((sympy.S.Zero, sympy.S.One), repeat=len(indicators))
    return all(relation.xreplace(dict(zip(indicators, each, strict=True))) is sympy.true for each in answers)


def _is_remainder(expression: sympy.Expr) -> bool:
    """Whether an expression is ``n - k*(n // k)``, which is not negative."""
    return any(
        quotient.args[1].is_positive and sympy.expand(quotient.args[0] - quotient.args[1] * quotient - expression) == 0
        for quotient in expression.atoms(FloorDiv)
    )


def _without_positive_factors(expression: sympy.Basic) -> sympy.Basic:
    """``n - 5 >= 0`` from ``batch*(n - 5) >= 0``."""
    if not isinstance(expression, sympy.Ge | sympy.Gt | sympy.Le | sympy.Lt) or expression.rhs != 0:
        return expression
    factors = sympy.Mul.make_args(expression.lhs)
    others = [factor for factor in factors if not factor.is_positive]
    return expression if len(others) == len(factors) else expression.func(sympy.Mul(*others), 0)


def _solved(expression: sympy.Basic) -> sympy.Basic:
    """The bound on the only size of a relation, if torch can solve it."""
    if not isinstance(expression, sympy.Rel) or isinstance(expression, sympy.Ne) or len(expression.free_symbols) != 1:
        return expression
    (symbol,) = expression.free_symbols
    solved = try_solve(expression, symbol)
    if solved is None or solved[0].lhs != symbol or not solved[1].is_number or not symbol.is_integer:
        return expression
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


def cancelled(equation: sympy.Eq) -> sympy.Basic:
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
            return _greater_or_equal(one, other) if isinstance(clamp, Max) else _greater_or_equal(other, one)
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


def required_multiples(equation: sympy.Eq) -> Iterator[tuple[sympy.Expr, int]]:
    """The expressions of which an equation requires that they are multiples of a number, with the number."""
    found = [_divisible_by(*part) for part in _divided_factors(equation)]
    plain = without_clamps(without_floats(equation))
    plain = cancelled(plain) if isinstance(plain, sympy.Eq) else plain
    found = found or ([_divisibility(plain)] if isinstance(plain, sympy.Eq) else [])
    for form in (*found, *normal_forms(equation)):
        if isinstance(form, sympy.Eq) and isinstance(form.lhs, Mod) and form.rhs == 0 and form.lhs.args[1].is_Integer:
            yield form.lhs.args[0], int(form.lhs.args[1])


def _factors_of_one(equation: sympy.Eq) -> Sequence[sympy.Expr]:
    """The factors of ``(h // 2) * (w // 2) == 1``, each of which is 1, as they are not negative."""
    product = equation.lhs if equation.rhs == 1 else equation.rhs if equation.lhs == 1 else sympy.S.One
    factors: Sequence[sympy.Expr] = product.args if isinstance(product, sympy.Mul) else ()
    return factors if all(factor.is_integer and factor.is_nonnegative for factor in factors) else ()


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


def is_implied(
    relation: sympy.Basic,
    bounds: Mapping[sympy.Symbol, Bounds],
    known: Mapping[sympy.Symbol, SizeSet] = MappingProxyType({}),
) -> bool:
    """Whether a relation is proved to hold for all sizes within the bounds; False if it is undecided.

    Args:
        relation: The relation.
        bounds: Symbol to its bounds.
        known: Symbol to the sizes that other relations allow.
    """
    symbols = relation.free_symbols
    if len(symbols) == 1:
        (symbol,) = symbols
        sizes = SizeSet.of(relation, symbol)
        if sizes is not None:
            is_known = symbol in known and known[symbol].implies(sizes)
            return is_known or sizes.is_full(bounds.get(symbol, Bounds()))
    if isinstance(relation, sympy.Or):
        return any(all(is_implied(form, bounds, known) for form in normal_forms(part)) for part in relation.args)
    if isinstance(relation, sympy.And):
        return all(is_implied(part, bounds, known) for part in relation.args)
    found = range_of(relation, {symbol: bounds.get(symbol, Bounds()).range() for symbol in symbols})
    if found == ValueRanges.wrap(sympy.true):
        return True
    return len(symbols) > 1 and isinstance(relation, sympy.Rel) and _holds_on_grid(relation, bounds, known)


def are_equal(one: sympy.Expr, other: sympy.Expr, where: sympy.Basic) -> bool:
    """Whether sizes are known to be equal where a condition on sizes holds."""
    parts = sympy.And.make_args(sympy.to_nnf(without_floats(where), simplify=False))
    equations = [part.args if part.lhs.is_Symbol else part.args[::-1] for part in parts if isinstance(part, sympy.Eq)]
    equal = {size: same for size, same in equations if size.is_Symbol and size not in same.free_symbols}
    difference = sympy.expand((one - other).xreplace(equal))
    return difference == 0 or is_implied(sympy.Eq(difference, 0), {}, _sets_of(parts, {})[0])


def holds_where(relation: sympy.Basic, where: sympy.Basic) -> bool:
    """Whether a relation of sizes is proved to hold where a condition on sizes does."""
    parts = sympy.And.make_args(sympy.to_nnf(without_floats(where), simplify=False))
    return is_implied(relation, {}, _sets_of(parts, {})[0])


def limits_of(
    relations: Iterable[sympy.Basic], bounds: Mapping[sympy.Symbol, Bounds], known: Iterable[sympy.Basic] = ()
) -> dict[sympy.Basic, list[sympy.Basic]]:
    """The shortest limits that are equivalent to relations, each with the relations that it follows from.

    Args:
        relations: Relations in normal form.
        bounds: Symbol to its bounds.
        known: Relations that hold anyway.
    """
    given, _ = _sets_of(known, {})
    joined, members = _sets_of(relations, given)
    ranges = dict(bounds)
    for symbol, sizes in joined.items():
        ranges[symbol] = sizes.bounds().within(ranges.get(symbol, Bounds()))
    limits = {
        symbol: _limits_of_size(alone, bounds.get(symbol, Bounds()), given.get(symbol))
        for symbol, alone in members.items()
    }
    found: dict[sympy.Basic, list[sympy.Basic]] = {}
    for relation in relations:
        symbol = next(iter(relation.free_symbols), None)
        if relation in members.get(symbol, {}):
            found.update((limit, causes) for limit, causes in limits[symbol] if causes[0] == relation)
        elif not is_implied(relation, ranges, joined):
            found[relation] = [relation]
    return found


def _sets_of(
    relations: Iterable[sympy.Basic], given: Mapping[sympy.Symbol, SizeSet]
) -> tuple[dict[sympy.Symbol, SizeSet], dict[sympy.Symbol | None, dict[sympy.Basic, SizeSet]]]:
    """The sizes of each symbol that relations and given sets allow, and the sets of the relations of one symbol."""
    joined = dict(given)
    members: dict[sympy.Symbol | None, dict[sympy.Basic, SizeSet]] = {}
    for relation in relations:
        symbols = relation.free_symbols
        if len(symbols) == 1:
            (symbol,) = symbols
            sizes = SizeSet.of(relation, symbol)
            both = joined[symbol].both(sizes) if sizes is not None and symbol in joined else sizes
            if sizes is not None and both is not None:
                joined[symbol] = both
                members.setdefault(symbol, {})[relation] = sizes
    return joined, members


def _limits_of_size(
    relations: Mapping[sympy.Basic, SizeSet], bounds: Bounds, given: SizeSet | None
) -> list[tuple[sympy.Basic, list[sympy.Basic]]]:
    """The limits of one size that are equivalent to relations, each with the relations that it follows from."""
    together = SizeSet.common(relations.values())
    limits = None if together is None else together.limits()
    found = [(limit, _causes(limit, relations)) for limit in limits or ()]
    if limits is None or any(_is_one_size(limit) and len(causes) > 1 for limit, causes in found):
        # One size is left by several lines, all of which the error names.
        found = [(relation, [relation]) for relation in _without_implied(relations)]
    return [
        (limit, causes)
        for limit, causes in found
        if not is_implied(limit, dict.fromkeys(limit.free_symbols, bounds))
        and not (given is not None and _is_known(limit, given))
    ]


def _is_one_size(limit: sympy.Basic) -> bool:
    return isinstance(limit, sympy.Eq) and bounds_of(limit) is not None


def _is_known(limit: sympy.Basic, given: SizeSet) -> bool:
    sizes = SizeSet.of(limit, given.symbol)
    return sizes is not None and given.implies(sizes)


def _causes(limit: sympy.Basic, relations: Mapping[sympy.Basic, SizeSet]) -> list[sympy.Basic]:
    """One relation that implies a limit, or several that do together."""
    alone = next((relation for relation, sizes in relations.items() if _is_known(limit, sizes)), None)
    if alone is not None:
        return [alone]
    needed = dict(relations)
    for relation in reversed(relations):
        others = SizeSet.common(sizes for other, sizes in needed.items() if other != relation)
        if others is not None and _is_known(limit, others):
            del needed[relation]
    return list(needed)


def _without_implied(relations: Mapping[sympy.Basic, SizeSet]) -> Iterator[sympy.Basic]:
    kept = dict(relations)
    for relation, sizes in relations.items():
        if any(other is not sizes and other.implies(sizes) for other in kept.values()):
            del kept[relation]
    yield from kept


class _Growth(NamedTuple):
    """The period, the degree and the start of an expression as a function of one of its sizes."""

    period: int
    degree: int
    start: int


def _holds_on_grid(
    relation: sympy.Rel, bounds: Mapping[sympy.Symbol, Bounds], known: Mapping[sympy.Symbol, SizeSet]
) -> bool:
    """Whether an equation, or another relation of remainders, of several sizes holds at enough sizes for a proof."""
    try:
        growths = _merged([_growths(side) for side in relation.args], max)
        if not isinstance(relation, sympy.Eq) and any(growth.degree for growth in growths.values()):
            return False
        sizes = {}
        for symbol, (period, degree, start) in growths.items():
            allowed = known.get(symbol) or SizeSet.of(sympy.true, symbol)
            if allowed is None or allowed.below is not None:
                return False
            period = math.lcm(period, allowed.above.period)
            sizes[symbol] = allowed.members(bounds.get(symbol, Bounds()), start, period, degree + 1)
        if math.prod(map(len, sizes.values())) > _LARGEST_GRID:
            return False
        axes = dict(zip(sizes, np.ix_(*sizes.values()), strict=True))
        one, other = (_on_grid(side, axes) for side in relation.args)
    except NotComputableError:
        return False
    return bool(RELATIONS[type(relation)](one, other).all())


def _growths(expression: sympy.Expr) -> dict[sympy.Symbol, _Growth]:
    """The growth of an expression in each of its sizes."""
    symbols = expression.free_symbols
    if expression.is_Integer:
        return {}
    if len(symbols) == 1:
        function = size_function(expression)
        if function is None:
            raise NotComputableError
        return {next(iter(symbols)): _Growth(function.period, function.degree, function.start)}
    if isinstance(expression, sympy.Add | sympy.Mul):
        return _merged(map(_growths, expression.args), max if isinstance(expression, sympy.Add) else operator.add)
    if not (isinstance(expression, FloorDiv | Mod | PythonMod) and expression.args[1].is_Integer):
        raise NotComputableError
    by = int(expression.args[1])
    return {
        symbol: _Growth(
            period * abs(by) * math.lcm(*range(1, degree + 1)),
            degree if isinstance(expression, FloorDiv) else 0,
            start,
        )
        for symbol, (period, degree, start) in _growths(expression.args[0]).items()
    }


def _merged(
    parts: Iterable[Mapping[sympy.Symbol, _Growth]], degree_of: Callable[[int, int], int]
) -> dict[sympy.Symbol, _Growth]:
    """The growth of a sum, or a product, of expressions."""
    found: dict[sympy.Symbol, _Growth] = {}
    for part in parts:
        for symbol, (period, degree, start) in part.items():
            before = found.get(symbol, _Growth(1, 0, 0))
            period = math.lcm(period, before.period)
            if period > LONGEST_PERIOD:
                raise NotComputableError
            found[symbol] = _Growth(period, degree_of(degree, before.degree), max(start, before.start))
    return found


def _on_grid(expression: sympy.Expr, axes: Mapping[sympy.Symbol, Values]) -> Values:
    """The values of an expression at all combinations of sizes."""
    symbols = expression.free_symbols
    if len(symbols) < 2:
        function = size_function(expression)
        if function is None:
            raise NotComputableError
        sizes = axes[next(iter(symbols))] if symbols else np.zeros(1, np.int64)
        return function.table(int(sizes.max(initial=0)) + 1)[sizes]
    if isinstance(expression, FloorDiv | Mod | PythonMod):
        values, by = _on_grid(expression.args[0], axes), int(expression.args[1])
        return values // by if isinstance(expression, FloorDiv) else values % by
    is_sum = isinstance(expression, sympy.Add)
    found, *others = (_on_grid(part, axes) for part in expression.args)
    for other in others:
        largest = [int(np.abs(values).max(initial=0)) for values in (found, other)]
        if (sum(largest) if is_sum else math.prod(largest)) > _LARGEST_VALUE:
            raise NotComputableError
        found = found + other if is_sum else found * other
    return found


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
