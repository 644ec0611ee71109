"""What torch, or a model, changes for the whole process while it is traced."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from fxonnx_translations.torch_compat import fx_tracing

from .patch import in_tracing_thread, is_tracing

__all__ = ["keep_seed", "new_patcher", "no", "override_builtins"]


class _OnlyHere:
    """True in the tracing thread."""

    def __bool__(self) -> bool:
        return is_tracing()


@contextmanager
def new_patcher(original: Callable[[], AbstractContextManager[Any]]) -> Iterator[Any]:
    """``_new_patcher``, inside of which torch.fx traces, and has set a flag that torch.compile looks at."""
    with original() as patcher:
        # Thread-local in later versions of torch; torch.fx puts back what was there before.
        if hasattr(fx_tracing, "_is_fx_tracing_flag"):
            vars(fx_tracing)["_is_fx_tracing_flag"] = _OnlyHere()
        yield patcher


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
