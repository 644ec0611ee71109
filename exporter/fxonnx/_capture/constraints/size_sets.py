"""Sets of the sizes that satisfy conditions, and the shortest limits that a person would write for them.

A function of one size, of sums, products, quotients and remainders, is, from some size on, a polynomial for the sizes
of each remainder modulo a period. Its values up to that size, and at a few sizes of each remainder after it, determine
it for all sizes: functions are simplified, and conditions decided, by looking at numbers. A condition is a function
whose values are 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import sympy

from fxonnx_translations._torch_compat import (
    CeilToInt,
    FloorDiv,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    PythonMod,
    ValueRanges,
    int_oo,
    sympy_functions,
)

__all__ = [
    "LONGEST_PERIOD",
    "RELATIONS",
    "Bounds",
    "Known",
    "NotComputableError",
    "SizeFunction",
    "SizeSet",
    "Values",
    "size_function",
]

LONGEST_PERIOD = 4096
"""Functions with longer periods are not computed."""

_LARGEST_POWER = 4
_LONGEST_TABLE = 1 << 20
_LARGEST = 1 << 62
"""Of the values, which are computed in 64 bits."""

Values: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
_MOST_VALUES = 8
"""Sets of as many sizes, or remainders, are written as ``n in {4, 6, 8}``."""
_MOST_EXCEPTIONS = 4
"""Exceptions to a pattern are written as ``n != 5``."""


class NotComputableError(Exception):
    """Raised for functions of another kind, and for those whose tables would be too long."""


@dataclass(frozen=True, eq=False)
class SizeFunction:
    """A function of the integers from 0 on that is, from ``start`` on, a polynomial for each remainder.

    Attributes:
        values: The values at 0, 1, ..., ``start + (degree + 1) * period - 1``.
        period: The divisor of the remainders.
        degree: The largest degree of the polynomials.
        start: The first size at which they hold.
        is_everywhere: Whether they hold for negative integers as well.
        undefined: The sizes before ``start`` at which a divisor is 0; no condition holds there.
    """

    values: Values
    period: int = 1
    degree: int = 0
    start: int = 0
    is_everywhere: bool = True
    undefined: frozenset[int] = frozenset()

    def differences(self) -> Values:
        """For each remainder the value at ``start``, the first difference of the polynomial, the second, and so on."""
        rows = self.values[self.start :].reshape(self.degree + 1, self.period)
        found = [rows[0]]
        for _ in range(self.degree):
            rows = np.diff(rows, axis=0)
            found.append(rows[0])
        return np.stack(found)

    def table(self, length: int) -> Values:
        """The values at 0, 1, ..., ``length - 1``."""
        if length <= len(self.values):
            return self.values[:length]
        if length > _LONGEST_TABLE:
            raise NotComputableError
        periods, remainders = np.divmod(np.arange(length - self.start), self.period)
        return np.concatenate([self.values[: self.start], _at(self.differences(), periods, remainders)])

    def extended(self, start: int, period: int, degree: int) -> SizeFunction:
        """The same function with a later start, a multiple of the period and a higher degree."""
        values = self.table(start + (degree + 1) * period)
        return SizeFunction(values, period, degree, start, self.is_everywhere, self.undefined)

    def reduced(self) -> SizeFunction:
        """The same function with its least degree."""
        degree, rows = self.degree, self.differences()
        while degree and not rows[degree].any():
            degree -= 1
        return replace(self, values=self.values[: self.start + (degree + 1) * self.period], degree=degree)

    def with_stable_sign(self) -> SizeFunction:
        """The same function with a start from which on the sign is the same for each remainder."""
        rows, periods = self.differences(), 0
        while True:
            count = np.full(self.period, periods)
            now = np.stack([_at(rows[index:], count, np.arange(self.period)) for index in range(len(rows))])
            is_stable = (now == 0).all(0) | ((now >= 0).all(0) & (now[0] > 0)) | ((now <= 0).all(0) & (now[0] < 0))
            if is_stable.all():
                break
            periods = max(1, 2 * periods)
        found = self if not periods else self.extended(self.start + periods * self.period, self.period, self.degree)
        return replace(found, is_everywhere=self.is_everywhere and self.degree == 0)

    def complement(self) -> SizeFunction:
        """The opposite of a condition."""
        return replace(self, values=1 - self.values)._without_undefined()

    def _without_undefined(self) -> SizeFunction:
        """A condition that does not hold where it is undefined."""
        if not self.undefined:
            return self
        values = self.values.copy()
        values[sorted(self.undefined)] = 0
        return replace(self, values=values)

    @property
    def slope(self) -> int | None:
        """The growth in a period, if it is the same for all remainders and sizes."""
        if self.degree > 1 or not self.is_everywhere:
            return None
        slopes = self.differences()[1] if self.degree else np.zeros(1, np.int64)
        return int(slopes[0]) if (slopes == slopes[0]).all() else None


Known: TypeAlias = dict[sympy.Basic, SizeFunction | None]
"""The functions of expressions and of their parts."""


def size_function(expression: sympy.Basic, known: Known | None = None, *, sign: int = 1) -> SizeFunction | None:
    """Compute an expression, or a condition, of one integer symbol as a function.

    Args:
        expression: The expression.
        known: Cache of the functions of its parts; extended.
        sign: -1 for the function of the symbol's negative.

    Returns:
        The function; None for other operations and for longer periods than ``LONGEST_PERIOD``.
    """
    known = {} if known is None else known
    if expression not in known:
        try:
            known[expression] = _compute(expression, known, sign)
        except NotComputableError:
            known[expression] = None
    return known[expression]


def _compute(expression: sympy.Basic, known: Known, sign: int) -> SizeFunction:
    if expression.is_Symbol:
        return SizeFunction(np.array([0, sign]), degree=1)
    if expression.is_Integer or expression in (sympy.true, sympy.false):
        number = int(bool(expression)) if expression in (sympy.true, sympy.false) else int(expression)
        return _checked(SizeFunction(np.array([number], dtype=object)))
    arguments: Sequence[sympy.Basic] = expression.args
    if isinstance(expression, CeilToInt) and isinstance(arguments[0], IntTrueDiv):
        value, divisor = arguments[0].args
        return _quotient_of(_known(value, known, sign), -1 * divisor, _negative_quotient, known, sign)
    if isinstance(expression, sympy_functions.RoundToInt) and isinstance(arguments[0], IntTrueDiv):
        value, divisor = arguments[0].args
        return _rounded_quotient(_known(value, known, sign), divisor)
    if isinstance(expression, sympy.Pow):
        if not (arguments[1].is_Integer and 0 < int(arguments[1]) <= _LARGEST_POWER):
            raise NotComputableError
        arguments = [arguments[0]] * int(arguments[1])
    if isinstance(expression, FloorDiv | Mod | PythonMod) and len(arguments) == 2:
        divided = np.floor_divide if isinstance(expression, FloorDiv) else np.remainder
        return _quotient_of(_known(arguments[0], known, sign), arguments[1], divided, known, sign)
    functions = [_known(argument, known, sign) for argument in arguments]
    if isinstance(expression, sympy.Rel):
        difference = _joined(np.subtract, *functions).with_stable_sign()
        values = RELATIONS[type(expression)](difference.values, 0).astype(np.int64)
        found = replace(difference, values=values[: difference.start + difference.period], degree=0)
        return found._without_undefined()
    if isinstance(expression, sympy.Not):
        return functions[0].complement()
    for kind, operation in _OPERATIONS.items():
        if isinstance(expression, kind):
            found = functions[0]
            for function in functions[1:]:
                found = _joined(operation, found, function)
            return found
    raise NotComputableError


def _known(expression: sympy.Basic, known: Known, sign: int) -> SizeFunction:
    found = size_function(expression, known, sign=sign)
    if found is None:
        raise NotComputableError
    return found


RELATIONS: Mapping[type, Callable[..., Any]] = MappingProxyType(
    {
        sympy.Eq: np.equal,
        sympy.Ne: np.not_equal,
        sympy.Lt: np.less,
        sympy.Le: np.less_equal,
        sympy.Gt: np.greater,
        sympy.Ge: np.greater_equal,
    }
)
"""Relations with their comparisons of arrays."""
_OPERATIONS: Mapping[type, Callable[..., Any]] = MappingProxyType(
    {
        sympy.Add: np.add,
        sympy.Mul: np.multiply,
        sympy.Pow: np.multiply,
        Max: np.maximum,
        Min: np.minimum,
        sympy.Max: np.maximum,
        sympy.Min: np.minimum,
        sympy.And: np.minimum,
        sympy.Or: np.maximum,
    }
)


def _joined(operation: Callable[..., Any], one: SizeFunction, other: SizeFunction) -> SizeFunction:
    """The sum, difference, product, minimum or maximum of two functions."""
    start, is_everywhere = max(one.start, other.start), one.is_everywhere and other.is_everywhere
    if operation in (np.minimum, np.maximum):
        difference = _joined(np.subtract, one, other).with_stable_sign()
        start, is_everywhere = difference.start, difference.is_everywhere
    degree = one.degree + other.degree if operation is np.multiply else max(one.degree, other.degree)
    period = math.lcm(one.period, other.period)
    if period > LONGEST_PERIOD:
        raise NotComputableError
    first, second = (each.extended(start, period, degree).values for each in (one, other))
    largest = (int(np.abs(values).max()) for values in (first, second))
    if operation is np.multiply and math.prod(largest) >= _LARGEST:
        raise NotComputableError
    undefined = one.undefined | other.undefined
    return _checked(SizeFunction(operation(first, second), period, degree, start, is_everywhere, undefined)).reduced()


def _quotient_of(
    function: SizeFunction, divisor: sympy.Basic, operation: Callable[..., Any], known: Known, sign: int
) -> SizeFunction:
    """The quotient or the remainder of a function and a number, or a function that is constant from some size on."""
    if divisor.is_Integer:
        return _quotient(function, divisor, operation)
    by = _known(divisor, known, sign).reduced()
    numbers = np.unique(by.values[by.start :])
    start = max(function.start, by.start)
    if len(numbers) > 1 or sign < 0:
        raise NotComputableError
    function = function.extended(start, function.period, function.degree)
    found, first = _quotient(function, sympy.Integer(int(numbers[0])), operation), by.table(start)
    values = found.values.copy()
    values[:start] = operation(function.values[:start], np.where(first == 0, 1, first))
    undefined = function.undefined | by.undefined | {*map(int, np.flatnonzero(first == 0))}
    return replace(found, values=values, is_everywhere=False, undefined=undefined)


def _quotient(function: SizeFunction, divisor: sympy.Basic, operation: Callable[..., Any]) -> SizeFunction:
    """The quotient or the remainder of a function and a number."""
    if not divisor.is_Integer or int(divisor) == 0 or (int(divisor) < 0 and operation is not _negative_quotient):
        raise NotComputableError
    by = int(divisor)
    if function.degree > 1:
        times = abs(by) * math.lcm(*range(1, function.degree + 1))
    else:
        # The differences of the longer period are multiples of the divisor.
        growths = function.differences()[1] if function.degree else [0]
        times = abs(by) // math.gcd(by, *map(int, growths))
    period = function.period * times
    if period > LONGEST_PERIOD:
        raise NotComputableError
    extended = function.extended(function.start, period, function.degree)
    return replace(extended, values=operation(extended.values, by)).reduced()


def _rounded_quotient(function: SizeFunction, divisor: sympy.Basic) -> SizeFunction:
    """The quotient of a function and a number, rounded to the nearest integer, and to the even one of two."""
    if not divisor.is_Integer or int(divisor) <= 0:
        raise NotComputableError
    by = int(divisor)
    # The differences of the longer period are even multiples of the divisor.
    period = function.period * 2 * by * math.lcm(*range(1, function.degree + 1))
    if period > LONGEST_PERIOD:
        raise NotComputableError
    extended = function.extended(function.start, period, function.degree)
    quotients, rest = np.divmod(extended.values, by)
    is_up = (2 * rest > by) | ((2 * rest == by) & (quotients % 2 == 1))
    return replace(extended, values=quotients + is_up).reduced()


def _negative_quotient(values: Values, divisor: int) -> Values:
    """The quotient by the negative of a divisor, rounded up."""
    return -(values // divisor)


def _checked(function: SizeFunction) -> SizeFunction:
    if int(np.abs(function.values).max()) >= _LARGEST >> 2:
        raise NotComputableError
    return replace(function, values=function.values.astype(np.int64))


def _at(differences: Values, periods: Values, remainders: Values) -> Values:
    """The values of polynomials after numbers of periods, from their differences."""
    largest, bound, most = int(periods.max(initial=0)), 0, 1
    for index, row in enumerate(differences):
        bound += most * int(np.abs(row).max())
        most = most * max(largest - index, 0) // (index + 1)
    if bound >= _LARGEST >> 2:
        raise NotComputableError
    found, count = np.zeros(len(periods), np.int64), np.ones(len(periods), np.int64)
    for index, row in enumerate(differences):
        found += count * row[remainders]
        count = count * (periods - index) // (index + 1)
    return found


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


@dataclass(frozen=True, eq=False)
class SizeSet:
    """The integers that satisfy conditions on one symbol.

    Attributes:
        symbol: The symbol.
        above: Whether 0, 1, 2, ... satisfy them, as 0 and 1.
        below: Whether 0, -1, -2, ... do; None for sizes.
    """

    symbol: sympy.Symbol
    above: SizeFunction
    below: SizeFunction | None

    @staticmethod
    def of(condition: sympy.Basic, symbol: sympy.Symbol) -> SizeSet | None:
        """The integers that satisfy a condition on a symbol; None if they cannot be computed."""
        return _set_of(condition, symbol)

    @staticmethod
    def common(sets: Iterable[SizeSet]) -> SizeSet | None:
        """The intersection of sets of one symbol; None if it cannot be computed, or there are none."""
        found: SizeSet | None = None
        for index, sizes in enumerate(sets):
            found = sizes if not index else None if found is None else found.both(sizes)
        return found

    def both(self, other: SizeSet) -> SizeSet | None:
        """The intersection of two sets of one symbol; None if it cannot be computed."""
        return self._combined(other.above, other.below)

    def _combined(
        self, above: SizeFunction, below: SizeFunction | None, operation: Callable[..., Any] = np.minimum
    ) -> SizeSet | None:
        try:
            upper = _joined(operation, self.above, above)
            lower = None if self.below is None or below is None else _joined(operation, self.below, below)
        except NotComputableError:
            return None
        return SizeSet(self.symbol, upper, lower)

    def implies(self, other: SizeSet) -> bool:
        """Whether another set of the symbol contains all integers of this one."""
        below = None if self.below is None else self.below.complement()
        found = other._combined(self.above.complement(), below, np.maximum)
        return found is not None and found.is_full(Bounds())

    def bounds(self) -> Bounds:
        """The smallest and the largest member, as far as there is one."""
        above, below = self.above, self.below
        sizes = np.flatnonzero(above.values[: above.start + above.period])
        least = _least(self.symbol)
        sizes = sizes if least is None else sizes[sizes >= least]
        is_open = bool(above.values[above.start : above.start + above.period].any())
        low = int(sizes[0]) if len(sizes) and (below is None or not below.values.any()) else None
        return Bounds(least if low is None else low, None if is_open or not len(sizes) else int(sizes[-1]))

    def is_full(self, bounds: Bounds) -> bool:
        """Whether all integers within some bounds satisfy the conditions."""
        least = _least(self.symbol)
        lows = [low for low in (bounds.low, least) if low is not None]
        low = max(lows) if lows else None
        try:
            if self.below is not None and (low is None or low < 0):
                nearest = -bounds.high if bounds.high is not None and bounds.high < 0 else 1
                if not _all(self.below, nearest, None if low is None else -low):
                    return False
            return _all(self.above, max(low or 0, 0), bounds.high)
        except NotComputableError:
            return False

    def members(self, bounds: Bounds, start: int, period: int, times: int) -> Values:
        """The sizes in the set up to some periods after a start."""
        start = max(start, self.above.start, bounds.low or 0, _least(self.symbol) or 0)
        last = start + times * period
        sizes = np.flatnonzero(self.above.table(last if bounds.high is None else max(0, min(last, bounds.high + 1))))
        return sizes[sizes >= max(bounds.low or 0, _least(self.symbol) or 0)]

    def limits(self) -> list[sympy.Basic] | None:
        """The shortest relations whose conjunction is equivalent for all sizes that are considered.

        A size of 0 satisfies them if it satisfies the conditions, although sizes are considered from 1 on.

        Returns:
            The relations; an empty list if all integers satisfy the conditions; None without a short form.
        """
        above, below = self.above, self.below
        period = above.period if below is None else math.lcm(above.period, below.period)
        sizes = np.arange(above.start + 2 * period)
        holds = above.table(len(sizes)) > 0
        if below is not None:
            negative = below.table(below.start + 2 * period)[:0:-1] > 0
            sizes, holds = np.arange(-len(negative), len(sizes)), np.concatenate([negative, holds])
        first = _least(self.symbol)
        allows_zero = bool(holds[sizes == 0].all()) and first == 1
        if first is not None:
            sizes, holds = sizes[sizes >= first], holds[sizes >= first]
        if holds.all():
            return []
        if not holds.any():
            return [sympy.false]
        is_open = below is not None and bool(holds[:period].any()), bool(holds[-period:].any())
        described = _Described(self.symbol, sizes, holds, is_open, period, allows_zero)
        try:
            return list(described.relations())
        except NotComputableError:
            return None


@lru_cache(maxsize=128)
def _set_of(condition: sympy.Basic, symbol: sympy.Symbol) -> SizeSet | None:
    above, below = size_function(condition), None
    if _least(symbol) is None:
        below = size_function(condition, sign=-1)
        above = None if below is None else above
    return None if above is None else SizeSet(symbol, above, below)


def _all(function: SizeFunction, low: int, high: int | None) -> bool:
    end = max(function.start, low) + function.period
    return bool(function.table(end if high is None else max(0, min(end, high + 1)))[low:].all())


def _least(symbol: sympy.Symbol) -> int | None:
    """The smallest integer that is considered: torch takes sizes to be positive."""
    return 1 if symbol.is_positive else 0 if symbol.is_nonnegative else None


@dataclass(frozen=True)
class _Described:
    """A set in a window of sizes, after which it repeats.

    Attributes:
        symbol: The symbol.
        sizes: The sizes in the window.
        holds: Which of them are in the set.
        is_open: Whether there are members below, and above, of the window.
        period: The period below and above it.
        allows_zero: Whether 0, which is below it, is in the set.
    """

    symbol: sympy.Symbol
    sizes: Values
    holds: np.ndarray[Any, np.dtype[np.bool_]]
    is_open: tuple[bool, bool]
    period: int
    allows_zero: bool

    def relations(self) -> Iterator[sympy.Basic]:
        """The relations; raises NotComputableError for sets without a short form."""
        members = self.sizes[self.holds]
        low, high = int(members[0]), int(members[-1])
        if not any(self.is_open):
            allowed = [0, *map(int, members)] if self.allows_zero else list(map(int, members))
            if len(allowed) == 1:
                yield sympy.Eq(self.symbol, low)
                return
            if len(members) < high - low + 1 and len(allowed) <= _MOST_VALUES:
                yield sympy.Or(*(sympy.Eq(self.symbol, size) for size in allowed))
                return
        inner = (self.is_open[0] | (self.sizes >= low)) & (self.is_open[1] | (self.sizes <= high))
        remainders, period = self._pattern()
        follows = np.isin(self.sizes % period, remainders)
        repeats_below = not self.is_open[0] or bool((self.holds == follows)[: self.period].all())
        if not repeats_below or (self.holds & ~follows & inner).any():
            raise NotComputableError
        missing = self.sizes[follows & ~self.holds & inner]
        left_out = self.sizes[follows & (self.sizes < low)]
        if not self.is_open[0] and len(left_out):
            if self.allows_zero:
                missing = np.concatenate([left_out, missing])
            else:
                yield sympy.Ge(self.symbol, low)
        if not self.is_open[1] and follows[self.sizes > high].any():
            yield sympy.Le(self.symbol, high)
        if len(missing) > _MOST_EXCEPTIONS:
            raise NotComputableError
        if period > 1:
            yield from self._remainder_relations(remainders, period)
        for size in missing:
            yield sympy.Ne(self.symbol, int(size))

    def _pattern(self) -> tuple[Values, int]:
        """The remainders in the set and their least period, as at the upper end of the window."""
        if self.is_open[1]:
            period = self.period
            sizes, holds = self.sizes[-period:], self.holds[-period:]
        elif not self.is_open[0]:
            members = self.sizes[self.holds]
            period = int(np.gcd.reduce(np.diff(members)))
            sizes, holds = members, np.ones(len(members), bool)
        else:
            period = self.period
            sizes, holds = self.sizes[:period], self.holds[:period]
        for shorter in (number for number in range(1, period + 1) if period % number == 0):
            remainders = np.unique(sizes[holds] % shorter)
            if not np.isin(sizes[~holds] % shorter, remainders).any():
                return remainders, shorter
        raise NotComputableError

    def _remainder_relations(self, remainders: Values, period: int) -> Iterator[sympy.Basic]:
        kind = PythonMod if _least(self.symbol) is None else Mod
        rest = kind(self.symbol, sympy.Integer(period))
        others = [number for number in range(period) if number not in set(map(int, remainders))]
        low, high = int(remainders[0]), int(remainders[-1])
        gap = np.flatnonzero(np.diff(remainders) > 1)
        if len(remainders) == 1:
            yield sympy.Eq(rest, low)
        elif len(others) == 1:
            yield sympy.Ne(rest, others[0])
        elif not len(gap):
            if low:
                yield sympy.Ge(rest, low)
            if high < period - 1:
                yield sympy.Le(rest, high)
        elif len(gap) == 1 and low == 0 and high == period - 1 and period > _MOST_VALUES:
            last, following = int(remainders[gap[0]]), int(remainders[gap[0] + 1])
            yield sympy.Or(sympy.Le(rest, last) if last else sympy.Eq(rest, 0), sympy.Ge(rest, following))
        elif len(remainders) <= _MOST_VALUES:
            yield sympy.Or(*(sympy.Eq(rest, int(number)) for number in remainders))
        elif len(others) <= _MOST_EXCEPTIONS:
            for number in others:
                yield sympy.Ne(rest, number)
        else:
            raise NotComputableError
