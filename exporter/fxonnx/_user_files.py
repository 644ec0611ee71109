"""Whether a line of code is the user's: the files of torch, sympy, fxonnx and Python are not."""

from __future__ import annotations

import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import sympy
import torch

__all__ = ["OWN", "SYMPY", "TORCH", "is_user_code", "is_user_file", "is_user_frame"]

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
    if filename.startswith((TORCH, OWN, SYMPY)):
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
