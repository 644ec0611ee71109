"""Paths that users pass."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import ArgumentError

__all__ = ["is_file", "path_of"]


def path_of(value: str | os.PathLike[str], argument: str) -> Path:
    """Return a path that the user passed.

    Args:
        value: The path.
        argument: Name of the argument, for the error.

    Raises:
        ArgumentError: If no file can have it.
    """
    text = os.fspath(value)
    if not isinstance(text, str):
        raise ArgumentError(argument, f"expected the path as str, got {type(text).__name__}", hint="os.fsdecode(path)")
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        raise ArgumentError(argument, f"{text!a} is not the name of a file") from None
    if b"\0" in encoded:
        raise ArgumentError(argument, f"{text!r} is not the name of a file: it has a null byte")
    return Path(text)


def is_file(path: Path, argument: str) -> bool:
    """Whether there is a file at a path.

    Args:
        path: The path.
        argument: Name of the argument, for the error.

    Raises:
        ArgumentError: If the path cannot be looked up.
    """
    try:
        return path.is_file()
    except OSError as error:
        raise ArgumentError(argument, f"{path} cannot be read: {error.strerror or error}") from error
