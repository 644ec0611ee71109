"""The context of an export: values for the functions below it, at most one of each type.

Patches and recorders, whose callers are functions of torch or of the model, find here what no argument can bring them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, TypeVar

__all__ = ["activated", "active"]

_Value = TypeVar("_Value")

_values: ContextVar[Mapping[type, Any]] = ContextVar("fxonnx_values", default=MappingProxyType({}))


def active(kind: type[_Value]) -> _Value | None:
    """The value of a type that the innermost ``activated`` around the caller has set; None outside of any."""
    return _values.get().get(kind)


@contextmanager
def activated(value: _Value) -> Iterator[_Value]:
    """Make a value the one of its type inside the context, in this thread only.

    Yields:
        The value, such as a record that is filled while the context is active.
    """
    token = _values.set({**_values.get(), type(value): value})
    try:
        yield value
    finally:
        _values.reset(token)
