"""Sizes that torch has to know to be 1 because the example could not be broadcast otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import torch
from torch._subclasses import fake_impls
from torch.fx.experimental.symbolic_shapes import guarding_hint_or_throw, has_guarding_hint

__all__ = ["broadcast_as_the_example"]

_check: Callable[..., Any] = torch._check  # without types in torch


@contextmanager
def broadcast_as_the_example() -> Iterator[None]:
    """Lets a computed size that is 1 in the example, such as ``1 - max(0, 1 - length)``, be broadcast.

    Of a size that could be 1 or not, torch takes for granted that it is not and so equal to the other one, which the
    example contradicts. Its slow way of broadcasting asks the example first; here the fast way does so, too.
    """
    inferred: Callable[..., Any] = fake_impls.infer_size

    def infer_size(a: Sequence[Any], b: Sequence[Any]) -> Any:
        for first, second in zip_longest(reversed(a), reversed(b), fillvalue=1):
            if type(first) is int and type(second) is int:
                continue
            if not (has_guarding_hint(first) and has_guarding_hint(second)):
                continue
            sizes = guarding_hint_or_throw(first), guarding_hint_or_throw(second)
            if 1 in sizes and sizes[0] != sizes[1]:
                _check(first == 1 if sizes[0] == 1 else second == 1)
        return inferred(a, b)

    fake_impls.infer_size = infer_size
    try:
        yield
    finally:
        fake_impls.infer_size = inferred
