"""What torch, or a model, changes for the whole process while it is traced."""

from __future__ import annotations

import builtins
import math
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

import torch

from fxonnx_translations._torch_compat import FakeTensor, fx_tracing, recording_mode

from .patch import in_tracing_thread, is_tracing

__all__ = [
    "RecordedData",
    "TensorsOnly",
    "WarningsOfTorch",
    "keep_seed",
    "load_tensors",
    "new_patcher",
    "no",
    "override_builtins",
    "print_nothing",
]


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


class RecordedData:
    """``Tensor.data``: ``detach()`` and ``copy_()`` of the tensors of a model that is recorded, as before for others.

    Args:
        original: The attribute of torch.
    """

    def __init__(self, original: Any) -> None:
        self._original = original

    def __get__(self, tensor: torch.Tensor | None, owner: type | None = None) -> Any:
        if tensor is not None and _is_recorded(tensor):
            return tensor.detach()
        return self._original.__get__(tensor, owner)

    def __set__(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        if not _is_recorded(tensor):
            self._original.__set__(tensor, value)
            return
        if tensor.shape != value.shape or tensor.dtype != value.dtype:
            raise RuntimeError(
                "a tensor of another shape or dtype is assigned to .data in forward, which cannot be captured; "
                "give the new tensor a name of its own"
            )
        with torch.no_grad():
            tensor.copy_(value)


def _is_recorded(tensor: torch.Tensor) -> bool:
    return is_tracing() and isinstance(tensor, FakeTensor) and recording_mode() is not None


_WEIGHTS_OF_RNNS = re.compile(r"The tensor attributes? (self\.[\w.]*_flat_weights\[\d+\](, )?)+ (was|were) assigned")


class WarningsOfTorch:
    """The module ``warnings`` for one module of torch, which warns of RNNs whose list of weights is restored anyway.

    A filter would be one for all threads, and two exports could leave it there.

    Args:
        original: The module.
    """

    def __init__(self, original: ModuleType) -> None:
        self._original = original

    def warn(self, message: Any, *args: Any, stacklevel: int = 1, **options: Any) -> None:
        """Warn, unless it is about the list of weights of an RNN that fxonnx exports."""
        if not (is_tracing() and _WEIGHTS_OF_RNNS.match(str(message))):
            self._original.warn(message, *args, stacklevel=stacklevel + 1, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def print_nothing(original: Callable[..., None], *values: object, **options: object) -> None:
    """In place of ``print``: thousands of lines of a large model would bury the error."""


def load_tensors(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``torch.load`` for tensors, and for what is made of them."""
    return original(*args, **{**kwargs, "weights_only": True})


class TensorsOnly:
    """The module ``pickle`` for torch's loader of archives, in which the loading thread cannot unpickle objects.

    Args:
        original: The module.
    """

    def __init__(self, original: ModuleType) -> None:
        self._original = original

    def loads(self, *args: Any, **kwargs: Any) -> Any:
        """Unpickle in other threads.

        Raises:
            UnpicklingError: In the thread that loads a program.
        """
        if is_tracing():
            raise pickle.UnpicklingError("it holds Python objects, which could run anything when they are loaded")
        return self._original.loads(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)
