"""What a model prints while it is captured and proved: nothing, in place of fake tensors and values of other runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from .patch import ValuePatch, written

__all__ = ["model_prints"]


def model_prints(*, shown: bool) -> AbstractContextManager[None]:
    """Drop inside the context what this thread prints to the standard streams; other threads and files get theirs.

    Args:
        shown: Print it instead; strict mode, which refuses ``print``, then captures the same models.
    """
    replaced = partial(_print, None if shown else threading.get_ident())
    return written((ValuePatch("builtins:print", replaced, "models print fake tensors, and each run of them again"),))


def _print(silent: int | None, original: Callable[..., None]) -> Callable[..., None]:
    """``print``, which writes nothing to the standard streams in one thread."""

    def printed(*values: Any, file: Any = None, **options: Any) -> None:
        if threading.get_ident() != silent or file not in (None, sys.stdout, sys.stderr):
            original(*values, file=file, **options)

    # TorchDynamo, which refuses ``print``, calls it instead of tracing it.
    printed._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return printed
