"""Integers that a model computes from quotients of sizes, in integer arithmetic: ``int(a*b*c / (b*c))`` is ``a``.

Python divides sizes in float64. A sum, product or quotient of sizes is exact there as long as its value is a fraction
whose denominator is a power of two. For other fractions, such as ``n / 3 + 1``, the floor is exact nevertheless: the
value is computed without an error where it is an integer, and is not close to one otherwise. Sizes are below 2^53.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import sympy

from .._torch_compat import CeilToInt, FloorDiv, IntTrueDiv, Mod, PythonMod, sympy_functions

__all__ = ["CONVERSIONS", "exact_integer", "factors_of", "has_float_remainder", "quotient_of_products"]

_LARGEST = 1 << 20
"""Of the numerators and denominators of numbers in an expression, so that products with sizes are below 2^53."""

CONVERSIONS = (CeilToInt, sympy_functions.FloorToInt, sympy_functions.RoundToInt, sympy_functions.TruncToInt)
"""Functions of floats whose values are integers."""

_QUOTIENTS = (IntTrueDiv, sympy_functions.FloatTrueDiv)


@dataclass(frozen=True)
class _Fraction:
    """A value ``numerator / denominator`` that Python computes exactly if the denominator, reduced, is a power of two.

    Attributes:
        numerator: An expression whose value is an integer.
        denominator: A positive number.
    """

    numerator: sympy.Expr
    denominator: int = 1

    @property
    def is_exact(self) -> bool:
        """Whether the computed value is exact at all sizes."""
        return _odd_part(self.denominator) == 1

    @property
    def number(self) -> Fraction | None:
        """The value, if it is a number."""
        return Fraction(int(self.numerator), self.denominator) if self.numerator.is_Integer else None

    def times(self, factor: Fraction) -> _Fraction | None:
        """The product with a number whose denominator is a power of two; None if it may be an integer by rounding."""
        if math.gcd(_odd_part(factor.numerator), _odd_part(self.denominator)) > 1:
            return None
        return _reduced(self.numerator * factor.numerator, self.denominator * factor.denominator)

    def over(self, divisor: Fraction) -> _Fraction | None:
        """The quotient of this value and a number, which is not 0."""
        sign = 1 if divisor > 0 else -1
        numerator = self.numerator * divisor.denominator * sign
        return _reduced(numerator, self.denominator * divisor.numerator * sign)


def exact_integer(expression: sympy.Expr) -> sympy.Expr:
    """The expression in integer arithmetic, if it is the conversion of a float to an integer that is always equal."""
    if not isinstance(expression, CONVERSIONS):
        return expression
    value = _fraction(expression.args[0])
    if value is None:
        return expression
    numerator, denominator = value.numerator, sympy.Integer(value.denominator)
    if denominator == 1:
        return numerator
    if isinstance(expression, CeilToInt):
        return FloorDiv(numerator + denominator - 1, denominator)
    rounds_down = isinstance(expression, sympy_functions.FloorToInt) or (
        isinstance(expression, sympy_functions.TruncToInt) and numerator.is_nonnegative
    )
    return FloorDiv(numerator, denominator) if rounds_down else expression


def _fraction(expression: sympy.Expr) -> _Fraction | None:
    """A float expression as a fraction; None for other functions, and where the value may be rounded to an integer."""
    if expression.is_Number:
        return _number(Fraction(float(expression))) if expression.is_finite else None
    if isinstance(expression, sympy_functions.ToFloat):
        return _fraction(expression.args[0])
    if expression.is_integer:
        return None if has_float_remainder(expression) else _reduced(expression, 1)
    parts = [_fraction(part) for part in expression.args]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if isinstance(expression, _QUOTIENTS):
        return _quotient(*known)
    if isinstance(expression, sympy.Add):
        return _sum(known)
    return _product(known) if isinstance(expression, sympy.Mul) else None


def has_float_remainder(expression: sympy.Basic) -> bool:
    """Whether an expression contains ``n % 0.3``, which torch's functions take for an integer."""
    remainders = expression.atoms(Mod, PythonMod)
    return not all(operand.is_integer for remainder in remainders for operand in remainder.args)


def _number(value: Fraction) -> _Fraction | None:
    is_small = max(abs(value.numerator), value.denominator) <= _LARGEST
    return _Fraction(sympy.Integer(value.numerator), value.denominator) if is_small else None


def _sum(parts: list[_Fraction]) -> _Fraction | None:
    if sum(not part.is_exact for part in parts) > 1:
        return None
    common = math.lcm(*(part.denominator for part in parts))
    numerators = (part.numerator * (common // part.denominator) for part in parts)
    return _reduced(sympy.Add(*numerators), common)


def _product(parts: list[_Fraction]) -> _Fraction | None:
    """The product; one part at most is not a number, unless all are exact."""
    product, others = Fraction(1), []
    for part in parts:
        if part.number is None:
            others.append(part)
        else:
            product *= part.number
    if len(others) > 1 and not all(part.is_exact for part in others):
        return None
    denominator = math.prod(part.denominator for part in others)
    found = _Fraction(sympy.Mul(*(part.numerator for part in others)), denominator)
    return found.times(product)


def _quotient(dividend: _Fraction, divisor: _Fraction) -> _Fraction | None:
    number = divisor.number
    if number is not None:
        return dividend.over(number) if number else None
    if not (dividend.is_exact and divisor.is_exact):
        return None
    found = quotient_of_products(dividend.numerator * divisor.denominator, divisor.numerator)
    return None if found is None else _reduced(found, dividend.denominator)


def _reduced(numerator: sympy.Expr, denominator: int) -> _Fraction | None:
    """The fraction without common factors; None if its denominator is large."""
    content, rest = numerator.as_coeff_Mul()
    if not content.is_Integer:
        return None
    terms, primitive = rest.primitive() if rest.is_Add else (sympy.S.One, rest)
    if terms.is_Integer:
        content, rest = content * terms, primitive
    common = math.gcd(int(content), denominator) if content else denominator
    if denominator // common > _LARGEST:
        return None
    return (
        _Fraction(rest * (content // common), denominator // common)
        if common > 1
        else _Fraction(numerator, denominator)
    )


def _odd_part(number: int) -> int:
    return number // (number & -number) if number else 1


def quotient_of_products(dividend: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr | None:
    """The quotient, if all factors of the divisor are among those of the dividend."""
    coefficient, factors = factors_of(dividend)
    other, divided = factors_of(divisor)
    if other == 0 or coefficient % other or not divided <= factors:
        return None
    factors.subtract(divided)
    return sympy.Mul(coefficient // other, *factors.elements())


def factors_of(product: sympy.Expr) -> tuple[int, Counter[sympy.Expr]]:
    """The integer factor, and the other factors without integer factors of their own."""
    coefficient = 1
    factors: Counter[sympy.Expr] = Counter()
    for factor in sympy.Mul.make_args(product):
        if factor.is_Integer:
            coefficient *= int(factor)
        elif factor.is_Pow and factor.exp.is_Integer and factor.exp > 0:
            factors[factor.base] += int(factor.exp)
        else:
            content, rest = factor.primitive() if factor.is_Add else (sympy.S.One, factor)
            if not content.is_Integer:
                content, rest = sympy.S.One, factor
            coefficient *= int(content)
            factors[rest] += 1
    return coefficient, factors
