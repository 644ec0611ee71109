"""Paths that users pass, and JSON texts of files, which may have any content."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

from ._display import bytes_text
from .errors import ArgumentError, SaveError, did_you_mean

__all__ = ["NO_PERMISSION", "is_file", "missing_file", "not_written", "parse_json", "path_of"]

NO_PERMISSION = ("permission denied", "write to a directory in which you may create files")
"""The problem and the hint for a destination that is not writable, or is on a device that is not."""

_NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_SPACE = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


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


def not_written(problem: str, place: Path, error: OSError, *, needed: int | None = None) -> SaveError:
    """The error for a file or directory that cannot be written, in the same words everywhere.

    Args:
        problem: The sentence without its reason: ``m.onnx cannot be written``.
        place: Its path.
        error: The error of the system.
        needed: The number of bytes that it takes, if it is known.
    """
    reason, hint = error.strerror or str(error), None
    if error.errno in _NO_PERMISSION:
        reason, hint = NO_PERMISSION
    elif error.errno in _NO_SPACE:
        above = next((parent for parent in place.absolute().parents if parent.exists()), None)
        free = "" if above is None else f", and {bytes_text(shutil.disk_usage(above).free)} are free"
        reason = "no space left on the device"
        hint = "write to another device" if needed is None else f"it takes about {bytes_text(needed)}{free}"
    return SaveError(f"{problem}: {reason}", hint=hint)


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
