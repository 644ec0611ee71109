"""Import of the optional dependencies."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType

from ..errors import ExportError

__all__ = ["import_extra"]

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
