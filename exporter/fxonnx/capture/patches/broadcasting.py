"""Broadcasting of sizes that torch has to know to be 1 because the example could not be broadcast otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import guarding_hint_or_throw, has_guarding_hint

__all__ = ["infer_size"]

_check: Callable[..., Any] = torch._check  # without types in torch


def infer_size(original: Callable[..., Any], a: Sequence[Any], b: Sequence[Any]) -> Any:
    """Broadcast a computed size that is 1 in the example, such as ``1 - max(0, 1 - length)``.

    For a size that could be 1 or not, torch assumes that it is not 1 and so equal to the other one, which the example
    contradicts. Its slow path of broadcasting evaluates the example first; this does so on the fast path.
    """
    for first, second in zip_longest(reversed(a), reversed(b), fillvalue=1):
        if type(first) is int and type(second) is int:
            continue
        if not (has_guarding_hint(first) and has_guarding_hint(second)):
            continue
        sizes = guarding_hint_or_throw(first), guarding_hint_or_throw(second)
        if 1 in sizes and sizes[0] != sizes[1]:
            _check(first == 1 if sizes[0] == 1 else second == 1)
    return original(a, b)
