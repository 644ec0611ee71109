"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(name: object, known: Iterable[object], rest: str | None = None) -> str | None:
    """Hint for a misspelled name: ``did you mean 'batch'?`` and the rest; only the rest if no known name is similar.

    Args:
        name: The name as the user wrote it.
        known: The valid names; values that are not strings are ignored.
        rest: Further text of the hint, such as the list of all valid names.
    """
    names = {one.casefold(): one for one in known if isinstance(one, str)}
    if not isinstance(name, str):
        return rest
    written = name.casefold()
    # An abbreviation, such as "opset" for "opset_version", is too short to be similar.
    close = difflib.get_close_matches(written, names, n=3) or [
        one for one in names if one.startswith(written) and written
    ]
    if not close:
        return rest
    similarity = {one: difflib.SequenceMatcher(None, one, written).ratio() for one in close}
    # Names that are clearly less similar than the best one are noise.
    best = [repr(names[one]) for one in names if similarity.get(one, 0) > max(similarity.values()) - 0.05]
    suggestion = f"did you mean {' or '.join(best)}?"
    return suggestion if rest is None else f"{suggestion} {rest}"
