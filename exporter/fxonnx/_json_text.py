"""JSON texts of files, which may have any content."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["parse_json"]


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Args:
        text: The text.

    Raises:
        ValueError: If it is not JSON, or nested deeper than Python can parse.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
