"""Results that ``functools.lru_cache`` keeps for functions of user code: those of a capture are fake tensors.

A cache refuses symbolic sizes, which have no hash. The functions are called without their caches for these.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import Any

import torch
from torch.export import ExportedProgram

from fxonnx_translations._torch_compat import get_proxy_mode

from ..._context_values import activated, active
from ...errors import CaptureError
from ..patches.patch import is_tracing
from ..user_code import CachePlace
from .attribute_changes import draws_values
from .departures import DepartureKind, record_departure

__all__ = ["known_caches", "reject_cached_random_values", "uncached_sizes", "without_traced_results"]

_DRAWING = frozenset(
    {
        *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli"),
        *("multinomial", "uniform_", "normal_", "random_", "bernoulli_", "exponential_", "dropout"),
    }
)


class _Known(tuple[CachePlace, ...]):
    """The attributes and variables that hold functions with a cache."""


def known_caches(places: Sequence[CachePlace]) -> AbstractContextManager[Any]:
    """Note the functions with a cache that the captured model may call."""
    return activated(_Known(places))


@contextmanager
def without_traced_results() -> Iterator[None]:
    """Empty the caches on exit to which tracing has added results, which later calls of the model would get."""
    functions = {id(place.function): place.function for place in active(_Known) or ()}
    before = [(function, function.cache_info().misses) for function in functions.values()]
    try:
        yield
    finally:
        for function, misses in before:
            if function.cache_info().misses != misses:
                function.cache_clear()


@contextmanager
def uncached_sizes() -> Iterator[None]:
    """Call the functions with a cache without it for symbolic sizes, and leave no traced results in the others."""
    taking_sizes = {id(place.function): _taking_sizes(place.function) for place in active(_Known) or ()}
    replaced: list[CachePlace] = []
    with without_traced_results():
        try:
            for place in active(_Known) or ():
                place.replace(taking_sizes[id(place.function)])
                replaced.append(place)
            yield
        finally:
            for place in replaced:
                place.restore()


def _taking_sizes(cached: Any) -> Callable[..., Any]:
    """A function with a cache, which is called without it for symbolic sizes."""

    # Partial functions and objects that are called have no name, and nor have their caches.
    known_as = getattr(cached, "__name__", type(cached.__wrapped__).__name__)

    @functools.wraps(cached)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_tracing():
            return cached(*args, **kwargs)
        function = cached
        if _has_size(args) or _has_size(tuple(kwargs.values())):
            detail = f"the function {known_as} without its cache"
            record_departure(DepartureKind.INTROSPECTION, detail, sys._getframe(1))
            function = cached.__wrapped__
        with _without_random_values(known_as):
            return function(*args, **kwargs)

    for name in ("cache_info", "cache_clear", "cache_parameters"):
        setattr(call, name, getattr(cached, name))
    return call


@contextmanager
def _without_random_values(name: str) -> Iterator[None]:
    """Refuse random values of a function: its cache keeps them, and no run tells them from numbers of every call.

    Raises:
        CaptureError: If it draws some.
    """
    mode = get_proxy_mode()
    graph = None if mode is None else mode.tracer.graph
    count = 0 if graph is None else len(graph.nodes)
    yield
    for node in () if graph is None else islice(reversed(graph.nodes), len(graph.nodes) - count):
        if draws_values(node):
            raise _kept_random_values(name)


def reject_cached_random_values(program: ExportedProgram) -> None:
    """Refuse random values of a program of TorchDynamo that may be those of a function with a cache.

    Raises:
        CaptureError: If a function with a cache calls a function that draws some.
    """
    for place in active(_Known) or ():
        code = getattr(place.function.__wrapped__, "__code__", None)
        if code is not None and not _DRAWING.isdisjoint(code.co_names) and any(map(draws_values, program.graph.nodes)):
            raise _kept_random_values(code.co_name)


def _kept_random_values(name: str) -> CaptureError:
    return CaptureError(
        f"the cache of the function {name} keeps random values; the captured program draws them in every call",
        hint="draw them in __init__, for the largest size, and keep them with register_buffer",
    )


def _has_size(values: tuple[Any, ...]) -> bool:
    """Whether some of the arguments are symbolic sizes, or tuples or shapes with some."""
    return any(
        _has_size(value) if isinstance(value, tuple) else isinstance(value, torch.SymInt | torch.SymFloat)
        for value in values
    )
