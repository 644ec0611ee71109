"""The attempts of a capture: each call of torch.export, and the change after the failure of the one before."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass

from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from .._progress import Counter
from .eager_failures import user_line
from .torch_log import held_torch_log

__all__ = ["Attempt", "recorded_attempts", "timed_attempt"]


@dataclass(frozen=True)
class Attempt:
    """One call of torch.export.

    Attributes:
        change: The difference from the attempt before; "" for the first one.
        seconds: Wall-clock time.
        failure: The first line of torch.export's error, with the user's line; "" if it captured the model.
        log: The warnings and errors that torch logged.
    """

    change: str
    seconds: float
    failure: str = ""
    log: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.change or 'first attempt'}: {self.failure or 'captured'} ({self.seconds:.2f} s)"


_attempts: ContextVar[list[Attempt] | None] = ContextVar("fxonnx_attempts", default=None)
_shows_log: ContextVar[bool] = ContextVar("fxonnx_shows_log", default=False)


@contextmanager
def recorded_attempts(attempts: list[Attempt], *, shows_log: bool) -> Iterator[None]:
    """Append the attempts inside the context to a list.

    Args:
        attempts: The list.
        shows_log: Let torch log its warnings and errors, instead of recording them.
    """
    tokens = _attempts.set(attempts), _shows_log.set(shows_log)
    try:
        yield
    finally:
        _attempts.reset(tokens[0])
        _shows_log.reset(tokens[1])


@contextmanager
def timed_attempt(change: str) -> Iterator[None]:
    """Record the body of the ``with`` statement as an attempt.

    Args:
        change: The difference from the attempt before.
    """
    attempts = _attempts.get()
    Counter("attempts").add(1 if attempts is None else len(attempts) + 1)
    failure, start = "", time.perf_counter()
    with nullcontext(()) if _shows_log.get() else held_torch_log() as log:
        try:
            yield
        except BaseException as error:
            failure = next(iter(str(error).splitlines()), "") or type(error).__name__
            if isinstance(error, GuardOnDataDependentSymNode):
                failure = "the value of a tensor has to be known"  # torch's text has its own symbols
            line = user_line(error)
            failure += f" at {line}" if line else ""
            raise
        finally:
            if attempts is not None:
                attempts.append(Attempt(change, time.perf_counter() - start, failure, tuple(log)))
