"""Parameters of the functions that fxonnx replaces, as recorded for the versions with which it is tested."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

__all__ = ["ORIGINAL", "SIGNATURES", "parameters_of", "recorded_parameters", "recorded_versions"]

ORIGINAL = "_fxonnx_original"
"""Attribute of a replacement: the function that it replaces."""

SIGNATURES = Path(__file__).with_name("signatures.json")
"""The parameters of the targets, and the newest tested version of each library.

``python -m fxonnx._capture.patches.installed`` adds the installed versions'.
"""


@cache
def _recorded() -> Mapping[str, Mapping[str, Any]]:
    found: Mapping[str, Mapping[str, Any]] = json.loads(SIGNATURES.read_text())
    return found


def recorded_parameters() -> Mapping[str, list[str]]:
    """Target to the parameters that it has in tested versions."""
    return _recorded()["parameters"]


def recorded_versions() -> Mapping[str, str]:
    """Library to the newest version with which the suite has been run."""
    return _recorded()["versions"]


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
