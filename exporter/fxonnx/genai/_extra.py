"""Import of the optional dependencies."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from ..errors import ExportError

__all__ = ["import_extra"]


def import_extra(name: str, extra: str = "genai") -> ModuleType:
    """Import a module of an extra.

    Args:
        name: The module, for example ``transformers``.
        extra: The extra that installs it.

    Raises:
        ExportError: If it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ExportError(
            f"the module {name} is not installed", hint=f"install it with: pip install 'fxonnx[{extra}]'"
        ) from error
