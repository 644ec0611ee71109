"""Progress of saves: the bytes written so far, for an observer such as the command line's progress display."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

__all__ = ["OnBytes", "WrittenBytes", "observing_bytes"]

OnBytes: TypeAlias = Callable[[int, int], None]
"""Called with the number of bytes written, and the number of all bytes of the save."""

_observer: ContextVar[OnBytes | None] = ContextVar("fxonnx_written_bytes", default=None)


@contextmanager
def observing_bytes(observer: OnBytes) -> Iterator[None]:
    """Call an observer after each tensor that a save inside the context writes.

    Args:
        observer: Called with the number of bytes written, and the number of all bytes.
    """
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


class WrittenBytes:
    """The bytes of one save, possibly of several files.

    Args:
        total: The number of all bytes.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._written = 0
        self._observer = _observer.get()

    def add(self, count: int) -> None:
        """Count bytes that have been written."""
        self._written += count
        if self._observer is not None:
            self._observer(self._written, self._total)
