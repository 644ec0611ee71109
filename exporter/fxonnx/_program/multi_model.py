"""Several programs in one directory, with one file of weights."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, cast

import onnx_ir as ir

from fxonnx_translations._builder.initializers import TorchTensor, storage_key

from ..errors import ArgumentError, SaveError
from .atomic_file import StagedFile
from .external_data import arrange
from .onnx_program import ONNXProgram
from .protobuf_layout import Layout, layout, outside, write_layout, write_side, write_tensor
from .saving import check_destination, check_values, mentions, side_files

__all__ = ["save_all"]


def save_all(programs: Mapping[str, ONNXProgram], directory: str | os.PathLike[str]) -> list[Path]:
    """Saves programs as ``<name>.onnx``, and each tensor that several of them have once.

    All tensors above 256 bytes are in one file ``weights.<digest>.data``. It is complete before the models are put in
    place, and its name says what is in it: models that were there before keep finding theirs. Files of data that no
    model of the directory needs any more are removed.

    Args:
        programs: Name to program, such as the first step and the later steps of a language model.
        directory: An existing directory.

    Returns:
        The paths of the models, and that of the weights last.

    Raises:
        ArgumentError: If there are no programs, or a name is not that of a file in the directory.
        SaveError: If something can not be written; what was there before is then still there.
    """
    root = Path(directory)
    if not programs:
        raise ArgumentError("programs", "there are none")
    for name, program in programs.items():
        if not name or Path(name).name != name:
            raise ArgumentError("programs", f"{name!r} is no name of a file without a directory")
        check_destination(root / f"{name}.onnx")
        check_values(value.const_value for value in program.model.graph.initializers.values())
    try:
        return _save(programs, root)
    except OSError as error:
        raise SaveError(f"{root} can not be written: {error.strerror or error}") from error


def _save(programs: Mapping[str, ONNXProgram], root: Path) -> list[Path]:
    digests: dict[Hashable, str] = {}
    distinct: dict[str, ir.TensorProtocol] = {}
    names = {
        name: {key: _digest(tensor, digests) for key, tensor in outside(program.model).items()}
        for name, program in programs.items()
    }
    for name, program in programs.items():
        for key, tensor in outside(program.model).items():
            distinct.setdefault(names[name][key], tensor)
    side = arrange(distinct, "raw")
    data = root / f"weights.{hashlib.sha256(''.join(distinct).encode()).hexdigest()[:16]}.data"
    paths = [root / f"{name}.onnx" for name in programs]
    before = {
        file
        for path in paths
        for file in (*side_files(path), *root.glob("weights.*.data"))
        if mentions(path, file.name)
    }
    with ExitStack() as stack:
        if distinct:
            side_file = stack.enter_context(StagedFile(data))
            write_side(side_file.file, side)
        models = []
        for name, path in zip(programs, paths, strict=True):
            offsets = {key: side.offsets[digest] for key, digest in names[name].items()}
            model_file = stack.enter_context(StagedFile(path))
            laid_out: Layout = layout(programs[name].model, location=data.name, offsets=offsets)
            write_layout(model_file.file, laid_out)
            model_file.sync()
            models.append(model_file)
        if distinct:
            side_file.commit()
        for model_file in models:
            model_file.commit()
            model_file.remove_leftovers()
    for old in before - {data}:
        others = (file for file in root.iterdir() if file.suffix not in (".data", ".safetensors"))
        if not any(mentions(file, old.name) for file in others):
            old.unlink(missing_ok=True)
    return [*paths, data] if distinct else paths


def _digest(tensor: ir.TensorProtocol, known: dict[Hashable, str]) -> str:
    """A name for the content of a tensor, dtype and shape left out: bytes are bytes.

    Programs of one model share the tensors themselves, whose digests are taken once; what is derived from them is not.
    """
    key = storage_key(tensor.raw, str(tensor.name)) if isinstance(tensor, TorchTensor) else None
    if key is not None and key in known:
        return known[key]
    sink = _Sink()
    write_tensor(cast(BinaryIO, sink), tensor)
    digest = sink.hash.hexdigest()
    if key is not None:
        known[key] = digest
    return digest


class _Sink:
    """A file that keeps the hash of what is written."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self._length = 0

    def write(self, content: Any) -> int:
        # Some tensors write arrays of arrays of bytes.
        flat = memoryview(content).cast("B")
        self.hash.update(flat)
        self._length += len(flat)
        return len(flat)

    def tell(self) -> int:
        return self._length
