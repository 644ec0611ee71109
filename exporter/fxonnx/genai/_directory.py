"""Atomic writing of a directory: a temporary directory beside it, then a rename."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .._program.saving import may_reference
from ..errors import SaveError

__all__ = ["LAST", "check_directory", "staged_directory", "write_json"]

_DATA = "weights.*.data"
"""Weights of the parts of a model; the name contains a digest of the content."""

LAST = "genai_config.json"
"""The file without which onnxruntime-genai does not load a directory."""


def write_json(path: Path, content: Any) -> None:
    """Write an indented JSON file."""
    path.write_text(json.dumps(content, indent=4) + "\n")


def check_directory(out: Path) -> None:
    """Check that a path may be a directory to write.

    Raises:
        SaveError: If there is a file.
    """
    if out.exists() and not out.is_dir():
        raise SaveError(f"{out} cannot be written: it is a file", hint="specify a directory")


@contextmanager
def staged_directory(out: Path, publish: Callable[[Path, Path], None] | None = None) -> Iterator[Path]:
    """Yield a temporary directory whose files are moved to ``out`` if the body succeeds.

    Other files in an existing ``out`` are kept.

    Args:
        out: The destination; its parents are created.
        publish: Moves the files from the temporary directory; by default ``genai_config.json`` is removed first and
            moved last.

    Raises:
        SaveError: If ``out`` is a file, or files cannot be written there.
    """
    out = out.absolute()
    check_directory(out)
    above = next(parent for parent in out.parents if parent.exists())
    staging = above / f".{out.name}.{secrets.token_hex(4)}.tmp"
    try:
        staging.mkdir()
    except OSError as error:
        raise SaveError(f"{out} cannot be written: {error.strerror or error}") from error
    try:
        yield staging
        try:
            (publish or _publish)(staging, out)
        except OSError as error:
            raise SaveError(f"{out} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _publish(staging: Path, out: Path) -> None:
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        os.replace(staging, out)
        return
    (out / LAST).unlink(missing_ok=True)
    new = sorted(staging.iterdir(), key=lambda path: path.name == LAST)
    before = set(out.glob(_DATA)) - {out / path.name for path in new}
    for path in new:
        os.replace(path, out / path.name)
    for data in before:
        if not any(may_reference(path, data.name) for path in out.glob("*.onnx")):
            data.unlink()
