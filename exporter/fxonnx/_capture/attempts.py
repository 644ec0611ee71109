"""The attempts of a capture: each call of torch.export, and the change after the failure of the one before."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from .._progress import Counter
from .eager_runs import user_line

__all__ = ["Attempt", "AttemptLog", "held_torch_log"]


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


@dataclass(frozen=True)
class AttemptLog:
    """The attempts of an export so far.

    Attributes:
        attempts: They.
        shows_torch_log: Let torch log its warnings and errors, instead of recording them.
    """

    attempts: list[Attempt] = field(default_factory=list)
    shows_torch_log: bool = False

    @contextmanager
    def timed(self, change: str) -> Iterator[None]:
        """Record the body of the ``with`` statement as an attempt, which differs from the one before by a change."""
        Counter("attempts").add(len(self.attempts) + 1)
        failure, start = "", time.perf_counter()
        with nullcontext(()) if self.shows_torch_log else held_torch_log() as log:
            try:
                yield
            except BaseException as error:
                failure = next(iter(str(error).splitlines()), "") or type(error).__name__
                if isinstance(error, GuardOnDataDependentSymNode) or "data-dependent expression" in failure:
                    failure = "the value of a tensor has to be known"  # torch's text has its own symbols
                line = user_line(error)
                failure += f" at {line}" if line else ""
                raise
            finally:
                self.attempts.append(Attempt(change, time.perf_counter() - start, failure, tuple(log)))


class _Held(logging.Filter):
    """Holds back the warnings and errors of one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._thread = threading.get_ident()
        self._formatter = logging.Formatter("%(levelname)s %(name)s: %(message)s")

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the text of a warning or error instead of logging it."""
        if record.levelno < logging.WARNING or record.thread != self._thread:
            return True
        try:
            self.texts.append(self._formatter.format(record))
        except (TypeError, ValueError):  # logging itself reports wrong arguments and goes on
            self.texts.append(str(record.msg))
        return False


@contextmanager
def held_torch_log() -> Iterator[list[str]]:
    """Hold back the warnings and errors that torch prints; handlers of the user get them.

    The environment variable ``TORCH_LOGS`` asks for torch's log and disables this.
    """
    held = _Held()
    handlers = [] if os.environ.get("TORCH_LOGS") else list(_handlers())
    for handler in handlers:
        handler.addFilter(held)
    try:
        yield held.texts
    finally:
        for handler in handlers:
            handler.removeFilter(held)


def _handlers() -> Iterator[logging.Handler]:
    """The handlers that torch has added to its loggers, which have a formatter of torch."""
    for name, logger in logging.root.manager.loggerDict.copy().items():
        if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger):
            for handler in logger.handlers:
                if type(handler.formatter).__module__.partition(".")[0] == "torch":
                    yield handler
