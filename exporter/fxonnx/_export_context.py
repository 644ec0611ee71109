"""Tracks whether an export is running in the current thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["exporting", "is_in_onnx_export"]

_depth: ContextVar[int] = ContextVar("fxonnx_exports", default=0)


@contextmanager
def exporting() -> Iterator[None]:
    """Mark the body as an export for the current thread; exports may be nested."""
    token = _depth.set(_depth.get() + 1)
    try:
        yield
    finally:
        _depth.reset(token)


def is_in_onnx_export() -> bool:
    """Return whether the calling code runs during an export, so that a model can branch on it."""
    return _depth.get() > 0
