"""Marker of the public API."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["public"]

_Definition = TypeVar("_Definition")


def public(definition: _Definition) -> _Definition:
    """Decorate a class or function of the public API: reprs and tracebacks show ``fxonnx.<name>``."""
    definition.__module__ = "fxonnx"
    return definition
