"""What torch, or a model, changes for the whole process while it is traced."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from .patch import in_tracing_thread

__all__ = ["keep_seed", "no", "override_builtins", "patch_method"]


def patch_method(
    original: Callable[..., None],
    self: Any,
    cls: type,
    name: str,
    new_fn: Callable[..., Any],
    deduplicate: bool = True,
) -> None:
    """``_Patcher.patch_method`` of torch.fx, which replaces ``Module.__call__`` and ``Module.__getattr__``."""
    original(self, cls, name, in_tracing_thread(new_fn, getattr(cls, name)), deduplicate)


@contextmanager
def override_builtins(original: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """``_override_builtin_ops`` of torch.export, which replaces ``max`` and ``min`` by functions for tensors."""
    largest, smallest, power = builtins.max, builtins.min, math.pow
    with original():
        # torch puts back what was there before, whatever is there when the body ends.
        builtins.max = in_tracing_thread(builtins.max, largest)
        builtins.min = in_tracing_thread(builtins.min, smallest)
        math.pow = in_tracing_thread(math.pow, power)
        yield


def no(original: Callable[[], bool]) -> bool:
    """The answer of ``is_compiling`` and ``is_exporting`` for threads that do neither."""
    return False


def keep_seed(original: Callable[..., torch.Generator], seed: int) -> torch.Generator:
    """``torch.manual_seed`` in forward, where fake tensors draw no random numbers."""
    return torch.default_generator
