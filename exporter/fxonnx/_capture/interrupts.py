"""Ctrl-C during a capture: torch's C++ terminates the process if a signal handler raises below some of its functions.

The handler that is installed during a capture only counts. Safe points, in which only Python and C++ that passes
exceptions on are on the stack, call the previous handler, which usually raises KeyboardInterrupt.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

__all__ = ["deferred_interrupts", "interruption_point", "run_node"]

_Handler = Callable[[int, "FrameType | None"], Any]


class _Interrupts:
    """The interrupts that wait for a safe point.

    Args:
        handler: The handler that they are for.
    """

    def __init__(self, handler: _Handler) -> None:
        self._handler = handler
        self._waiting = 0

    def add(self, number: int, frame: FrameType | None) -> None:
        """The handler during the capture."""
        self._waiting += 1

    def deliver(self) -> None:
        """Call the previous handler for each interrupt; those after one that raises wait on."""
        while self._waiting:
            self._waiting -= 1
            self._handler(signal.SIGINT, sys._getframe(1))


_interrupts: ContextVar[_Interrupts | None] = ContextVar("fxonnx_interrupts", default=None)


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Defer SIGINT inside the context to the next ``interruption_point``, or to the end of the context.

    Only the main thread handles signals; in others, and for a handler that is not one of Python, nothing changes.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(handler) or _interrupts.get() is not None:
        yield
        return
    interrupts = _Interrupts(handler)
    token = _interrupts.set(interrupts)
    signal.signal(signal.SIGINT, interrupts.add)
    try:
        yield
    finally:
        # The model may have installed another handler.
        if signal.getsignal(signal.SIGINT) == interrupts.add:
            signal.signal(signal.SIGINT, handler)
        _interrupts.reset(token)
        interrupts.deliver()


def interruption_point() -> None:
    """Call the handler of an interrupt that waits."""
    interrupts = _interrupts.get()
    if interrupts is not None:
        interrupts.deliver()


def run_node(original: Callable[..., Any], interpreter: Any, node: Any) -> Any:
    """``Interpreter.run_node``, an interruption point of the passes after the call of ``forward``."""
    interruption_point()
    return original(interpreter, node)
