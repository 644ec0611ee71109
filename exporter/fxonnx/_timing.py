"""Wall-clock time of the export stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ._interrupts import interruption_point

__all__ = ["Timer"]


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
