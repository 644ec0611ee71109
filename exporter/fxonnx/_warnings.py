"""Warnings attributed to the caller's source line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path

from ._context_values import assigned
from ._display import printable

__all__ = ["collecting_warnings", "ignoring_warnings", "warn_user"]

_PACKAGE = str(Path(__file__).parent) + "/"
_ignored: ContextVar[tuple[str, ...]] = ContextVar("fxonnx_ignored_warnings", default=())
_collected: ContextVar[list[str] | None] = ContextVar("fxonnx_collected_warnings", default=None)


def collecting_warnings() -> AbstractContextManager[list[str]]:
    """Collect the texts of fxonnx's warnings in the body, in this thread only, instead of issuing them."""
    return assigned(_collected, [])


@contextmanager
def ignoring_warnings(beginning: str) -> Iterator[None]:
    """Ignore warnings of fxonnx in the body, in this thread only.

    Args:
        beginning: The beginning of their text.
    """
    with assigned(_ignored, (*_ignored.get(), beginning)):
        yield


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the innermost frame outside of fxonnx.

    Args:
        message: Text of the warning.
        category: Class of the warning.
    """
    if message.startswith(_ignored.get()):
        return
    message = printable(message, lines=True)
    collected = _collected.get()
    if collected is not None:
        collected.append(message)
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
