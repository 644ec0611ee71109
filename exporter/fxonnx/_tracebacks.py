"""Tracebacks of errors as users see them: their own lines and the message, without the frames of fxonnx and torch."""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType

from ._user_files import is_user_file

__all__ = ["VARIABLE", "only_own_lines", "shortened"]

VARIABLE = "FXONNX_FULL_TRACEBACK"
"""Environment variable that keeps all frames and prints the error of torch that an error was caused by."""

_PROMPTS = ("IPython.", "ipykernel.", "runpy", "code")


def shortened(error: Exception) -> Exception:
    """An error without the frames of fxonnx and torch, and with the error that caused it as its silent context.

    Args:
        error: An error at the boundary between fxonnx and its caller.
    """
    if os.environ.get(VARIABLE):
        return error
    cause = error.__cause__
    if cause is not None:
        error.__cause__, error.__context__, error.__suppress_context__ = None, cause, True
        if sys.version_info >= (3, 11):
            error.add_note(f"(set {VARIABLE}=1 to see the {type(cause).__name__} that caused it, and all frames)")
    return error.with_traceback(_own_frames(error.__traceback__))


def only_own_lines(error: BaseException) -> list[str]:
    """The lines that IPython prints for an error: those of the user's calls, and the message with its notes."""
    frames = [
        summary
        for (frame, _), summary in zip(
            traceback.walk_tb(error.__traceback__), traceback.extract_tb(error.__traceback__), strict=True
        )
        if is_user_file(frame.f_code.co_filename) and not frame.f_globals.get("__name__", "").startswith(_PROMPTS)
    ]
    lines = [line for text in traceback.format_list(frames) for line in text.splitlines()]
    message = "".join(traceback.format_exception_only(type(error), error)).rstrip()
    return [*lines, *message.splitlines()]


def _own_frames(entry: TracebackType | None) -> TracebackType | None:
    """The entries of a traceback in files of the user."""
    if entry is None:
        return None
    rest = _own_frames(entry.tb_next)
    if not is_user_file(entry.tb_frame.f_code.co_filename):
        return rest
    return TracebackType(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
