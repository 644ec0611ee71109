"""Whether a line of code is the user's, and tracebacks without the frames of fxonnx and torch."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import sympy
import torch

__all__ = ["OWN", "SYMPY", "TORCH", "is_user_code", "is_user_file", "is_user_frame", "only_own_lines", "shortened"]

TORCH = str(Path(torch.__file__).parent) + "/"
OWN = str(Path(__file__).parent) + "/"
SYMPY = str(Path(sympy.__file__).parent) + "/"
_LIBRARY = sysconfig.get_path("stdlib")
# Code that people type is in no file: at the prompts of IPython and Python, in doctests.
_INPUTS = ("<ipython-input-", "<stdin>", "<python-input-", "<console>", "<input>", "<doctest ")
# Code without a file that libraries generate: graphs of FX, functions of sympy, methods of dataclasses.
_GENERATED = ("<frozen ", "<eval_with_key>", "<lambdifygenerated", "<__array_function__", "<attrs generated")
# Functions in which dataclasses define methods, and TorchDynamo its guards.
_MAKERS = ("__create_fn__.", "___make_guard_fn.")
_LIBRARIES = frozenset({"collections", "dataclasses", "fxonnx", "fxonnx_translations", "sympy", "torch"})


def is_user_file(filename: str) -> bool:
    """Whether a file is user code: not part of torch, sympy, fxonnx or Python's standard library."""
    if filename.startswith("<"):
        return filename.startswith(_INPUTS)
    if filename.startswith((TORCH, OWN, SYMPY)) or filename.endswith((".pyx", ".pxd")):
        # Compiled code has no lines of the user.
        return False
    return not filename.startswith(_LIBRARY) or "site-packages" in filename


def is_user_code(code: CodeType, namespace: Mapping[str, Any]) -> bool:
    """Whether code is the user's: in a file of the user, or text that the user executes.

    Args:
        code: The code.
        namespace: The globals of its function or frame.
    """
    if not code.co_filename.startswith("<"):
        return is_user_file(code.co_filename)
    # In Python 3.10, code has no qualified name.
    name = getattr(code, "co_qualname", None)
    is_made = name.startswith(_MAKERS) if name is not None else code.co_name == "guard" or code.co_name.startswith("__")
    if is_made or code.co_filename.startswith(_GENERATED):
        return False
    module = namespace.get("__name__")
    return not isinstance(module, str) or module.partition(".")[0] not in _LIBRARIES


def is_user_frame(frame: FrameType) -> bool:
    """Whether a frame runs user code; see ``is_user_code``."""
    return is_user_code(frame.f_code, frame.f_globals)


_VARIABLE = "FXONNX_FULL_TRACEBACK"
"""Environment variable that keeps all frames and prints the error of torch that an error was caused by."""

_PROMPTS = ("IPython.", "ipykernel.", "runpy", "code")


def shortened(error: Exception) -> Exception:
    """An error without the frames of fxonnx and torch, and with the error that caused it as its silent context.

    Args:
        error: An error at the boundary between fxonnx and its caller.
    """
    if os.environ.get(_VARIABLE):
        return error
    cause = error.__cause__
    if cause is not None:
        error.__cause__, error.__context__, error.__suppress_context__ = None, cause, True
        if sys.version_info >= (3, 11):
            error.add_note(f"(set {_VARIABLE}=1 to see the {type(cause).__name__} that caused it, and all frames)")
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
