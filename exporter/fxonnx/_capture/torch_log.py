"""torch's own log during a capture: tracebacks of errors that the capture itself reports, in the user's words."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["held_torch_log"]


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

    Yields:
        The texts, filled inside the context.
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
