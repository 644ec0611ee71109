"""Loading of exported programs from files that nobody vouches for: pickled objects could run anything."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .patch import is_tracing

__all__ = ["TensorsOnly", "load_tensors"]


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
