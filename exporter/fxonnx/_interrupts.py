"""Signals during an export: an exception of a handler, such as KeyboardInterrupt or a time-out, arrives as itself.

torch's C++ terminates the process if a handler raises below some of its functions, a restoration would remain
incomplete, and code that handles any error would take a time-out for one of the model. The handlers that are installed
during an export only count. Safe points, in which only Python and C++ that passes exceptions on are on the stack, call
the handlers of before; they are called at once while the model runs in eager mode.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ._context_values import activated, active
from ._turns import undone_in_forks

__all__ = ["deferred_interrupts", "interruptible", "interruption_point", "run_node"]

_Handler = Callable[[int, "FrameType | None"], Any]


class _HandlerError(BaseException):
    """Carries an error of a handler past code that handles any Exception.

    Attributes:
        error: The error.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class _Interrupts:
    """The signals that wait for a safe point.

    Args:
        handlers: The handlers that they are for, by the number of the signal.

    Attributes:
        is_open: Whether the handlers are called at once.
    """

    def __init__(self, handlers: Mapping[int, _Handler]) -> None:
        self.is_open = False
        self._handlers = handlers
        self._waiting: list[int] = []

    def add(self, number: int, frame: FrameType | None) -> None:
        """The handler during the export."""
        if self.is_open:
            self._call(number, frame)
        else:
            self._waiting.append(number)

    def deliver(self) -> None:
        """Call the handler of each signal that waits; those after one that raises wait on."""
        while self._waiting:
            self._call(self._waiting.pop(0), sys._getframe(1))

    def restore(self) -> None:
        """Install the handlers of before, unless the model has installed others."""
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self.add:
                signal.signal(number, handler)

    def _call(self, number: int, frame: FrameType | None) -> None:
        """Call a handler."""
        try:
            self._handlers[number](number, frame)
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            raise _HandlerError(error) from None


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Defer signals inside the context to the next ``interruption_point``, or to the end of the context.

    Only the main thread handles signals; in others, and for handlers that are not of Python, nothing changes.

    Raises:
        BaseException: The exception of a handler.
    """
    if threading.current_thread() is not threading.main_thread() or active(_Interrupts) is not None:
        yield
        return
    found = {number: signal.getsignal(number) for number in signal.valid_signals()}
    interrupts = _Interrupts({number: handler for number, handler in found.items() if callable(handler)})
    failure: _HandlerError | None = None
    try:
        with undone_in_forks(interrupts.restore):
            for number, handler in found.items():
                if callable(handler):
                    signal.signal(number, interrupts.add)
            try:
                with activated(interrupts):
                    yield
            finally:
                interrupts.restore()
                interrupts.deliver()
    except _HandlerError as error:
        failure = error
    if failure is not None:
        raise failure.error from failure.error.__cause__


def interruption_point() -> None:
    """Call the handlers of the signals that wait."""
    interrupts = active(_Interrupts)
    if interrupts is not None:
        interrupts.deliver()


@contextmanager
def interruptible() -> Iterator[None]:
    """Call handlers at once inside the context, a run of the model or another long call of code that is not ours."""
    interrupts = active(_Interrupts)
    if interrupts is None:
        yield
        return
    before = interrupts.is_open
    try:
        interrupts.is_open = True
        interrupts.deliver()
        yield
    finally:
        interrupts.is_open = before


def run_node(original: Callable[..., Any], interpreter: Any, node: Any) -> Any:
    """``Interpreter.run_node``, an interruption point of the passes after the call of ``forward``."""
    interruption_point()
    return original(interpreter, node)
