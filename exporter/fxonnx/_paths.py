"""Paths that users pass."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import ArgumentError, did_you_mean

__all__ = ["is_file", "missing_file", "path_of"]


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


def missing_file(path: Path, argument: str) -> ArgumentError:
    """The error for a path without a file.

    Args:
        path: The path.
        argument: Name of the argument, for the error.
    """
    if path.is_dir():
        return ArgumentError(argument, f"{path} is a directory", hint="specify the name of a file")
    alike = (other for other in path.parent.glob("*") if path.suffix in ("", other.suffix))
    others = (other.name for other in alike if other.is_file())
    return ArgumentError(argument, f"file {path} does not exist", hint=did_you_mean(path.name, others))
