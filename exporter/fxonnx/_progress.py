"""Time of the export stages, and progress within one, for an observer such as the command line's display."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ._context_values import activated, active
from ._interrupts import interruption_point

__all__ = ["Counter", "OnCount", "Timer", "Unit", "observing_counts"]

Unit: TypeAlias = Literal["bytes", "sizes", "attempts"]
"""The unit of a count: bytes of a save, sizes of a verification, attempts of a capture."""

OnCount: TypeAlias = Callable[[Unit, int, int | None], None]
"""Called with the unit, the number that is done, and the number of all if it is known."""


@dataclass(frozen=True)
class _Observer:
    """The observer of the counts."""

    call: OnCount | None = None


@contextmanager
def observing_counts(observer: OnCount) -> Iterator[None]:
    """Call an observer at each step inside the context.

    Args:
        observer: Called with the unit, the number that is done, and the number of all.
    """
    with activated(_Observer(observer)):
        yield


class Counter:
    """The count of one stage.

    Args:
        unit: What is counted.
        total: The number of all; None if it is not known.
    """

    def __init__(self, unit: Unit, total: int | None = None) -> None:
        self._unit: Unit = unit
        self._total = total
        self._done = 0
        self._observer = (active(_Observer) or _Observer()).call

    def add(self, count: int = 1) -> None:
        """Count what has been done."""
        interruption_point()
        self._done += count
        if self._observer is not None:
            self._observer(self._unit, self._done, self._total)


class Timer:
    """Measures the wall-clock time of each stage.

    Args:
        on_stage: Called with the name of each stage when it begins.

    Attributes:
        seconds: Stage name to wall-clock seconds, in the order of the stages.
    """

    def __init__(self, on_stage: Callable[[str], None] | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._on_stage = on_stage

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the body of the ``with`` statement."""
        interruption_point()
        if self._on_stage is not None:
            self._on_stage(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = time.perf_counter() - start
