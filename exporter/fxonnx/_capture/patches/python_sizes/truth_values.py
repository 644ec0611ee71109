"""Comparisons of symbolic truth values, ``mask.any().item() == 0`` and ``(h > w) != (w > h)``, as truth values."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import SymBool

from fxonnx_translations._torch_compat import sym_ite

from ..patch import Patch

__all__ = ["TRUTH_PATCHES"]

_VALUES = (False, True)
_sym_not: Callable[[Any], Any] = torch.sym_not


def _compared(relation: Callable[[Any, Any], Any], original: Callable[..., Any], self: SymBool, other: Any) -> Any:
    """A relation of a truth value, which is 0 or 1, to a number, as a truth value."""
    if isinstance(other, SymBool):
        terms = _terms(relation, self, other)
        # A relation of two truth values holds for some of their values.
        found: Any = next(terms)
        for term in terms:
            found = found | term
        return found
    if isinstance(other, torch.SymInt | torch.SymFloat):
        return relation(sym_ite(self, 1, 0), other)
    if not isinstance(other, bool | int | float):
        return original(self, other)
    at_false, at_true = (relation(value, other) for value in _VALUES)
    if at_false == at_true:
        return at_false
    return self if at_true else _sym_not(self)


def _terms(relation: Callable[[Any, Any], Any], self: SymBool, other: SymBool) -> Iterator[Any]:
    """For each pair of values for which a relation holds, whether the truth values are these."""
    for one, two in product(_VALUES, repeat=2):
        if relation(one, two):
            yield (self if one else _sym_not(self)) & (other if two else _sym_not(other))


TRUTH_PATCHES: tuple[Patch, ...] = tuple(
    Patch(
        f"torch:SymBool.__{relation.__name__}__",
        partial(_compared, relation),
        "a truth value equals no number, and has no order",
        strict=False,
    )
    for relation in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
)
