"""The sizes that onnxruntime-genai runs models with, and the constraints that exclude some of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import sympy

from .. import Constraint

__all__ = ["Sizes", "decoder_calls", "narrowing_constraints"]

Sizes: TypeAlias = Mapping[str, int]
"""Sizes of one call by the names of the dims."""

_SIZES = (1, 2, 3, 4, 7, 64, 1000)
_PASTS = (0, *_SIZES)


def decoder_calls(longest: int) -> tuple[Sizes, ...]:
    """Steps of a decoder; the attention mask always covers the past and the new tokens.

    Args:
        longest: The context length.
    """
    return tuple(
        {"batch": batch, "past": past, "tokens": tokens, "total": past + tokens}
        for batch in (1, 3)
        for past in _PASTS
        for tokens in (*_SIZES, longest - past)
        if 0 < tokens <= longest - past
    )


def narrowing_constraints(constraints: Iterable[Constraint], calls: Iterable[Sizes]) -> list[Constraint]:
    """The constraints that exclude sizes of a call by onnxruntime-genai.

    Args:
        constraints: The constraints of the program.
        calls: The sizes of the calls.
    """
    calls = tuple(calls)
    return [each for each in constraints if each.narrows and not _always_holds(each, calls)]


def _always_holds(constraint: Constraint, calls: Iterable[Sizes]) -> bool:
    symbols = constraint.expression.free_symbols
    return all(
        constraint.expression.subs({symbol: sizes[symbol.name] for symbol in symbols if symbol.name in sizes})
        == sympy.true
        for sizes in calls
    )
