"""Whether an export is going on in this thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["exporting", "is_in_onnx_export"]

_depth: ContextVar[int] = ContextVar("fxonnx_exports", default=0)


@contextmanager
def exporting() -> Iterator[None]:
    """Marks the body as an export; exports may be nested, and other threads do not see it."""
    token = _depth.set(_depth.get() + 1)
    try:
        yield
    finally:
        _depth.reset(token)


def is_in_onnx_export() -> bool:
    """Whether the code runs while a model is exported: a model may do something else then."""
    return _depth.get() > 0
