"""Warnings attributed to the caller's source line."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType

from ._context_values import activated, active
from ._display import printable

__all__ = ["collecting_warnings", "ignoring_warnings", "warn_user"]

_TORCH = f"{os.sep}torch{os.sep}"
_PACKAGE = str(Path(__file__).parent) + "/"


class _Ignored(tuple[str, ...]):
    """The beginnings of the texts that are ignored."""


class _Collected(list[str]):
    """The texts that are collected."""


def collecting_warnings() -> AbstractContextManager[list[str]]:
    """Collect the texts of fxonnx's warnings in the body, in this thread only, instead of issuing them."""
    return activated(_Collected())


@contextmanager
def ignoring_warnings(beginning: str) -> Iterator[None]:
    """Ignore warnings of fxonnx in the body, in this thread only.

    Args:
        beginning: The beginning of their text.
    """
    with activated(_Ignored((*(active(_Ignored) or ()), beginning))):
        yield


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the innermost frame outside of fxonnx; while torch traces a model, at the call of fxonnx.

    Args:
        message: Text of the warning.
        category: Class of the warning.
    """
    if message.startswith(active(_Ignored) or ()):
        return
    message = printable(message, lines=True)
    collected = active(_Collected)
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
