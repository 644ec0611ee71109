"""Relations of several sizes with Min and Max as relations of one size each, which a person can read."""

from __future__ import annotations

import math

import numpy as np
import sympy

from fxonnx_translations._torch_compat import FloorDiv, Max, Min, sympy_functions

from .size_sets import SizeSet, size_function

__all__ = ["cases_of_extremes"]

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
