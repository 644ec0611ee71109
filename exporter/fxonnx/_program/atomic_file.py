"""Atomic file writes: a temporary file, then a rename."""

from __future__ import annotations

import glob
import os
import secrets
import sys
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

if sys.platform != "win32":
    import fcntl

__all__ = ["AtomicFile", "lock_file", "remove_leftovers"]


class AtomicFile:
    """A temporary file in the directory of ``path`` that replaces ``path`` on ``commit`` and is removed otherwise.

    Args:
        path: Path of the file to write or replace.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: BinaryIO
        self._temporary = path
        self._committed = False

    def __enter__(self) -> AtomicFile:
        """Create and lock the temporary file, with the permissions of the file it replaces, if there is one."""
        while True:
            self._temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.tmp")
            self.file = self._temporary.open("xb")
            lock_file(self.file, wait=True)
            # Before it was locked, a concurrent save may have removed it as a leftover of a crash.
            if self._temporary.exists():
                break
            self.file.close()
        if self.path.exists():
            self._temporary.chmod(self.path.stat().st_mode & 0o777)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the temporary file and remove it unless it was committed."""
        self.file.close()
        if not self._committed:
            self._temporary.unlink(missing_ok=True)

    def sync(self) -> None:
        """Flush the file to disk (fsync)."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def commit(self) -> None:
        """Replace ``path`` atomically: readers see either the old file or the complete new one."""
        self.sync()
        if sys.platform == "win32":
            # Windows cannot rename an open file.
            self.file.close()
        os.replace(self._temporary, self.path)
        self._committed = True
        _sync_directory(self.path.parent)

    def remove_leftovers(self) -> None:
        """Remove temporary files of killed saves to the same path, and of external data beside it."""
        remove_leftovers(self.path.parent, f"{glob.escape(self.path.name)}*")


def remove_leftovers(directory: Path, names: str) -> None:
    """Remove temporary files of killed processes; those of running ones are locked.

    Args:
        directory: The directory that was to be written to.
        names: Pattern of the names of the files that were to be written.
    """
    for name in glob.glob(f".{names}.{'[0-9a-f]' * 8}.tmp", root_dir=directory):
        leftover = directory / name
        try:
            with leftover.open("rb") as file:
                if lock_file(file, wait=False):
                    leftover.unlink()
        except OSError:
            # Another process removed it first, or it is not ours to remove.
            continue


def lock_file(file: BinaryIO | int, *, wait: bool) -> bool:
    """Lock an open file until it is closed or the process ends.

    Args:
        file: The file, or the descriptor of a directory.
        wait: Whether to wait until another process has released it.

    Returns:
        Whether it is locked; False where locks are not supported, or another process has locked it.
    """
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sync_directory(directory: Path) -> None:
    """Flush a directory to disk, without which a rename in it may be lost in a crash."""
    if sys.platform == "win32":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
