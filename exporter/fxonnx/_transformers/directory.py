"""Atomic writing of a directory, and the external data in it."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import onnx

from .. import REFERENCE, ONNXProgram
from ..errors import SaveError
from .core import StoredTensor, lock_file, may_reference, not_written, read_weight_sources

__all__ = [
    "LAST",
    "check_directory",
    "keep_checkpoint_files",
    "save_beside_weights",
    "split_external_data",
    "staged_directory",
    "write_json",
]

_DATA = "weights.*.data"
"""Weights of the parts of a model; the name contains a digest of the content."""

LAST = "genai_config.json"
"""The file without which onnxruntime-genai does not load a directory."""


def write_json(path: Path, content: Any) -> None:
    """Write an indented JSON file."""
    path.write_text(json.dumps(content, indent=4) + "\n")


def check_directory(out: Path) -> None:
    """Check that a path may be a directory to write."""
    if out.exists() and not out.is_dir():
        raise SaveError(f"{out} cannot be written: it is a file", hint="specify a directory")


@contextmanager
def staged_directory(out: Path) -> Iterator[Path]:
    """Yield a temporary directory whose files are moved to ``out`` if the body succeeds.

    Other files in an existing ``out`` are kept.
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
            _publish(staging, out)
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
    """Move a tree of files, and remove external data that no model references any more."""
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        os.replace(staging, out)
        return
    new = sorted((path.relative_to(staging) for path in staging.rglob("*") if path.is_file()), key=_order)
    models = [path for path in new if path.suffix == ".onnx"]
    # A directory without this file is not loaded while its models are replaced.
    if any(path.parent == Path() for path in models):
        (out / LAST).unlink(missing_ok=True)
    before = {data for path in models for form in ("_data*", ".data") for data in out.glob(f"{path}{form}")}
    shared = {*out.glob(_DATA)}
    for path in new:
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        os.replace(staging / path, out / path)
    for data in (before | shared) - {out / path for path in new}:
        if data in before or not any(may_reference(path, data.name) for path in out.glob("*.onnx")):
            data.unlink()


def _order(path: Path) -> tuple[bool, Path]:
    return path.name == LAST, path


def save_beside_weights(program: ONNXProgram, path: Path, checkpoint: Path | None) -> None:
    """Save a model, with references to the weights that a checkpoint has unchanged."""
    files = [] if checkpoint is None else sorted(checkpoint.glob("*.safetensors"))
    with _linked(files, path.parent) as links:
        if links and _has_weights(program, links):
            program.save(path, weights=links, external_data=REFERENCE)
        else:
            program.save(path)


def keep_checkpoint_files(staging: Path, checkpoint: Path, written: tuple[str, ...]) -> None:
    """Remove files from a temporary directory that the checkpoint has already."""
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


_CHUNK = 2_000_000_000
_BUFFER = 1 << 24


def split_external_data(path: Path, chunk: int = _CHUNK) -> None:
    """Move external data to model.onnx_data, model.onnx_data_1, ..., each below 2 GiB, as transformers.js reads it."""
    model = onnx.load(path, load_external_data=False)
    stored = sorted(_stored(model), key=lambda tensor: int(_entries(tensor)["offset"].value))
    if not stored:
        return
    source = path.with_name(_entries(stored[0])["location"].value)
    number, size = 0, 0
    with source.open("rb") as data:
        target = path.with_name(f"{path.name}_data").open("wb")
        try:
            for tensor in stored:
                entries = _entries(tensor)
                length = int(entries["length"].value)
                if size and size + length > chunk:
                    number, size = number + 1, 0
                    target.close()
                    target = path.with_name(f"{path.name}_data_{number}").open("wb")
                data.seek(int(entries["offset"].value))
                for _ in range(0, length, _BUFFER):
                    target.write(data.read(min(_BUFFER, length - (target.tell() - size))))
                entries["location"].value = Path(target.name).name
                entries["offset"].value = str(size)
                size += length
        finally:
            target.close()
    path.write_bytes(model.SerializeToString(deterministic=True))
    os.unlink(source)


def _stored(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The tensors whose data is in another file; weights are initializers of the main graph."""
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield tensor


def _entries(tensor: onnx.TensorProto) -> dict[str, onnx.StringStringEntryProto]:
    return {entry.key: entry for entry in tensor.external_data}
