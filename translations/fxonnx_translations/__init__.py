"""Translations of PyTorch operators to ONNX, and the API to write them.

``translates`` marks a function as the translation of operators, ``Op`` is the type of its first argument,
``default_registry()`` returns the built-in translations, and ``Registry`` finds the translation of a call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # For type checkers only: at run time __getattr__ imports the names on first use.
    from ._builder.op import Op
    from ._builtin import default_registry
    from ._registry import Registry, translates

__all__ = ["Op", "Registry", "default_registry", "translates"]


def __getattr__(name: str) -> Any:
    """Import on first use: torch, onnxscript and the modules of translations take long to import."""
    module = {"Op": "_builder.op", "Registry": "_registry", "default_registry": "_builtin", "translates": "_registry"}
    if name not in module:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Not at the top: it would be an attribute of this module.
    from importlib import import_module

    return getattr(import_module(f".{module[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
