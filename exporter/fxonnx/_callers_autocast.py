"""The autocast in which the caller exports: the model runs in it, and the export itself without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import torch

from ._context_values import activated, active

__all__ = ["Autocast", "callers_autocast", "in_autocast", "under_autocast", "without_autocast"]

Autocast: TypeAlias = tuple[tuple[str, torch.dtype], ...]
"""Device type and dtype of the autocasts that are enabled."""

_DEVICES = ("cpu", "cuda", "xpu", "mps")


class _Disabled(Autocast):
    """The autocasts that the export has disabled."""


@contextmanager
def without_autocast() -> Iterator[None]:
    """Disable the caller's autocast inside the context; ``callers_autocast`` tells it."""
    devices = filter(torch.is_autocast_enabled, _DEVICES)
    enabled = tuple((device, torch.get_autocast_dtype(device)) for device in devices)
    with activated(_Disabled(enabled)), ExitStack() as stack:
        for device, _ in enabled:
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def callers_autocast() -> Autocast:
    """The autocast that ``without_autocast`` has disabled."""
    return active(_Disabled) or ()


@contextmanager
def in_autocast(autocast: Autocast) -> Iterator[None]:
    """Enable an autocast inside the context."""
    with ExitStack() as stack:
        for device, dtype in autocast:
            stack.enter_context(torch.autocast(device, dtype=dtype))
        yield


def under_autocast(forward: Callable[..., Any], autocast: Autocast) -> Callable[..., Any]:
    """A function that runs ``forward`` in an autocast, which torch.export and TorchDynamo record as a region."""
    for device, dtype in autocast:
        forward = _under(forward, device, dtype)
    return forward


def _under(forward: Callable[..., Any], device: str, dtype: torch.dtype) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, dtype=dtype):
            return forward(*args, **kwargs)

    return run
