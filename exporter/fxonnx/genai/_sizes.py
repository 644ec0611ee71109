"""The sizes that onnxruntime-genai runs a decoder with, and the constraints that exclude some of them."""

from __future__ import annotations

from collections.abc import Iterable

import sympy

from .._capture import Constraint

__all__ = ["narrowing_constraints"]

_SIZES = (1, 2, 3, 4, 7, 64, 1000)
_PASTS = (0, *_SIZES)


def narrowing_constraints(constraints: Iterable[Constraint], longest: int) -> list[Constraint]:
    """The constraints that exclude sizes of a call by onnxruntime-genai.

    Its attention mask always covers the past and the new tokens: ``total == past + tokens``.

    Args:
        constraints: The constraints of the program.
        longest: The context length.
    """
    return [each for each in constraints if each.narrows and not _always_holds(each, longest)]


def _always_holds(constraint: Constraint, longest: int) -> bool:
    calls = (
        {"batch": batch, "past": past, "tokens": tokens, "total": past + tokens}
        for batch in (1, 3)
        for past in _PASTS
        for tokens in (*_SIZES, longest - past)
        if 0 < tokens <= longest - past
    )
    symbols = constraint.expression.free_symbols
    return all(
        constraint.expression.subs({symbol: sizes[symbol.name] for symbol in symbols if symbol.name in sizes})
        == sympy.true
        for sizes in calls
    )
