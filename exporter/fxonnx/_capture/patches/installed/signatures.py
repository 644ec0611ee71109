"""Parameters of the functions that fxonnx replaces, as recorded for the versions with which it is tested."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

__all__ = ["ORIGINAL", "SIGNATURES", "parameters_of", "recorded_parameters"]

ORIGINAL = "_fxonnx_original"
"""Attribute of a replacement: the function that it replaces."""

SIGNATURES = Path(__file__).with_name("signatures.json")
"""Target to the parameters that it has in the tested versions; ``python -m fxonnx._capture.patches.installed`` adds
those of the installed ones."""


@cache
def recorded_parameters() -> Mapping[str, list[str]]:
    """The contents of ``SIGNATURES``."""
    found: Mapping[str, list[str]] = json.loads(SIGNATURES.read_text())
    return found


def parameters_of(function: Any) -> str:
    """The parameters of a Python function as in its definition, without defaults; "" for other objects."""
    while not isinstance(function, FunctionType) or ORIGINAL in function.__dict__:
        inner = getattr(function, ORIGINAL, None) or getattr(function, "__func__", None)
        if inner is None:
            return ""
        function = inner
    return _parameters_of_code(function.__code__)


def _parameters_of_code(code: CodeType) -> str:
    names = list(code.co_varnames)
    positional, names = names[: code.co_argcount], names[code.co_argcount :]
    keyword, names = names[: code.co_kwonlyargcount], names[code.co_kwonlyargcount :]
    if code.co_flags & inspect.CO_VARARGS:
        positional.append(f"*{names.pop(0)}")
    elif keyword:
        positional.append("*")
    if code.co_flags & inspect.CO_VARKEYWORDS:
        keyword.append(f"**{names.pop(0)}")
    return ", ".join((*positional, *keyword))
