"""Python's garbage collector during imports and exports: collections search all objects of torch, mostly in vain."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from ._turns import undone_in_forks

__all__ = ["rare_collections", "without_collections"]

_THRESHOLDS = (50_000, 20, 1_000)
"""Young objects, young collections and middle ones until a collection of the next generation."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect young garbage less often in the body, and the garbage among all objects of the process practically never.

    In a new process these collections would be a third of the first export. Thresholds of the user that are higher, and
    a collector that is off, stay; of two exports in threads the first that ends restores them.
    """
    before = gc.get_threshold()
    raised = tuple(max(pair) for pair in zip(before, _THRESHOLDS, strict=True))
    if before[0] == 0 or raised == before:
        yield
        return
    gc.set_threshold(*raised)
    try:
        with undone_in_forks(lambda: gc.set_threshold(*before)):
            yield
    finally:
        if gc.get_threshold() == raised:
            gc.set_threshold(*before)


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect nothing in the body, an import, whose objects live as long as the process, and skip them afterwards."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_freeze_count() == 0:
                # Moves all objects to the oldest generation. Otherwise the next collections would search them.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
