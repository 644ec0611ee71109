"""Files that appear under their name only when they are complete."""

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

__all__ = ["StagedFile"]


class StagedFile:
    """A temporary file beside ``path`` that takes its place on ``commit``; without it, nothing is left behind.

    Args:
        path: Where the file is to be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: BinaryIO
        self._temporary = path
        self._committed = False

    def __enter__(self) -> StagedFile:
        """Creates the temporary file; it has the mode that a new file, or the replaced one, has."""
        while True:
            self._temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.tmp")
            self.file = self._temporary.open("xb")
            _lock(self.file, wait=True)
            # Until it was locked, another save may have taken it for the left-over of a crash and removed it.
            if self._temporary.exists():
                break
            self.file.close()
        if self.path.exists():
            self._temporary.chmod(self.path.stat().st_mode & 0o777)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Removes the temporary file, unless it was committed."""
        self.file.close()
        if not self._committed:
            self._temporary.unlink(missing_ok=True)

    def sync(self) -> None:
        """Puts the bytes on the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def commit(self) -> None:
        """Takes the place of ``path``, which is at any time either the old file or this one."""
        self.sync()
        if sys.platform == "win32":
            # An open file can not be renamed there.
            self.file.close()
        os.replace(self._temporary, self.path)
        self._committed = True
        _sync_directory(self.path.parent)

    def remove_leftovers(self) -> None:
        """Removes temporary files that saves to the same path left behind when they were killed."""
        for name in glob.glob(f".{glob.escape(self.path.name)}.*.tmp", root_dir=self.path.parent):
            leftover = self.path.with_name(name)
            try:
                with leftover.open("rb") as file:
                    if _lock(file, wait=False):
                        leftover.unlink()
            except OSError:
                # Somebody else was quicker, or may not be disturbed.
                continue


def _lock(file: BinaryIO, *, wait: bool) -> bool:
    """Locks a file until it is closed, which a killed process does, too; False where that does not work."""
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sync_directory(directory: Path) -> None:
    """A rename is on the disk only when its directory is."""
    if sys.platform == "win32":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
