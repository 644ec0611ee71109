"""Values of size expressions at given sizes, computed as Python computes them.

sympy would evaluate the expression: in milliseconds, and with errors of its own where Python raises one, such as for the
root of a negative number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import reduce
from typing import Any

import sympy

from .._torch_compat import int_oo, sympy_functions

__all__ = ["EVALUATION_ERRORS", "SizeProgram", "SizeValues", "UndefinedSizeError"]

EVALUATION_ERRORS = (ArithmeticError, AssertionError, TypeError, ValueError)
"""Errors of sympy, mpmath and torch's functions where sizes are inserted in an expression that has no value at them."""


class UndefinedSizeError(ArithmeticError):
    """A size that has no value, because Python raises an error: for a division by 0, or the root of a negative number."""


class SizeValues:
    """The values of expressions at one choice of their symbols. Expressions share parts, each of which is computed once.

    Args:
        values: The value of each symbol.
        default: The value of other symbols; without it they have none.
    """

    def __init__(self, values: Mapping[sympy.Basic, int], default: int | None = None) -> None:
        self._known: dict[sympy.Basic, Any] = {symbol: int(value) for symbol, value in values.items()}
        self._default = default

    def size(self, expression: sympy.Expr) -> int:
        """The value of an expression as an integer.

        Raises:
            UndefinedSizeError: If it has none.
        """
        value = self.value(expression)
        if isinstance(value, complex) or not math.isfinite(value):
            raise UndefinedSizeError(f"{expression} is {value}")
        return int(value)

    def value(self, expression: sympy.Basic) -> Any:
        """The value of an expression: a bool, an int, a float, or a fraction.

        Raises:
            UndefinedSizeError: If it has none.
        """
        try:
            return self._value(expression)
        except UndefinedSizeError:
            raise
        except (ArithmeticError, TypeError, ValueError) as error:
            # As raised by Python's operators and functions for these numbers.
            raise UndefinedSizeError(f"{expression}: {error}") from error

    def _value(self, part: sympy.Basic) -> Any:
        known = self._known.get(part)
        if known is None:
            known = self._known[part] = self._new_value(part)
        return known

    def _new_value(self, part: sympy.Basic) -> Any:
        if not part.args:
            return self._atom(part)
        if isinstance(part, sympy.Piecewise):
            return self._value(next(branch for branch, condition in part.args if self._value(condition)))
        if isinstance(part, sympy_functions.Where):
            condition, one, other = part.args
            return self._value(one if self._value(condition) else other)
        operands = [self._value(argument) for argument in part.args]
        function = _FUNCTIONS.get(type(part))
        if function is None:
            function = _unary_function(type(part).__name__)
        if function is None:
            return self._atom(part.func(*map(sympy.sympify, operands)))
        return _plain(function(*operands))

    def _atom(self, part: sympy.Basic) -> Any:
        if part.is_Symbol and self._default is not None:
            return self._default
        if part in (sympy.true, sympy.false):
            return part == sympy.true
        if part.is_Integer:
            return int(part)
        if part.is_Rational:
            return Fraction(int(part.p), int(part.q))
        if part in (int_oo, -int_oo):
            return math.inf if part == int_oo else -math.inf
        if not part.is_number or part.is_real is False:
            raise UndefinedSizeError(f"{part} is not a number")
        return float(part)


class SizeProgram:
    """An expression that is evaluated at many choices of its symbols: its parts in their order, each once.

    Args:
        expression: The expression.
    """

    def __init__(self, expression: sympy.Basic) -> None:
        self._expression = expression
        self._symbols = sorted(expression.free_symbols, key=str)
        self._constants: list[Any] = []
        self._steps: list[tuple[Callable[..., Any], tuple[int, ...]]] = []
        parts = dict.fromkeys(sympy.postorder_traversal(expression))
        computed = {part: _FUNCTIONS.get(type(part)) for part in parts if part.args}
        constants = [part for part in parts if not part.args and not part.is_Symbol]
        if None in computed.values():
            # An operation of which only one operand has to have a value, or one of sympy.
            return
        try:
            self._constants = [SizeValues({}).value(constant) for constant in constants]
        except UndefinedSizeError:
            return
        slots = {part: slot for slot, part in enumerate([*self._symbols, *constants, *computed])}
        self._steps = [
            (function, tuple(slots[one] for one in part.args)) for part, function in computed.items() if function
        ]

    def value(self, sizes: Mapping[str, int]) -> Any:
        """The value at sizes by the names of the symbols; see ``SizeValues.value``.

        Raises:
            UndefinedSizeError: If it has none.
        """
        values: list[Any] = [int(sizes[symbol.name]) for symbol in self._symbols]
        if not self._steps:
            return SizeValues(dict(zip(self._symbols, values, strict=True))).value(self._expression)
        values += self._constants
        try:
            for function, operands in self._steps:
                values.append(_plain(function(*[values[operand] for operand in operands])))
        except (ArithmeticError, TypeError, ValueError) as error:
            raise UndefinedSizeError(f"{self._expression}: {error}") from error
        return values[-1]


def _plain(value: Any) -> Any:
    """A result as a number of Python that is not complex."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, complex):
        raise UndefinedSizeError(f"a part of a size is {value}")
    return int(value) if isinstance(value, Fraction) and value.denominator == 1 else value


def _unary_function(name: str) -> Callable[..., Any] | None:
    """The function of ``math`` that torch keeps as an expression, ``OpaqueUnaryFn_log2``."""
    found: Callable[..., Any] | None = getattr(math, name.removeprefix("OpaqueUnaryFn_"), None)
    return found if name.startswith("OpaqueUnaryFn_") else None


def _power(base: Any, exponent: Any) -> Any:
    """A power of integers, which is a fraction for a negative exponent, as sympy writes quotients."""
    return Fraction(base) ** exponent if isinstance(base, int) and exponent < 0 else base**exponent


def _float_power(base: Any, exponent: Any) -> Any:
    return float(base) ** float(exponent)


def _quotient(dividend: Any, divisor: Any) -> float:
    return float(dividend / divisor)


_FUNCTIONS: Mapping[type[sympy.Basic], Callable[..., Any]] = {
    sympy.Add: lambda *values: reduce(operator.add, values),
    sympy.Mul: lambda *values: reduce(operator.mul, values),
    sympy.Pow: _power,
    sympy_functions.PowByNatural: _power,
    sympy_functions.FloatPow: _float_power,
    **dict.fromkeys((sympy_functions.FloorDiv, sympy_functions.CleanDiv), operator.floordiv),
    sympy_functions.CeilDiv: lambda value, divisor: -(-value // divisor),
    **dict.fromkeys((sympy.Mod, sympy_functions.Mod, sympy_functions.PythonMod), operator.mod),
    sympy_functions.ModularIndexing: lambda value, divisor, modulus: value // divisor % modulus,
    **dict.fromkeys((sympy_functions.IntTrueDiv, sympy_functions.FloatTrueDiv), _quotient),
    **dict.fromkeys((sympy.Max, sympy_functions.Max), max),
    **dict.fromkeys((sympy.Min, sympy_functions.Min), min),
    sympy.Abs: abs,
    sympy_functions.Identity: lambda value: value,
    sympy_functions.ToFloat: float,
    sympy_functions.TruncToInt: math.trunc,
    **dict.fromkeys((sympy.ceiling, sympy_functions.CeilToInt), math.ceil),
    **dict.fromkeys((sympy.floor, sympy_functions.FloorToInt), math.floor),
    sympy_functions.RoundToInt: round,
    sympy_functions.RoundDecimal: lambda value, digits: round(float(value), int(digits)),
    sympy_functions.BitwiseFn_bitwise_and: operator.and_,
    sympy_functions.BitwiseFn_bitwise_or: operator.or_,
    sympy_functions.BitwiseFn_bitwise_xor: operator.xor,
    sympy.Eq: operator.eq,
    sympy.Ne: operator.ne,
    sympy.Lt: operator.lt,
    sympy.Le: operator.le,
    sympy.Gt: operator.gt,
    sympy.Ge: operator.ge,
    sympy.And: lambda *values: all(values),
    sympy.Or: lambda *values: any(values),
    sympy.Not: operator.not_,
}
