"""Canonical forms of sizes that depend on one symbol, and caches of operations on symbolic sizes.

Padding to a multiple, strided convolutions and pooling nest the same few functions: the size after each layer contains
the size before it several times, so that torch's expressions grow exponentially with depth. As tables of values
they are simple.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import sympy
import torch
from torch.fx.experimental.sym_node import SymNode

from fxonnx_translations._builder.exact_quotients import CONVERSIONS, exact_integer, quotient_of_products
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

from ..._context_values import activated, active
from .guard_recorder import known_divisors
from .size_sets import Known, SizeFunction, size_function

__all__ = [
    "CACHED_OPERATIONS",
    "DataSamples",
    "OtherSizes",
    "SizeForms",
    "SizeSamples",
    "cached_expression",
    "cached_layout_check",
    "canonical_sizes",
    "decide_relation",
    "declare_contiguous",
    "guard_or",
    "maybe_as_int",
    "remainder",
    "sym_node_init",
    "sym_node_operation",
]

_Values = tuple[int, ...]

CACHED_OPERATIONS = ("add", "sub", "mul", "int_floordiv", "eq", "ne", "lt", "le", "gt", "ge")
"""Operations of ``SymNode`` whose result depends on the expressions only, not on torch's guards and ranges."""


# Sizes in addition to the example: all 1, all 2, and two sets of unequal sizes, assigned to the symbols in rotation.
_TURNS = ((1,), (2,), (3, 192, 320), (37, 77, 55))
_WITHOUT_EXAMPLE = 5
# Limit of the values, since arithmetic with larger numbers is slow.
_LARGEST = 1 << 256
# Of a size that depends on data, in the order of preference: the first values, no value, and several.
_DATA_TURNS = ((1, 0, 2, 3, 4), (0, 1, 2, 3, 4), (5, 3, 2, 4, 7))

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
_CONDITIONS: Mapping[type[sympy.Basic], Callable[..., bool]] = MappingProxyType(
    {
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
)


class _Samples(ABC):
    """Values of expressions at a few sizes, of which each part is computed once."""

    COUNT: ClassVar[int]

    def __init__(self) -> None:
        self._values: dict[sympy.Basic, _Values | None] = {}

    @abstractmethod
    def _of_symbol(self, symbol: sympy.Symbol) -> _Values | None:
        """The values of a symbol; None if it has no integers."""

    def _values_of(self, expression: sympy.Basic) -> _Values | None:
        try:
            return self._values[expression]
        except KeyError:
            pass
        values = self._values[expression] = self._new_values(expression)
        return values

    def _new_values(self, expression: sympy.Basic) -> _Values | None:
        if isinstance(expression, sympy.Integer):
            return (int(expression),) * self.COUNT
        if isinstance(expression, sympy.Symbol):
            return self._of_symbol(expression)
        if isinstance(expression, sympy.Pow):
            return self._of_power(expression)
        # CeilToInt(a / b), where the quotient is not an integer.
        if isinstance(expression, CeilToInt) and isinstance(expression.args[0], IntTrueDiv):
            return self._computed(lambda value, divisor: -(-value // divisor), expression.args[0].args)
        operation = _OPERATIONS.get(type(expression))
        return None if operation is None else self._computed(operation, expression.args)

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


class SizeSamples(_Samples):
    """Values of the size expressions of one capture at a few sizes, and cached decisions of sympy.

    sympy decides whether two expressions are equal or ordered by the assumption that their symbols are positive
    integers. It takes milliseconds to find that this is not sufficient for the strides of two layouts: a relation that
    is true for some positive sizes and false for others cannot be decided so.

    Args:
        examples: Symbol to its value in the example.

    Attributes:
        answers: Relation and sides to sympy's decision.
    """

    COUNT = 1 + len(_TURNS)

    def __init__(self, examples: Mapping[sympy.Symbol, int] | None = None) -> None:
        super().__init__()
        self.examples = dict(examples or {})
        self.answers: dict[Any, bool | None] = {}
        self._symbols = 0

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

    def _of_symbol(self, symbol: sympy.Symbol) -> _Values | None:
        if not symbol.is_integer or symbol.is_positive is False:
            return None
        turn = self._symbols
        self._symbols += 1
        example = self.examples.get(symbol, 0)
        return (example if example > 0 else _WITHOUT_EXAMPLE, *(values[turn % len(values)] for values in _TURNS))


class DataSamples(_Samples):
    """Values of sizes that depend on data, at which all holds that torch knows about them, and of the example's sizes.

    Args:
        environment: The symbols of one capture.
    """

    COUNT = len(_DATA_TURNS)

    def __init__(self, environment: Any) -> None:
        super().__init__()
        self.environment = environment
        self._chosen: dict[sympy.Symbol, _Values | None] = {}
        self._replaced: dict[sympy.Symbol, list[sympy.Symbol]] = {}
        self._version = -1

    def show(self, condition: sympy.Basic, *, answer: bool) -> bool:
        """Whether a condition has an answer at some of them, so that nothing that torch knows decides it otherwise."""
        if self._version != self.environment._replacements_version_counter:
            self._version = self.environment._replacements_version_counter
            self._values.clear()
            self._replaced = {}
            for replaced, expression in self.environment.replacements.items():
                for symbol in expression.free_symbols:
                    self._replaced.setdefault(symbol, []).append(replaced)
        for _ in range(2):
            found = self._values_of(condition)
            if found is None or answer not in found:
                return False
            valid = self._valid(condition.free_symbols)
            if any(valid):
                return any(is_valid and value == answer for is_valid, value in zip(valid, found, strict=True))
            # More is known than when the values were chosen.
            self._values.clear()
            self._chosen.clear()
        return False

    def _new_values(self, expression: sympy.Basic) -> _Values | None:
        operation = _CONDITIONS.get(type(expression))
        return super()._new_values(expression) if operation is None else self._computed(operation, expression.args)

    def _of_symbol(self, symbol: sympy.Symbol) -> _Values | None:
        known = self.environment.replacements.get(symbol)
        if known is not None:
            return self._values_of(known)
        example = self.environment.backed_var_to_val.get(symbol)
        if example is not None:
            return (int(example),) * self.COUNT if example.is_Integer else None
        if symbol not in self._chosen:
            self._chosen[symbol] = self._new_choice(symbol) if symbol.is_integer else None
        return self._chosen[symbol]

    def _new_choice(self, symbol: sympy.Symbol) -> _Values:
        """For each sample, the first of its values that is possible; else 0, which is not."""
        chosen: list[int | None] = [None] * self.COUNT
        known = self.environment.var_to_range.get(symbol)
        ends = () if known is None else tuple(int(end) for end in (known.lower, known.upper) if end.is_Integer)
        for choice in zip(*(values + ends for values in _DATA_TURNS), strict=True):
            self._chosen[symbol] = choice
            self._values.clear()
            valid = self._valid({symbol})
            found = zip(chosen, choice, valid, strict=True)
            chosen = [value if before is None and is_valid else before for before, value, is_valid in found]
            if None not in chosen:
                break
        self._values.clear()
        return tuple(value or 0 for value in chosen)

    def _valid(self, symbols: Iterable[sympy.Symbol]) -> list[bool]:
        """Whether the ranges and assertions of symbols hold, for each sample."""
        environment, valid, pending = self.environment, [True] * self.COUNT, [*symbols]
        seen: set[sympy.Symbol] = set()
        while pending and any(valid):
            symbol = pending.pop()
            if symbol in seen or symbol in environment.backed_var_to_val:
                continue
            seen.add(symbol)
            known, values = environment.var_to_range.get(symbol), self._values_of(symbol)
            if known is None or values is None:
                return [False] * self.COUNT
            held: list[Sequence[Any]] = [[known.lower <= value <= known.upper for value in values]]
            pending += self._replaced.get(symbol, ())
            for assertion in environment.deferred_runtime_asserts.get(symbol, ()):
                pending += assertion.expr.free_symbols
                held.append(self._values_of(assertion.expr) or [False] * self.COUNT)
            valid = [all(row) for row in zip(valid, *held, strict=True)]
        return valid


@dataclass
class SizeForms:
    """Canonical forms and cached results for the sizes of one capture.

    Attributes:
        known: Expression to canonical form.
        results: Operation and operands to result.
        typical: ShapeEnv, its version, and whether the example sizes are within its ranges and not 0.
        layouts: ShapeEnv, its version, and the results of checks of memory layouts.
        samples: Values of the expressions at a few sizes.
        data: Values of those that depend on data.
    """

    known: dict[sympy.Expr, sympy.Expr] = field(default_factory=dict)
    results: dict[Any, Any] = field(default_factory=dict)
    typical: tuple[Any, int, bool] = (None, 0, False)
    layouts: tuple[Any, int, dict[Any, bool]] = field(default_factory=lambda: (None, 0, {}))
    samples: SizeSamples = field(default_factory=SizeSamples)
    data: DataSamples | None = None
    _functions: Known = field(default_factory=dict)

    def form(self, expression: sympy.Expr) -> sympy.Expr:
        """``a*n + b`` or ``k*((n - b) // d) + e`` if equal to the expression for all integers; else the expression."""
        found = self.known.get(expression)
        if found is None:
            found = self.known[expression] = self._new_form(expression)
            self.known.setdefault(found, found)
        return found

    def _new_form(self, expression: sympy.Expr) -> sympy.Expr:
        expression = exact_integer(expression)
        symbols = expression.free_symbols
        if len(symbols) != 1:
            return expression
        (symbol,) = symbols
        function = size_function(expression, self._functions) if symbol.is_integer else None
        form = None if function is None or function.slope is None else _linear_or_steps(function, symbol)
        return expression if form is None else form


def _linear_or_steps(function: SizeFunction, symbol: sympy.Symbol) -> sympy.Expr | None:
    """Express a function as a line or as equal steps at equal distances; None if it is neither."""
    period = function.period
    values = function.table(period + 1)
    steps = np.diff(values)
    jumps = np.flatnonzero(steps) + 1
    start = sympy.Integer(int(values[0]))
    if not len(jumps):
        return start
    distance, height = period // len(jumps), int(steps[jumps[0] - 1])
    first = int(jumps[0]) % distance
    if period % len(jumps) or (steps[jumps - 1] != height).any() or (jumps % distance != first).any():
        return None
    if distance == 1:
        return height * symbol + start
    # n // d with n - 0, and (n - b) // d, which is -1 at 0.
    return height * FloorDiv(symbol - first, sympy.Integer(distance)) + (start if first == 0 else start + height)


_ZERO = sympy.Integer(0)


def canonical_sizes() -> AbstractContextManager[SizeForms]:
    """Canonicalize the sizes computed inside the context, which requires that ``capture_patches`` are applied."""
    return activated(SizeForms())


def sym_node_init(
    original: Callable[..., None], self: Any, expr: Any, shape_env: Any, pytype: Any, *args: Any, **options: Any
) -> None:
    """Replacement of ``SymNode.__init__``: use the canonical form of an integer's expression."""
    if pytype is int and isinstance(expr, sympy.Expr) and not expr.is_Integer:
        forms = active(SizeForms)
        if forms is not None and not expr.is_Atom:
            expr = forms.form(expr)
            if isinstance(expr, CONVERSIONS):
                expr = forms.form(_at_multiples(exact_integer, expr) or expr)
        elif forms is not None and args and type(args[0]) is int:
            forms.samples.examples.setdefault(expr, args[0])
    original(self, expr, shape_env, pytype, *args, **options)


def cached_expression(original: property) -> property:
    """``SymNode.expr`` that checks for a cached result before it traverses the expression."""

    def expression(node: Any) -> sympy.Basic:
        environment = node.shape_env
        if environment is not None:
            version = environment._replacements_version_counter
            if version == 0:
                return node._expr
            if node._expr_cache is not None and version == node._expr_ver:
                return node._expr_cache
        return original.__get__(node)

    return property(expression)


def maybe_as_int(original: Callable[..., int | None], node: Any) -> int | None:
    """``SymNode.maybe_as_int`` that returns None for an expression with symbols without evaluating it."""
    expression = node.expr
    # An expression with symbols is never a number; sympy would evaluate the assumptions of all its parts.
    return None if _has_symbol(expression) else original(node)


def _has_symbol(expression: sympy.Basic) -> bool:
    return expression.is_Symbol or any(map(_has_symbol, expression.args))


def remainder(original: Callable[[Any, Any], Any], self: Any, other: Any) -> Any:
    """Replacement of ``SymNode._mod``, which is 0 if all factors of the divisor are the dividend's."""
    return original(self, other) if _exact_quotient(self, other) is None else SymNode(_ZERO, self.shape_env, int, 0)


def _exact_quotient(self: Any, other: Any) -> Any:
    """The quotient of two sizes with values in the example, of which the divisor is not a number, if it is exact.

    The size of ``-1`` in a view is one. sympy expands both products and divides polynomials.
    """
    are_known = type(self.hint) is type(other.hint) is int and other.hint
    # The tracer must record the operation.
    if not are_known or other.expr.is_Integer or get_proxy_mode() is not None:
        return None
    found = quotient_of_products(self.expr, other.expr)
    if found is None:
        found = _at_multiples(quotient_of_products, self.expr, other.expr)
    return None if found is None else SymNode(found, self.shape_env, int, self.hint // other.hint)


def _at_multiples(function: Callable[..., Any], *expressions: sympy.Expr) -> Any:
    """A function of expressions in which a size is 8 times ``n // 8`` if the model requires a multiple of 8."""
    divisors = known_divisors() if any(one.has(FloorDiv) for one in expressions) else {}
    if not divisors:
        return None
    wholes = {
        size: sympy.Symbol(f"{size} // {number}", integer=True, positive=True) for size, number in divisors.items()
    }
    products = {size: number * wholes[size] for size, number in divisors.items()}
    found = function(*(one.xreplace(products) for one in expressions))
    quotients = {wholes[size]: FloorDiv(size, sympy.Integer(number)) for size, number in divisors.items()}
    return None if found is None else found.xreplace(quotients)


def sym_node_operation(name: str, original: Callable[[Any, Any], Any], self: Any, other: Any) -> Any:
    """Replacement of a binary operation of ``SymNode``: cache the result, as layouts of many tensors need the same."""
    forms = active(SizeForms)
    if forms is None or get_proxy_mode() is not None:
        # The tracer must record the call.
        return original(self, other)
    key = (name, self.expr, other.expr, self.hint, other.hint, self.pytype, other.pytype, id(self.shape_env))
    result = forms.results.get(key)
    if result is None:
        result = _exact_quotient(self, other) if name == "int_floordiv" else None
        result = forms.results[key] = original(self, other) if result is None else result
    return result


def decide_relation(
    relation: Callable[[int, int], bool], original: Callable[..., bool | None], lhs: Any, rhs: Any, *assumptions: Any
) -> bool | None:
    """Replacement of sympy's ``is_eq`` and ``is_ge``, which decide a relation by assumptions, or return None."""
    forms = active(SizeForms)
    if forms is None or any(assumptions) or not (isinstance(lhs, sympy.Expr) and isinstance(rhs, sympy.Expr)):
        return original(lhs, rhs, *assumptions)
    if lhs.is_Atom and rhs.is_Atom:
        return original(lhs, rhs)
    return forms.samples.answer(original, relation, lhs, rhs)


@dataclass(frozen=True)
class OtherSizes:
    """Active where a branch is traced for other sizes than those of the example."""


def guard_or(original: Callable[[Any, bool], bool], condition: Any, default: bool) -> bool:
    """Replacement of ``guard_or_false`` and ``guard_or_true``, which return the default for an undecided condition.

    If the example has the default's value, or possible values of data do, the condition cannot be decided otherwise:
    skip simplifying the expression.
    """
    forms = active(SizeForms)
    if (
        forms is not None
        and isinstance(condition, torch.SymBool)
        and condition.node._hint in (default, None)
        and active(OtherSizes) is None
        and shape_config.backed_size_oblivious
        and _is_typical(forms, condition.node.shape_env)
        and (condition.node._hint is default or _may_be(forms, condition.node, answer=default))
    ):
        return bool(default)
    return original(condition, default)


def _may_be(forms: SizeForms, node: SymNode, *, answer: bool) -> bool:
    """Whether a condition on values of data has an answer for some of these."""
    if forms.data is None or forms.data.environment is not node.shape_env:
        forms.data = DataSamples(node.shape_env)
    return forms.data.show(node.expr, answer=answer)


def _is_typical(forms: SizeForms, environment: Any) -> bool:
    """Whether the example satisfies torch's assumptions about symbols, such as that they are positive."""
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


def cached_layout_check(original: Callable[..., bool], a: Any, false_if_dde: bool = False) -> bool:
    """Replacement of ``is_contiguous`` etc.: cache results, which depend on sizes and strides if no guard is added."""
    known = _known_layouts(original, a) if false_if_dde else None
    if known is None:
        return original(a, false_if_dde)
    answers, key = known
    answer = answers.get(key)
    if answer is None:
        answer = answers[key] = original(a, false_if_dde)
    return answer


def declare_contiguous(check: Callable[..., bool], tensor: Any) -> None:
    """Store the answer of ``is_contiguous`` for a tensor that was created as contiguous."""
    known = _known_layouts(check, tensor)
    if known is not None:
        answers, key = known
        answers[key] = True


def _known_layouts(check: Callable[..., bool], tensor: Any) -> tuple[dict[Any, bool], tuple[Any, ...]] | None:
    """Cached answers for the current guards, and the key of a tensor with symbolic sizes."""
    forms = active(SizeForms)
    if forms is None or not shape_config.backed_size_oblivious:
        return None
    sizes = (*tensor.shape, *tensor.stride())
    nodes = [size.node for size in sizes if isinstance(size, torch.SymInt)]
    if not nodes or any(type(node) is not SymNode for node in nodes):
        return None
    environment = nodes[0].shape_env
    known, version, answers = forms.layouts
    if known is not environment or version != environment._version_counter:
        answers = {}
        forms.layouts = (environment, environment._version_counter, answers)
    return answers, (check, *(size.node.expr if isinstance(size, torch.SymInt) else size for size in sizes))
