"""All programs, in an order in which each beginning is a sample of all families."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from dataclasses import replace

from .bounds import bounds
from .layers import layers
from .modules import modules
from .numbers import numbers
from .program import Program, checksum
from .sizes import sizes

__all__ = ["programs"]

# Calls of programs whose other calls do not tell a value that was frozen from one that was computed, by their names
# without them.
_TELLING_CALLS = {
    "numbers/7555581a": "(f(2, 2, 3),)",
    "numbers/91171df2": "(f(2, 3, 4),)",
    "numbers/fa0abfde": "(f(1, 3, 7),)",
    "values/0ecce2e3": "(f(2, 3) * 4, n(5), n(1.25, float32))",
    "values/30f24515": "(torch.ones(2, 5) * 0.5, n(1), n(1.25, float32))",
    "values/4209d037": "(f(2, 5) * 4, n(0), n(1.25, float32))",
    "values/7e5169d4": "(f(2, 5) * 4, n(-5), n(1.25, float32))",
    "values/7f22b439": "(f(2, 50) * 4, n([9]), n([1.25], float32))",
    "values/999c46e5": "(torch.ones(2, 5) * 5, n([9]), n([1.25], float32))",
    "values/bb225632": "(torch.ones(2, 5), n([0]), n([1.25], float32))",
    "values/fd86a620": "(torch.ones(2, 5) * 2, n([1]), n([1.25], float32))",
}


@functools.cache
def programs() -> tuple[Program, ...]:
    """Every program once, ordered by the checksum of its name."""
    families: tuple[Iterable[Program], ...] = (bounds(), sizes(), numbers(), layers(), modules())
    chained = map(_with_telling_call, itertools.chain(*families))
    found = {program.name: program for program in chained}
    return tuple(sorted(found.values(), key=lambda program: (checksum("order", program.name), program.name)))


def _with_telling_call(program: Program) -> Program:
    call = _TELLING_CALLS.get(program.name)
    return program if call is None else replace(program, calls=(*program.calls, call))
