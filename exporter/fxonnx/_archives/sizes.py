"""The size of an archive once it is decompressed, which its reader allocates."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO

from .contents import UnsafeContentError

__all__ = ["check_archive_size"]

_BYTES = 2**30
_RATIO = 8
"""torch stores entries without compression; compressed again, weights become a little smaller."""
_ZIP = b"PK\x03\x04"


def check_archive_size(path: Path) -> None:
    """Check that a file does not decompress to more than 1 GiB and 8 times its size; others than archives may be any.

    Args:
        path: The file.

    Raises:
        UnsafeContentError: If it does, or an archive in it does.
    """
    try:
        with path.open("rb") as file:
            _check(file, path.stat().st_size, "archive", may_nest=True)
    except (OSError, RuntimeError, NotImplementedError, zipfile.BadZipFile):
        return  # which its reader reports


def _check(file: IO[bytes], size: int, name: str, *, may_nest: bool) -> None:
    """Check an archive, and those in it, of which torch writes one for weights that are no plain tensors."""
    is_archive = file.read(len(_ZIP)) == _ZIP
    file.seek(0)
    if not is_archive:
        return
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        total, limit = sum(entry.file_size for entry in entries), max(_BYTES, _RATIO * size)
        if total > limit:
            problem = f"{size:,} bytes that decompress to {total:,}, which is more than {limit:,}"
            raise UnsafeContentError(name, problem)
        for entry in entries if may_nest else ():
            with archive.open(entry) as content:
                _check(content, entry.file_size, entry.filename, may_nest=False)
