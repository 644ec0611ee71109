"""Saving several programs in one directory with shared external data."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, cast

import onnx_ir as ir

from fxonnx_translations._builder.initializers import TorchTensor, storage_key

from .._lower.metadata import MetadataLevel
from .._paths import not_written, path_of
from .._progress import Counter
from .._public import public
from ..errors import ArgumentError
from .atomic_file import AtomicFile, remove_leftovers
from .external_data import lay_out_external_data
from .onnx_program import ONNXProgram
from .protobuf_layout import (
    ModelLayout,
    check_level,
    external_tensors,
    lay_out_model,
    tensor_bytes,
    write_external_data,
    write_model,
    write_tensor,
)
from .saving import check_destination, check_values, external_data_files, may_reference

__all__ = ["save_all"]

_DATA = "weights.*.data"


@public
def save_all(
    programs: Mapping[str, ONNXProgram], directory: str | os.PathLike[str], *, metadata: MetadataLevel | None = None
) -> list[Path]:
    """Save programs as ``<name>.onnx``, with each tensor that several of them share stored once.

    All tensors above 256 bytes are stored in one file ``weights.<digest>.data``. It is complete before the models are
    replaced, and its name contains a digest of its content, so that existing models keep their data. Data files that no
    model in the directory references any more are removed.

    Args:
        programs: Name to program, for example the prefill and decode steps of a language model.
        directory: An existing directory.
        metadata: Provenance of nodes in the files, as for ``ONNXProgram.save``.

    Returns:
        The paths of the models, followed by the path of the external data file.

    Raises:
        ArgumentError: If ``programs`` is empty, or a name is not a plain file name.
        SaveError: If a file cannot be written; existing files are then unchanged.
    """
    root = path_of(directory, "directory")
    if not programs:
        raise ArgumentError("programs", "expected at least one program, got none")
    for name, program in programs.items():
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise ArgumentError("programs", f"{name!r} is not a file name without a directory")
        path_of(name, "programs")
        check_destination(root / f"{name}.onnx")
        check_level(metadata, program.record.options.metadata)
        check_values(value.const_value for value in program.model.graph.initializers.values())
    try:
        return _save(programs, root, metadata)
    except OSError as error:
        needed = sum(tensor_bytes(program.model) for program in programs.values())
        raise not_written(f"{root} cannot be written", root / "model", error, needed=needed) from error


def _save(programs: Mapping[str, ONNXProgram], root: Path, metadata: MetadataLevel | None) -> list[Path]:
    digests: dict[Hashable, str] = {}
    distinct: dict[str, ir.TensorProtocol] = {}
    names = {
        name: {key: _digest(tensor, digests) for key, tensor in external_tensors(program.model).items()}
        for name, program in programs.items()
    }
    for name, program in programs.items():
        for key, tensor in external_tensors(program.model).items():
            distinct.setdefault(names[name][key], tensor)
    external = lay_out_external_data(distinct, "raw")
    data = root / f"weights.{hashlib.sha256(''.join(distinct).encode()).hexdigest()[:16]}.data"
    paths = [root / f"{name}.onnx" for name in programs]
    before = {
        file
        for path in paths
        for file in (*external_data_files(path), *root.glob(_DATA))
        if may_reference(path, file.name)
    }
    # The models without their weights are small, and are laid out when the weights are on the disk.
    written = Counter("bytes", external.size)
    with ExitStack() as stack:
        if distinct:
            data_file = stack.enter_context(AtomicFile(data))
            write_external_data(data_file.file, external, written)
        models = []
        for name, path in zip(programs, paths, strict=True):
            offsets = {key: external.offsets[digest] for key, digest in names[name].items()}
            model_file = stack.enter_context(AtomicFile(path))
            layout: ModelLayout = lay_out_model(
                programs[name].model, location=data.name, offsets=offsets, metadata=metadata
            )
            write_model(model_file.file, layout, Counter("bytes", layout.size))
            model_file.sync()
            models.append(model_file)
        if distinct:
            data_file.commit()
        for model_file in models:
            model_file.commit()
            model_file.remove_leftovers()
    remove_leftovers(root, _DATA)
    for old in before - {data}:
        others = (file for file in root.iterdir() if file.suffix not in (".data", ".safetensors"))
        if not any(may_reference(file, old.name) for file in others):
            old.unlink(missing_ok=True)
    return [*paths, data] if distinct else paths


def _digest(tensor: ir.TensorProtocol, cache: dict[Hashable, str]) -> str:
    """Return the digest of the bytes of a tensor, regardless of dtype and shape.

    Programs of one model share the storages of its weights, whose digests are cached; derived weights are not shared.
    """
    key = storage_key(tensor.raw, str(tensor.name)) if isinstance(tensor, TorchTensor) else None
    if key is not None and key in cache:
        return cache[key]
    file = _HashingFile()
    write_tensor(cast(BinaryIO, file), tensor)
    digest = file.hash.hexdigest()
    if key is not None:
        cache[key] = digest
    return digest


class _HashingFile:
    """A write-only file that hashes its content."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self._length = 0

    def write(self, content: Any) -> int:
        # Some tensors write multi-dimensional arrays.
        flat = memoryview(content).cast("B")
        self.hash.update(flat)
        self._length += len(flat)
        return len(flat)

    def tell(self) -> int:
        return self._length
