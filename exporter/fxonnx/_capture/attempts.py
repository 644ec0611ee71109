"""The attempts of a capture: each call of torch.export, and what was changed after the failure of the one before."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

__all__ = ["Attempt", "next_attempt", "recorded_attempts", "timed_attempt"]


@dataclass(frozen=True)
class Attempt:
    """One call of torch.export.

    Attributes:
        change: What differs from the attempt before; "" for the first one.
        seconds: Wall-clock time.
        failure: The first line of torch.export's error; "" if it captured the model.
    """

    change: str
    seconds: float
    failure: str = ""

    def __str__(self) -> str:
        return f"{self.change or 'first attempt'}: {self.failure or 'captured'} ({self.seconds:.2f} s)"


@dataclass
class _Recorder:
    """The attempts so far, and the changes for the next one."""

    attempts: list[Attempt] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)


_recorder: ContextVar[_Recorder | None] = ContextVar("fxonnx_attempts", default=None)


@contextmanager
def recorded_attempts(attempts: list[Attempt]) -> Iterator[None]:
    """Append the attempts inside the context to a list."""
    token = _recorder.set(_Recorder(attempts))
    try:
        yield
    finally:
        _recorder.reset(token)


def next_attempt(change: str) -> None:
    """State a change for the next attempt; several changes are joined."""
    recorder = _recorder.get()
    if recorder is not None:
        recorder.changes.append(change)


@contextmanager
def timed_attempt() -> Iterator[None]:
    """Record the body of the ``with`` statement as an attempt."""
    recorder = _recorder.get()
    if recorder is None:
        yield
        return
    change = ", ".join(dict.fromkeys(recorder.changes))
    recorder.changes.clear()
    failure, start = "", time.perf_counter()
    try:
        yield
    except BaseException as error:
        failure = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise
    finally:
        recorder.attempts.append(Attempt(change, time.perf_counter() - start, failure))
