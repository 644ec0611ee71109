"""Atomic saving of models, one tensor at a time.

The model file is written to a temporary file and renamed. With external data there are two renames, and between them
the old model must still find its old data. Therefore new data never overwrites a file that the model at the
destination references: it is written to ``<name>.1.data`` if ``<name>.data`` is in use, and after the new model is in
place, data and model are moved to the usual name by link, rename and unlink. If the process is killed in between, the
data file has two hard links, which ONNX Runtime accepts and onnx.load rejects; the next save removes one of them.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import onnx_ir as ir

from fxonnx_translations._builder.initializers import has_content, sources_of

from .._lower.metadata import MetadataLevel
from .._paths import NO_PERMISSION, not_written, path_of
from ..errors import ArgumentError, SaveError, did_you_mean
from .atomic_file import AtomicFile
from .external_data import REFERENCE, SUFFIXES, ExternalData, ExternalDataFormat
from .protobuf_layout import (
    PROTOBUF_LIMIT,
    ModelLayout,
    lay_out_model,
    tensor_bytes,
    write_external_data,
    write_model,
)

__all__ = [
    "SINGLE_FILE_BYTES",
    "check_destination",
    "check_file",
    "check_values",
    "external_data_files",
    "may_reference",
    "save",
]

SINGLE_FILE_BYTES = 3 * 2**29  # 1.5 GiB: larger models are saved with external data unless specified otherwise


def save(
    model: ir.Model,
    destination: str | os.PathLike[str] | BinaryIO,
    *,
    include_initializers: bool = True,
    keep_initializers_as_inputs: bool = False,
    external_data: ExternalData = None,
    metadata: MetadataLevel | None = None,
) -> None:
    """Save a model; the model is not modified.

    Args:
        model: The model.
        destination: A path, or a file open for writing bytes. Of a link, the target is replaced.
        include_initializers: Whether the weights are stored; they are graph inputs otherwise.
        keep_initializers_as_inputs: Whether initializers are also graph inputs.
        external_data: Whether tensors above 256 bytes are stored in ``<name>.data``; None: above 1.5 GiB of weights;
            "safetensors": in ``<name>.safetensors``; REFERENCE: in ``<name>.data``, except for tensors that are in a
            safetensors file already.
        metadata: The level of the metadata that is stored; None for the model's.

    Raises:
        ArgumentError: If ``external_data`` has another value, or ``destination`` is neither a path nor a binary file.
        SaveError: If the model cannot be written; an existing file at the destination is then unchanged.
    """
    if external_data not in (None, True, False, "safetensors", REFERENCE):
        raise ArgumentError(
            "external_data",
            f'expected True, False, None, "safetensors" or fxonnx.REFERENCE, got {external_data!r}',
            hint=did_you_mean(external_data, ("safetensors",)),
        )
    render = partial(
        lay_out_model,
        model,
        include_initializers=include_initializers,
        keep_initializers_as_inputs=keep_initializers_as_inputs,
        metadata=metadata,
    )
    check_file(destination, "destination")
    if destination is None:
        raise ArgumentError("destination", "expected a path or a binary file, got None", hint='write "model.onnx"')
    if not isinstance(destination, (str, os.PathLike)):
        if external_data:
            raise SaveError("external data requires a path, not an open file", hint="save to a path")
        try:
            _save_to_file(destination, render(location=None))
        except OSError as error:  # of the file, or of external data that the model references
            raise SaveError(f"the model cannot be written to the file: {error}") from error
        return
    path = path_of(destination, "destination")
    check_destination(path)
    if external_data is None:
        external_data = include_initializers and tensor_bytes(model) > SINGLE_FILE_BYTES
    if path.is_symlink():
        path = _target(path, external_data)
    try:
        if external_data == REFERENCE:
            _save_to_path(path, partial(render, base=path.parent), "raw")
        elif external_data == "safetensors":
            _save_to_path(path, render, "safetensors")
        else:
            _save_to_path(path, render, "raw" if external_data else None)
    except OSError as error:
        raise not_written(f"{path} cannot be written", path, error, needed=tensor_bytes(model)) from error


def _target(link: Path, external_data: ExternalData) -> Path:
    """The file that a link leads to, which is replaced, as by ``open(link, "wb")``."""
    target = Path(os.path.realpath(link))
    if target.is_symlink():
        raise SaveError(f"{link} cannot be written: it is a link that leads to itself")
    if external_data:
        problem = f"{link} is a link, and external data would not be found next to it"
        raise SaveError(problem, hint=f"save to the file that it leads to, {target}")
    check_destination(target)
    return target


def check_values(tensors: Iterable[ir.TensorProtocol | None]) -> None:
    """Check that tensors have values; weights on the meta device and fake tensors have none.

    Raises:
        SaveError: If a tensor has no values.
    """
    missing = [str(source.name) for tensor in tensors for source in sources_of(tensor) if not has_content(source.raw)]
    if missing:
        names = list(dict.fromkeys(missing))
        have = "weight has" if len(names) == 1 else "weights have"
        raise SaveError(
            f"{len(names)} {have} no values (first: {', '.join(map(repr, names[:3]))}): the model was exported on the "
            "meta device or with fake tensors",
            hint="pass them: save(..., weights=<safetensors files or state_dicts>), or call apply_weights(state_dict)",
        )


def check_file(value: Any, argument: str) -> None:
    """Check that a value is a path or a file for writing bytes.

    Args:
        value: The value; None for no file.
        argument: The name of the argument, for the error.

    Raises:
        ArgumentError: If it is not.
    """
    if isinstance(value, io.TextIOBase):
        raise ArgumentError(argument, "the file is open for writing text", hint='open it with mode "wb"')
    if getattr(value, "closed", False):
        raise ArgumentError(argument, "the file is closed", hint="save the model before the file is closed")
    if isinstance(value, str | os.PathLike):
        path_of(value, argument)
        return
    methods = ("write", "tell", "seek", "truncate")
    if value is not None and not all(hasattr(value, name) for name in methods):
        hint = "pass keyword inputs of forward as kwargs=" if isinstance(value, dict) else None
        hint = "os.fsdecode(path)" if isinstance(value, bytes) else hint
        hint = "the order is export(model, args, path)" if isinstance(value, tuple) else hint
        raise ArgumentError(argument, f"expected a path or a binary file, got {type(value).__name__}", hint=hint)


def check_destination(path: Path) -> None:
    """Check that a file can be written to ``path``.

    Raises:
        SaveError: If it cannot.
    """
    try:
        problem, hint = _problem(path)
    except OSError as error:
        raise not_written(f"{path} cannot be written", path, error) from error
    if problem:
        raise SaveError(f"{path} cannot be written: {problem}", hint=hint)


def _problem(path: Path) -> tuple[str, str | None]:
    directory = path.parent
    if not directory.exists():
        hint = "pass os.path.expanduser(path)" if str(path).startswith("~") else "create it first"
        return f"directory {directory} does not exist", hint
    if path.is_dir():
        return "it is a directory", "specify the name of a file"
    if not directory.is_dir():
        return f"{directory} is not a directory", "specify a file in a directory"
    if path.exists() and not path.is_file():
        return "it is not a regular file", None
    if not os.access(path if path.exists() else directory, os.W_OK):
        return NO_PERMISSION
    return "", None


def _save_to_file(file: BinaryIO, layout: ModelLayout) -> None:
    _check(layout, hint="save to a path, so that the weights are stored as external data")
    with contextlib.ExitStack() as on_failure:
        start = file.tell()
        on_failure.callback(file.truncate)
        on_failure.callback(file.seek, start)
        write_model(file, layout, layout.written_bytes())
        on_failure.pop_all()


def _check(layout: ModelLayout, hint: str) -> None:
    if layout.size > PROTOBUF_LIMIT:
        raise SaveError(
            f"the model has {layout.size / 2**30:.1f} GiB, and a single ONNX file must stay below 2 GiB", hint=hint
        )
    check_values(piece for piece in layout.pieces if not isinstance(piece, bytes))
    check_values(tensor for _, tensor in layout.external.tensors)


def _save_to_path(path: Path, render: Callable[..., ModelLayout], format: ExternalDataFormat | None) -> None:
    used = {data for data in external_data_files(path) if may_reference(path, data.name)}
    data: Path | None = None
    if format is not None:
        render = partial(render, format=format)
        data = next(candidate for candidate in _data_names(path, format) if candidate not in used)
    layout = render(location=None if data is None else data.name)
    _check(layout, hint="omit external_data, or pass external_data=True")
    written = layout.written_bytes()
    with AtomicFile(path) as model_file:
        if data is not None and layout.external.tensors:
            with AtomicFile(data) as data_file:
                write_external_data(data_file.file, layout.external, written)
                write_model(model_file.file, layout, written)
                model_file.sync()
                data_file.commit()
            with _removed_on_failure(data):
                model_file.commit()
        else:
            write_model(model_file.file, layout, written)
            model_file.commit()
        model_file.remove_leftovers()
    for old in used:
        if old.resolve() not in layout.referenced:
            old.unlink(missing_ok=True)
    if data is None or format is None or not layout.external.tensors:
        return
    usual = next(_data_names(path, format))
    if data != usual and usual.resolve() not in layout.referenced:
        _rename_external_data(path, data, usual, render(location=usual.name))


def _data_names(path: Path, format: ExternalDataFormat) -> Iterator[Path]:
    suffix = SUFFIXES[format]
    yield path.with_name(f"{path.name}.{suffix}")
    for number in itertools.count(1):
        yield path.with_name(f"{path.name}.{number}.{suffix}")


def external_data_files(path: Path) -> list[Path]:
    """Return the existing external data files of a model; numbered ones remain only after a killed save."""
    return [data for format in SUFFIXES for data in itertools.islice(_data_names(path, format), 4) if data.is_file()]


def may_reference(path: Path, name: str) -> bool:
    """Whether the model at ``path`` may reference the external data file ``name``."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(name.encode()) >= 0


@contextlib.contextmanager
def _removed_on_failure(data: Path) -> Iterator[None]:
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(data.unlink, missing_ok=True)
        yield
        on_failure.pop_all()


def _rename_external_data(path: Path, data: Path, usual: Path, layout: ModelLayout) -> None:
    """Rename the data file by way of a hard link, so that the model finds its data at every moment."""
    with AtomicFile(path) as model_file:
        write_model(model_file.file, layout, layout.written_bytes())
        model_file.sync()
        try:
            os.link(data, usual)
        except OSError:
            # The file system has no hard links: the model stays valid with the numbered data file.
            return
        with _removed_on_failure(usual):
            model_file.commit()
    data.unlink()
