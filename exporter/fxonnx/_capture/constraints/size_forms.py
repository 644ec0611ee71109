"""Canonical forms of sizes that depend on one symbol.

Padding to a multiple, a pyramid of strided convolutions or pooling windows nest the same few functions: each layer
repeats the size of the one before it several times, so that the expressions of torch grow exponentially with depth.
As functions of one integer they are simple: after a period they repeat, plus a slope.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from fxonnx_translations._torch_compat import (
    CeilToInt,
    FloorDiv,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    PythonMod,
    get_proxy_mode,
    shape_config,
)

__all__ = ["CACHED_OPERATIONS", "SizeForms", "canonical_sizes", "guard_or", "sym_node_init", "sym_node_operation"]

CACHED_OPERATIONS = ("add", "sub", "mul", "int_floordiv", "eq", "ne", "lt", "le", "gt", "ge")
"""Operations of ``SymNode`` whose result follows from the expressions alone, not from what torch knows of them."""

# Expressions with longer periods stay as they are.
LONGEST_PERIOD = 4096


@dataclass(frozen=True)
class _Repeating:
    """A function of integers with ``f(n + len(values)) == f(n) + slope``.

    Attributes:
        values: Its values from 0 on, for one period.
        slope: The growth in a period.
    """

    values: tuple[int, ...]
    slope: int

    def extended(self, period: int) -> list[int]:
        """The values for a multiple of the period."""
        length = len(self.values)
        return [value + times * self.slope for times in range(period // length) for value in self.values]

    def slope_over(self, period: int) -> int:
        """The growth in a multiple of the period."""
        return self.slope * (period // len(self.values))


@dataclass
class SizeForms:
    """The canonical forms of the sizes of one capture.

    Attributes:
        known: Expression to canonical form.
        results: Operation and operands to result.
        typical: Whether the example sizes are within the ranges and not 0, for the last state of torch's knowledge.
    """

    known: dict[sympy.Expr, sympy.Expr] = field(default_factory=dict)
    results: dict[Any, Any] = field(default_factory=dict)
    typical: tuple[Any, int, bool] = (None, 0, False)
    _functions: dict[sympy.Expr, _Repeating | None] = field(default_factory=dict)

    def form(self, expression: sympy.Expr) -> sympy.Expr:
        """``a*n + b`` or ``k*((n - b) // d) + e`` where the expression is that for all integers; else as it is."""
        found = self.known.get(expression)
        if found is None:
            found = self.known[expression] = self._new_form(expression)
            self.known.setdefault(found, found)
        return found

    def _new_form(self, expression: sympy.Expr) -> sympy.Expr:
        symbols = expression.free_symbols
        if len(symbols) != 1:
            return expression
        (symbol,) = symbols
        function = self._function(expression) if symbol.is_integer else None
        form = None if function is None else _written(function, symbol)
        return expression if form is None else form

    def _function(self, expression: sympy.Expr) -> _Repeating | None:
        if expression not in self._functions:
            self._functions[expression] = self._new_function(expression)
        return self._functions[expression]

    def _new_function(self, expression: sympy.Expr) -> _Repeating | None:
        if expression.is_Integer:
            return _Repeating((int(expression),), 0)
        if expression.is_Symbol:
            return _Repeating((0,), 1)
        if isinstance(expression, sympy.Mul):
            factor, rest = expression.as_coeff_Mul()
            function = self._function(rest) if factor.is_Integer and not isinstance(rest, sympy.Mul) else None
            return None if function is None else _combined([function], lambda value: value * int(factor), int(factor))
        if isinstance(expression, sympy.Add | Max | Min):
            functions = [self._function(part) for part in expression.args]
            known = [function for function in functions if function is not None]
            if len(known) < len(functions):
                return None
            if isinstance(expression, sympy.Add):
                return _combined(known, lambda *values: sum(values), None)
            return _extreme(known, max if isinstance(expression, Max) else min)
        if isinstance(expression, FloorDiv | Mod | PythonMod) and len(expression.args) == 2:
            value, divisor = expression.args
            return self._divided(value, divisor, type(expression))
        if isinstance(expression, CeilToInt) and isinstance(expression.args[0], IntTrueDiv):
            value, divisor = expression.args[0].args
            return self._divided(value, divisor, CeilToInt)
        return None

    def _divided(self, value: sympy.Expr, divisor: sympy.Expr, kind: type) -> _Repeating | None:
        function = self._function(value) if divisor.is_Integer and divisor > 0 else None
        if function is None:
            return None
        by = int(divisor)
        # So often until the growth is a multiple of the divisor.
        period = len(function.values) * (by // math.gcd(function.slope, by))
        if period > LONGEST_PERIOD:
            return None
        values, slope = function.extended(period), function.slope_over(period)
        if issubclass(kind, FloorDiv):
            return _Repeating(tuple(value // by for value in values), slope // by)
        if issubclass(kind, CeilToInt):
            return _Repeating(tuple(-(-value // by) for value in values), slope // by)
        return _Repeating(tuple(value % by for value in values), 0)


def _combined(functions: Sequence[_Repeating], combine: Callable[..., int], factor: int | None) -> _Repeating | None:
    """A sum, or one function times a factor."""
    period = math.lcm(*(len(function.values) for function in functions))
    if period > LONGEST_PERIOD:
        return None
    values = zip(*(function.extended(period) for function in functions), strict=True)
    slope = sum(function.slope_over(period) for function in functions)
    return _Repeating(tuple(combine(*row) for row in values), slope if factor is None else slope * factor)


def _extreme(functions: Sequence[_Repeating], choose: Callable[..., int]) -> _Repeating | None:
    """The maximum or minimum of functions that grow alike."""
    period = math.lcm(*(len(function.values) for function in functions))
    slopes = {function.slope_over(period) for function in functions}
    if period > LONGEST_PERIOD or len(slopes) > 1:
        return None
    values = zip(*(function.extended(period) for function in functions), strict=True)
    return _Repeating(tuple(choose(row) for row in values), slopes.pop())


def _written(function: _Repeating, symbol: sympy.Symbol) -> sympy.Expr | None:
    """The function as a line or as equal steps at equal distances."""
    values = [*function.values, function.values[0] + function.slope]
    steps = {index + 1: values[index + 1] - values[index] for index in range(len(values) - 1)}
    jumps = [position for position, height in steps.items() if height]
    if not jumps:
        return sympy.Integer(values[0])
    heights = {steps[position] for position in jumps}
    distance = len(function.values) // len(jumps)
    first = jumps[0] % distance
    if len(heights) > 1 or len(function.values) % len(jumps) or any(jump % distance != first for jump in jumps):
        return None
    height = heights.pop()
    if distance == 1:
        return height * symbol + values[0]
    quotient = FloorDiv(symbol - first, sympy.Integer(distance))
    # n // d with n - 0, and (n - b) // d, which is -1 at 0.
    return height * quotient + (values[0] if first == 0 else values[0] + height)


_forms: ContextVar[SizeForms | None] = ContextVar("fxonnx_size_forms", default=None)


@contextmanager
def canonical_sizes() -> Iterator[None]:
    """Sizes computed in the body, where ``capture_patches`` are applied, get their canonical forms."""
    token = _forms.set(SizeForms())
    try:
        yield
    finally:
        _forms.reset(token)


def sym_node_init(
    original: Callable[..., None], self: Any, expr: Any, shape_env: Any, pytype: Any, *args: Any, **options: Any
) -> None:
    """``SymNode.__init__`` with the canonical form of the expression of an integer."""
    if pytype is int and isinstance(expr, sympy.Expr) and not expr.is_Atom:
        forms = _forms.get()
        if forms is not None:
            expr = forms.form(expr)
    original(self, expr, shape_env, pytype, *args, **options)


def sym_node_operation(name: str, original: Callable[[Any, Any], Any], self: Any, other: Any) -> Any:
    """An operation of two ``SymNode``: strides and checks of memory layouts repeat the same ones for every tensor."""
    forms = _forms.get()
    if forms is None or get_proxy_mode() is not None:
        # The tracer records the call.
        return original(self, other)
    key = (name, self.expr, other.expr, self.hint, other.hint, self.pytype, other.pytype, id(self.shape_env))
    result = forms.results.get(key)
    if result is None:
        result = forms.results[key] = original(self, other)
    return result


def guard_or(original: Callable[[Any, bool], bool], question: Any, default: bool) -> bool:
    """``guard_or_false`` and ``guard_or_true``, which return the default for what is not known for all sizes.

    What is not so for the example is not so for all sizes: no need to simplify the expression first.
    """
    forms = _forms.get()
    if (
        forms is not None
        and isinstance(question, torch.SymBool)
        and question.node._hint is default
        and shape_config.backed_size_oblivious
        and _is_typical(forms, question.node.shape_env)
    ):
        return bool(default)
    return original(question, default)


def _is_typical(forms: SizeForms, environment: Any) -> bool:
    """Whether nothing that torch assumes about symbols, such as that they are positive, contradicts the example."""
    known, version, answer = forms.typical
    if known is environment and version == environment._version_counter:
        return answer
    ranges = environment.var_to_range
    answer = all(
        bool(value > 0 and symbol in ranges and ranges[symbol].lower <= value <= ranges[symbol].upper)
        for symbol, value in environment.backed_var_to_val.items()
    )
    forms.typical = (environment, environment._version_counter, answer)
    return answer
