"""Import of the optional dependencies."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from ..errors import ExportError

__all__ = ["import_extra"]


def import_extra(name: str) -> ModuleType:
    """Import a module of the extra ``fxonnx[huggingface]``.

    Args:
        name: ``transformers``, ``huggingface_hub`` or ``onnxruntime``.

    Raises:
        ExportError: If it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        hint = "install it with: pip install 'fxonnx[huggingface]'"
        raise ExportError(f"the module {name} is not installed", hint=hint) from error
