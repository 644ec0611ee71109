"""Marker of the public API, and the address of its documentation."""

from __future__ import annotations

from importlib.metadata import metadata
from typing import TypeVar

__all__ = ["documentation_address", "page_address", "public"]

_Definition = TypeVar("_Definition")


def public(definition: _Definition) -> _Definition:
    """Decorate a class or function of the public API: reprs and tracebacks show ``fxonnx.<name>``."""
    definition.__module__ = "fxonnx"
    return definition


def documentation_address() -> str:
    """The address of the documentation, "" as long as there is none."""
    urls = dict(entry.split(", ", 1) for entry in metadata("fxonnx").get_all("Project-URL", []))
    address = urls.get("Documentation", "")
    return "" if ".invalid/" in address else address


def page_address(page: str) -> str:
    """The address of a page of the documentation; as long as there is none, its file in the repository.

    Args:
        page: The page without suffix, for example ``errors/FX001``.
    """
    site = documentation_address()
    return f"{site}/{page}.html" if site else f"docs/{page}.md"
