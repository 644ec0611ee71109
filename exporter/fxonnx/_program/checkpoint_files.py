"""The files of a checkpoint, which may come from anyone: nothing in its directory leads out of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._paths import parse_json
from ..errors import ArgumentError

__all__ = ["check_links", "check_places", "read_json", "relative_place"]

_INDEX = ".index.json"
_JSON_BYTES = 2**26
"""Of configurations and indices; those of the largest models have some megabytes."""


def check_places(directory: Path, argument: str) -> None:
    """Check that links and indices of a checkpoint lead to its own files.

    Args:
        directory: The directory of the checkpoint.
        argument: Name of the argument, for the error.

    Raises:
        ArgumentError: If one leads to another file.
    """
    for path in check_links(directory, argument):
        if path.name.endswith(_INDEX):
            content = read_json(path, argument)
            shards = content.get("weight_map") if isinstance(content, dict) else None
            for shard in dict.fromkeys(map(str, shards.values())) if isinstance(shards, dict) else ():
                relative_place(path, shard, argument)


def check_links(directory: Path, argument: str) -> Iterator[Path]:
    """The files of a directory and of its direct subdirectories, none of which may be a link to a file outside.

    A snapshot in the cache of the Hub consists of links to the blobs of its repository. Nothing reads hidden files.

    Args:
        directory: The directory.
        argument: Name of the argument, for the error.

    Raises:
        ArgumentError: If a file or directory in it is a link to one outside.
    """
    roots = _roots(directory)
    for folder, names, files in os.walk(directory):
        places = [Path(folder, name) for name in sorted((*names, *files)) if not name.startswith(".")]
        for path in places:
            if path.is_symlink() and not _is_inside(path, roots):
                problem = f"{path} is a link out of the checkpoint, to {os.path.realpath(path)}"
                raise ArgumentError(argument, problem, hint="copy the file into the directory, if it belongs there")
        names[:] = [name for name in names if not name.startswith(".") and Path(folder) == directory]
        yield from (path for path in places if path.is_file())


def relative_place(path: Path, place: str, argument: str) -> Path:
    """The file that a file of a checkpoint names, which is below its own directory.

    Args:
        path: The file that names the other one.
        place: The name.
        argument: Name of the argument, for the error.

    Raises:
        ArgumentError: If the other file is not there.
    """
    named = path.parent / place
    if "\0" in place or Path(place).is_absolute() or ".." in Path(place).parts:
        raise ArgumentError(argument, f"{path} names a file outside of its directory: {named}")
    if not _is_inside(named, _roots(path.parent)):
        raise ArgumentError(argument, f"{path} names a file outside of its directory: {os.path.realpath(named)}")
    return named


def _roots(directory: Path) -> tuple[str, ...]:
    """The directory, and the blobs of the repository if it is in a snapshot in the cache of the Hub."""
    root = Path(os.path.realpath(directory))
    snapshots = [above for above in (root, *root.parents) if above.parent.name == "snapshots"]
    return (str(root), *(str(above.parent.parent / "blobs") for above in snapshots[:1]))


def _is_inside(path: Path, roots: tuple[str, ...]) -> bool:
    target = os.path.realpath(path)
    return any(target == root or target.startswith(root.rstrip(os.sep) + os.sep) for root in roots)


def read_json(path: Path, argument: str) -> Any:
    """Read a JSON file of a checkpoint.

    Args:
        path: The file.
        argument: Name of the argument, for the error.

    Raises:
        ArgumentError: If it cannot be read, is not JSON, or has more than 64 MiB.
    """
    try:
        size = path.stat().st_size
        if size > _JSON_BYTES:
            raise ValueError(f"it has {size / 2**20:.0f} MiB, and at most {_JSON_BYTES / 2**20:.0f} are read")
        return parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ArgumentError(argument, f"{path} is not a JSON file: {error}") from error
