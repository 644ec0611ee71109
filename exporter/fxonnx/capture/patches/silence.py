"""Messages of torch.export that do not help a user of fxonnx."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .patch import is_tracing

__all__ = ["WarningsOfTorch", "print_nothing"]

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
