"""Atomic writing of a directory: a temporary directory beside it, then a rename."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from .._paths import not_written
from .._program.atomic_file import lock_file
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
    _remove_leftovers(above, out.name)
    with ExitStack() as stack:
        try:
            staging = stack.enter_context(_temporary_directory(above, out.name))
        except OSError as error:
            raise not_written(f"{out} cannot be written", out, error) from error
        yield staging
        try:
            (publish or _publish)(staging, out)
        except OSError as error:
            raise not_written(f"{out} cannot be written", out, error) from error


@contextmanager
def _temporary_directory(above: Path, name: str) -> Iterator[Path]:
    """A locked directory, which is removed on exit."""
    with ExitStack() as stack:
        while True:
            directory = above / f".{name}.{secrets.token_hex(4)}.tmp"
            directory.mkdir()
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            stack.enter_context(_locked(directory))
            # Before it was locked, a concurrent export may have removed it as a leftover.
            if directory.exists():
                break
        yield directory


def _remove_leftovers(above: Path, name: str) -> None:
    """Remove the temporary directories of killed exports to the same destination, which nobody has locked."""
    pattern = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{8}}\.tmp")
    for leftover in [path for path in above.glob(".*.tmp") if pattern.fullmatch(path.name)]:
        with _locked(leftover, wait=False) as is_locked:
            if is_locked:
                shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def _locked(directory: Path, *, wait: bool = True) -> Iterator[bool]:
    """Lock a directory inside the context; yield whether it is locked, which no directory is on Windows."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError:  # on Windows, or it is gone
        yield False
        return
    try:
        yield lock_file(descriptor, wait=wait)
    finally:
        os.close(descriptor)


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
