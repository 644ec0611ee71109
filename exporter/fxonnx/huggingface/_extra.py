"""Import of the optional dependencies."""

from __future__ import annotations

from types import ModuleType

from ..genai import _extra

__all__ = ["import_extra"]


def import_extra(name: str, extra: str = "huggingface") -> ModuleType:
    """Import a module of the extra ``fxonnx[huggingface]``, or of another one.

    Args:
        name: The module, for example ``transformers``.
        extra: The extra that installs it.

    Raises:
        ExportError: If it is not installed.
    """
    return _extra.import_extra(name, extra)
