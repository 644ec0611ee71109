"""Import of the optional dependencies."""

from __future__ import annotations

from types import ModuleType

from ..genai import _extra

__all__ = ["import_extra"]


def import_extra(name: str) -> ModuleType:
    """Import a module of the extra ``fxonnx[huggingface]``.

    Args:
        name: The module, for example ``transformers``.

    Raises:
        ExportError: If it is not installed.
    """
    return _extra.import_extra(name, "huggingface")
