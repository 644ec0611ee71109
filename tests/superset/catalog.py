"""All programs, in an order in which each beginning is a sample of all families."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable

from .bounds import bounds
from .layers import layers
from .modules import modules
from .numbers import numbers
from .program import Program, checksum
from .sizes import sizes

__all__ = ["programs"]


@functools.cache
def programs() -> tuple[Program, ...]:
    """Every program once, ordered by the checksum of its name."""
    families: tuple[Iterable[Program], ...] = (bounds(), sizes(), numbers(), layers(), modules())
    found = {program.name: program for program in itertools.chain(*families)}
    return tuple(sorted(found.values(), key=lambda program: (checksum("order", program.name), program.name)))
