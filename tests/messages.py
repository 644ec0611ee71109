"""The form of all messages of errors: readable, in the user's terms, with a way out."""

from __future__ import annotations

import re

from fxonnx import ExportError

__all__ = ["check_message"]

_RAW = re.compile(
    r"\b(?:u|zuf|zf|s)\d+\b|guard_or_|Proxy|BooleanAtom|RoundDecimal|unbacked|SymInt|suggested fix|TORCH_LOGS"
    r"|GuardOnDataDependent|FakeTensor",
    re.IGNORECASE,
)
"""No message shows them: torch's symbols, its advice, and classes of its tracer."""

_CHOICES = re.compile(
    r"expected (?:one of|True|'|names of|non-empty|a path)|got the keyword|does not exist|did you mean|it is |is not "
)
"""Messages that say what to write instead without a hint: they list the valid values, or name the right place."""


def check_message(error: BaseException) -> None:
    """Check the text of an error: at most 25 lines, no name of torch's tracer, and a hint or the valid values."""
    message = str(error)
    lines = message.splitlines()
    assert len(lines) <= 25, message
    assert max(map(len, lines)) < 400, message
    # The user's lines of code, which may have any names.
    written = "\n".join(line for line in lines if not re.match(r"\s*(at|in|node): ", line))
    assert not _RAW.search(written), message
    hint = error.hint if isinstance(error, ExportError) else None
    assert hint or _CHOICES.search(message), f"without a way out: {message}"
