"""What the add-on for TorchScript adds to an export: an interpreter of scripted modules and functions."""

from __future__ import annotations

from .._capture.patches.patch import Patch
from .._extensions import Extension
from .script import builtins, interpret_function, interpreter, scripted_as_python

__all__ = ["EXTENSION"]

EXTENSION = Extension(
    stand_in=scripted_as_python,
    interpreters=frozenset({builtins.__file__, interpreter.__file__}),
    patches=(
        Patch(
            "torch._C:ScriptFunction.__call__",
            interpret_function,
            "scripted functions run in C++, where the tracer cannot capture their control flow",
            strict=False,
        ),
    ),
)
"""The record of the add-on."""
