"""Values of size expressions at a few sizes, which prove that assumptions cannot decide a relation.

sympy decides whether two expressions are equal or ordered by the assumption that their symbols are positive integers.
It takes milliseconds to find that this is not sufficient for the strides of two layouts. A relation that is true for
some positive sizes and false for others cannot be decided by such assumptions.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import sympy

from fxonnx_translations._torch_compat import CeilToInt, FloorDiv, IntTrueDiv, Max, Min, Mod, PythonMod

__all__ = ["SizeSamples"]

_Values = tuple[int, ...]

# Sizes in addition to the example: all 1, all 2, and two sets of unequal sizes, assigned to the symbols in rotation.
_TURNS = ((1,), (2,), (3, 192, 320), (37, 77, 55))
_WITHOUT_EXAMPLE = 5
# Limit of the values, since arithmetic with larger numbers is slow.
_LARGEST = 1 << 256

_OPERATIONS: Mapping[type[sympy.Basic], Callable[..., int]] = MappingProxyType(
    {
        sympy.Add: lambda *values: sum(values),
        sympy.Mul: lambda *values: math.prod(values),
        FloorDiv: operator.floordiv,
        Mod: operator.mod,
        PythonMod: operator.mod,
        Max: max,
        Min: min,
    }
)


@dataclass
class SizeSamples:
    """Values of the size expressions of one capture, and cached decisions of sympy.

    Attributes:
        examples: Symbol to its value in the example.
        answers: Relation and sides to sympy's decision.
    """

    examples: dict[sympy.Symbol, int] = field(default_factory=dict)
    answers: dict[Any, bool | None] = field(default_factory=dict)
    _values: dict[sympy.Basic, _Values | None] = field(default_factory=dict)
    _symbols: int = 0

    def answer(
        self, decide: Callable[..., bool | None], relation: Callable[[int, int], bool], *sides: Any
    ) -> bool | None:
        """Result of sympy's ``decide``, cached; None without calling it if the samples prove that it is undecided."""
        key = (relation, *sides)
        try:
            return self.answers[key]
        except KeyError:
            pass
        answer = None if self._is_open(relation, *sides) else decide(*sides)
        self.answers[key] = answer
        return answer

    def _is_open(self, relation: Callable[[int, int], bool], one: sympy.Basic, other: sympy.Basic) -> bool:
        """Whether the relation is true for some positive integers and false for others."""
        first, second = self._values_of(one), self._values_of(other)
        if first is None or second is None:
            return False
        return len({relation(*values) for values in zip(first, second, strict=True)}) > 1

    def _values_of(self, expression: sympy.Basic) -> _Values | None:
        try:
            return self._values[expression]
        except KeyError:
            pass
        values = self._values[expression] = self._new_values(expression)
        return values

    def _new_values(self, expression: sympy.Basic) -> _Values | None:
        if isinstance(expression, sympy.Integer):
            return (int(expression),) * (1 + len(_TURNS))
        if isinstance(expression, sympy.Symbol):
            return self._of_symbol(expression)
        if isinstance(expression, sympy.Pow):
            return self._of_power(expression)
        # CeilToInt(a / b), where the quotient is not an integer.
        if isinstance(expression, CeilToInt) and isinstance(expression.args[0], IntTrueDiv):
            return self._computed(lambda value, divisor: -(-value // divisor), expression.args[0].args)
        operation = _OPERATIONS.get(type(expression))
        return None if operation is None else self._computed(operation, expression.args)

    def _of_symbol(self, symbol: sympy.Symbol) -> _Values | None:
        if not symbol.is_integer or symbol.is_positive is False:
            return None
        turn = self._symbols
        self._symbols += 1
        example = self.examples.get(symbol, 0)
        return (example if example > 0 else _WITHOUT_EXAMPLE, *(values[turn % len(values)] for values in _TURNS))

    def _of_power(self, expression: sympy.Pow) -> _Values | None:
        base, exponent = expression.args
        if not (isinstance(exponent, sympy.Integer) and 0 < exponent <= 8):
            return None
        return self._computed(lambda value: value ** int(exponent), (base,))

    def _computed(self, operation: Callable[..., int], operands: Sequence[sympy.Basic]) -> _Values | None:
        columns = []
        for operand in operands:
            values = self._values_of(operand)
            if values is None:
                return None
            columns.append(values)
        try:
            results = tuple(operation(*row) for row in zip(*columns, strict=True))
        except ZeroDivisionError:
            return None
        return results if all(-_LARGEST < result < _LARGEST for result in results) else None
