"""Whether a line of code is the user's: the files of torch, sympy, fxonnx and Python are not."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import sympy
import torch

__all__ = ["OWN", "SYMPY", "TORCH", "is_user_file"]

TORCH = str(Path(torch.__file__).parent) + "/"
OWN = str(Path(__file__).parent) + "/"
SYMPY = str(Path(sympy.__file__).parent) + "/"
_LIBRARY = sysconfig.get_path("stdlib")
# Code that people type is in no file: at the prompts of IPython and Python, in doctests.
_INPUTS = ("<ipython-input-", "<stdin>", "<python-input-", "<console>", "<input>", "<doctest ")


def is_user_file(filename: str) -> bool:
    """Whether a file is user code: not part of torch, sympy, fxonnx or Python's standard library."""
    if filename.startswith("<"):
        return filename.startswith(_INPUTS)
    if filename.startswith((TORCH, OWN, SYMPY)):
        return False
    return not filename.startswith(_LIBRARY) or "site-packages" in filename
