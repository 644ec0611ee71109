"""Results that ``functools.lru_cache`` keeps for functions of user code: those of a capture are fake tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .._context_values import assigned

__all__ = ["known_caches", "without_traced_results"]

_known: ContextVar[Sequence[Any]] = ContextVar("fxonnx_function_caches", default=())


@contextmanager
def known_caches(functions: Sequence[Any]) -> Iterator[None]:
    """Note the functions with a cache that the captured model may call.

    Args:
        functions: Functions that ``functools.lru_cache`` has made.
    """
    with assigned(_known, functions):
        yield


@contextmanager
def without_traced_results() -> Iterator[None]:
    """Empty the caches on exit to which tracing has added results, which later calls of the model would get."""
    before = [(function, function.cache_info().misses) for function in _known.get()]
    try:
        yield
    finally:
        for function, misses in before:
            if function.cache_info().misses != misses:
                function.cache_clear()
