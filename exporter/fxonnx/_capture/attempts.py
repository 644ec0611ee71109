"""The attempts of a capture: each call of torch.export, and the change after the failure of the one before."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from .._progress import Counter
from .eager_failures import user_line
from .torch_log import held_torch_log

__all__ = ["Attempt", "AttemptLog"]


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
                if isinstance(error, GuardOnDataDependentSymNode):
                    failure = "the value of a tensor has to be known"  # torch's text has its own symbols
                line = user_line(error)
                failure += f" at {line}" if line else ""
                raise
            finally:
                self.attempts.append(Attempt(change, time.perf_counter() - start, failure, tuple(log)))
