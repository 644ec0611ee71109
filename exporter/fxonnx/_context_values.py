"""Values of context variables inside a context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["assigned"]

_Value = TypeVar("_Value")
_Assigned = TypeVar("_Assigned")


@contextmanager
def assigned(variable: ContextVar[_Value | _Assigned], value: _Assigned) -> Iterator[_Assigned]:
    """Assign a value to a context variable inside the context.

    Args:
        variable: The variable, which has its value of before after the context.
        value: The value.

    Yields:
        The value, such as a record that is filled while the context is active.
    """
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
