"""Exports into the directory of the checkpoint: its safetensors files are the external data of the model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import REFERENCE, ONNXProgram
from .._program.checkpoints import StoredTensor, read_weight_sources

__all__ = ["keep_checkpoint_files", "save_beside_weights"]


def save_beside_weights(program: ONNXProgram, path: Path, checkpoint: Path | None) -> None:
    """Save a model, with references to the weights that a checkpoint has unchanged.

    Args:
        program: The program.
        path: The model file, in a temporary directory whose files are moved to the checkpoint.
        checkpoint: The directory of the checkpoint; None for a model that contains its weights.
    """
    files = [] if checkpoint is None else sorted(checkpoint.glob("*.safetensors"))
    with _linked(files, path.parent) as links:
        if links and _has_weights(program, links):
            program.save(path, weights=links, external_data=REFERENCE)
        else:
            program.save(path)


def keep_checkpoint_files(staging: Path, checkpoint: Path, written: tuple[str, ...]) -> None:
    """Remove files from a temporary directory that the checkpoint has already.

    Args:
        staging: The temporary directory.
        checkpoint: The directory of the checkpoint.
        written: Beginnings of the names of files that are replaced.
    """
    for path in staging.iterdir():
        if path.is_file() and (checkpoint / path.name).exists() and not path.name.startswith(written):
            path.unlink()


@contextmanager
def _linked(files: list[Path], directory: Path) -> Iterator[list[Path]]:
    """Hard links of files in another directory; none if a file is a symbolic link or the file system has no links."""
    links: list[Path] = []
    if not any(path.is_symlink() for path in files):
        try:
            for path in files:
                os.link(path, directory / path.name)
                links.append(directory / path.name)
        except OSError:
            for link in links:
                link.unlink()
            links = []
    yield links


def _has_weights(program: ONNXProgram, files: list[Path]) -> bool:
    """Whether files contain weights under their names, all of them with their shapes and dtypes.

    Weights that transformers combines when it loads a checkpoint have other names, and are stored with the model.
    """
    stored = read_weight_sources(files)
    weights = program.exported_program.state_dict
    pairs = [(stored[name], weights[name]) for name in program.weights.initializers if name in stored]
    return bool(pairs) and all(
        isinstance(source, StoredTensor) and (source.dtype, source.shape) == (weight.dtype, tuple(weight.shape))
        for source, weight in pairs
    )
