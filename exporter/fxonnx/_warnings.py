"""Warnings attributed to the caller's source line."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType

from ._context_values import assigned
from ._display import printable

__all__ = ["collecting_warnings", "ignoring_warnings", "warn_user"]

_TORCH = f"{os.sep}torch{os.sep}"
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
    """Issue a warning at the innermost frame outside of fxonnx; while torch traces a model, at the call of fxonnx.

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
    levels = list(_levels()) or [(1, "")]
    level, _ = levels[-1] if _TORCH in levels[0][1] else levels[0]
    warnings.warn(message, category, stacklevel=level)


def _levels() -> Iterator[tuple[int, str]]:
    """The stack levels of callers of fxonnx with their files, from the innermost one."""
    level, is_own = 1, True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_own and not name.startswith(_PACKAGE):
            yield level, name
        is_own = name.startswith(_PACKAGE)
        level, frame = level + 1, frame.f_back
