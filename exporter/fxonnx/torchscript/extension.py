"""The record of this add-on: an interpreter of scripted modules and functions."""

from __future__ import annotations

from .._capture.patches.patch import Patch
from .._extensions import Extension
from .script import builtins, interpret_function, interpreter, scripted_as_python
from .user_symbolics import CalledFunctions, registered_symbolics, rename_by_scope, translate_symbolically

__all__ = ["EXTENSION", "CalledFunctions", "rename_by_scope", "translate_symbolically"]

EXTENSION = Extension(
    stand_in=scripted_as_python,
    translations=registered_symbolics,
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
