"""Optional dependencies, and arguments that are one of some names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any

from ..errors import ArgumentError, ExportError, did_you_mean

__all__ = ["check_choice", "import_extra"]

_EXTRAS: Mapping[str, str] = MappingProxyType({"onnxruntime_genai": "genai", "gguf": "gguf", "diffusers": "diffusers"})


def import_extra(name: str, extra: str | None = None) -> ModuleType:
    """Import a module of an optional dependency; the error names the extra that installs it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        extra = extra or _EXTRAS.get(name.partition(".")[0], "huggingface")
        hint = f"install it with: pip install 'fxonnx[{extra}]'"
        raise ExportError(f"the module {name} is not installed", hint=hint) from error


def check_choice(argument: str, value: Any, known: Iterable[str | None]) -> None:
    """Check an argument that is one of some names, or None where that is among them."""
    names = [name for name in known if name is not None]
    if value not in [*known]:
        expected = ", ".join(map(repr, names))
        raise ArgumentError(argument, f"expected {expected}, got {value!r}", hint=did_you_mean(value, names))
