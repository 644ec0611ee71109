"""Saving: tensor by tensor, and all or nothing.

The model file is written beside its destination and renamed. With a side file there are two renames, and between
them the old model must still find its old data. So new data never takes the name of data that the model file now
at the destination mentions: it goes to ``<name>.1.data`` when ``<name>.data`` is in use, and once the new model is
in place, data and model move on to the usual name: link, rename, unlink. Killed between these, the data has two
names, which ONNX Runtime does not mind but onnx.load refuses; the next save, or removing one of them, settles it.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import onnx_ir as ir

from fxonnx_translations._builder.initializers import has_content, sources_of

from ..errors import ArgumentError, SaveError
from .atomic_file import StagedFile
from .external_data import REFERENCE, SUFFIXES, ExternalData, Form
from .protobuf_layout import PROTOBUF_LIMIT, Layout, external_bytes, layout, write_layout, write_side

__all__ = ["SINGLE_FILE_BYTES", "check_destination", "check_values", "mentions", "save", "side_files"]

SINGLE_FILE_BYTES = 3 * 2**29  # 1.5 GiB: above, weights go to a side file unless the caller says otherwise


def save(
    model: ir.Model,
    destination: str | os.PathLike[str] | BinaryIO,
    *,
    include_initializers: bool = True,
    keep_initializers_as_inputs: bool = False,
    external_data: ExternalData = None,
) -> None:
    """Writes a model; the model itself is only read.

    Args:
        model: The model.
        destination: A path, or a file open for writing bytes.
        include_initializers: Whether the weights are in the file; they are graph inputs if not.
        keep_initializers_as_inputs: Whether initializers are graph inputs, too.
        external_data: Whether tensors above 256 bytes go to ``<name>.data``; None: only above 1.5 GiB of weights.
            "safetensors": to ``<name>.safetensors``. REFERENCE: only what is in no safetensors file yet.

    Raises:
        ArgumentError: If ``external_data`` is something else.
        SaveError: If it can not be written; what was at the destination before is then still there.
    """
    if external_data not in (None, True, False, "safetensors", REFERENCE):
        raise ArgumentError(
            "external_data", f'expected True, False, None, "safetensors" or fxonnx.REFERENCE, got {external_data!r}'
        )
    render = partial(
        layout,
        model,
        include_initializers=include_initializers,
        keep_initializers_as_inputs=keep_initializers_as_inputs,
    )
    if not isinstance(destination, (str, os.PathLike)):
        if external_data:
            raise SaveError("external data needs a path, not an open file", hint="save to a path")
        _save_to_file(destination, render(location=None))
        return
    path = Path(destination)
    check_destination(path)
    if external_data is None:
        external_data = include_initializers and external_bytes(model) > SINGLE_FILE_BYTES
    try:
        if external_data == REFERENCE:
            _save_to_path(path, partial(render, base=path.parent), "raw")
        elif external_data == "safetensors":
            _save_to_path(path, render, "safetensors")
        else:
            _save_to_path(path, render, "raw" if external_data else None)
    except OSError as error:
        raise SaveError(f"{path} can not be written: {error.strerror or error}") from error


def check_values(tensors: Iterable[ir.TensorProtocol | None]) -> None:
    """Whether tensors have values: models on the meta device, or of fake tensors, have no weights.

    Raises:
        SaveError: If one has none.
    """
    missing = [str(source.name) for tensor in tensors for source in sources_of(tensor) if not has_content(source.raw)]
    if missing:
        names = list(dict.fromkeys(missing))
        raise SaveError(
            f"{len(names)} of the weights have no values, {', '.join(map(repr, names[:3]))} first: the model was "
            "exported on the meta device or with fake tensors",
            hint="pass them: save(..., weights=<safetensors files or state_dicts>), or call apply_weights(state_dict)",
        )


def check_destination(path: Path) -> None:
    """Finds out whether a file can be written to ``path``.

    Raises:
        SaveError: If not.
    """
    try:
        problem, hint = _problem(path)
    except OSError as error:
        raise SaveError(f"{path} can not be written: {error.strerror or error}") from error
    if problem:
        raise SaveError(f"{path} can not be written: {problem}", hint=hint)


def _problem(path: Path) -> tuple[str, str | None]:
    directory = path.parent
    if not directory.exists():
        return f"there is no directory {directory}", "create it first"
    if path.is_dir():
        return "it is a directory", "give the name of a file"
    if not directory.is_dir() or (path.exists() and not path.is_file()):
        return "it is not a regular file in a directory", None
    if not os.access(path if path.exists() else directory, os.W_OK):
        return "permission denied", None
    return "", None


def _save_to_file(file: BinaryIO, laid_out: Layout) -> None:
    _check(laid_out, hint="save to a path: the weights then go to a second file")
    start = file.tell()
    try:
        write_layout(file, laid_out)
    except BaseException:
        file.seek(start)
        file.truncate()
        raise


def _check(laid_out: Layout, hint: str) -> None:
    if laid_out.size > PROTOBUF_LIMIT:
        raise SaveError(
            f"the model has {laid_out.size / 2**30:.1f} GiB, and a single ONNX file must stay below 2 GiB", hint=hint
        )
    check_values(piece for piece in laid_out.pieces if not isinstance(piece, bytes))
    check_values(tensor for _, tensor in laid_out.side.tensors)


def _save_to_path(path: Path, render: Callable[..., Layout], form: Form | None) -> None:
    used = {side for side in side_files(path) if mentions(path, side.name)}
    side: Path | None = None
    if form is not None:
        render = partial(render, form=form)
        side = next(candidate for candidate in _side_names(path, form) if candidate not in used)
    laid_out = render(location=None if side is None else side.name)
    _check(laid_out, hint="leave external_data out, or pass external_data=True")
    with StagedFile(path) as model_file:
        if side is not None and laid_out.side.tensors:
            with StagedFile(side) as side_file:
                write_side(side_file.file, laid_out.side)
                write_layout(model_file.file, laid_out)
                model_file.sync()
                side_file.commit()
                side_file.remove_leftovers()
            with _removed_on_failure(side):
                model_file.commit()
        else:
            write_layout(model_file.file, laid_out)
            model_file.commit()
        model_file.remove_leftovers()
    for old in used:
        if old.resolve() not in laid_out.elsewhere:
            old.unlink(missing_ok=True)
    if side is None or form is None or not laid_out.side.tensors:
        return
    usual = next(_side_names(path, form))
    if side != usual and usual.resolve() not in laid_out.elsewhere:
        _rename_side_file(path, side, usual, render(location=usual.name))


def _side_names(path: Path, form: Form) -> Iterator[Path]:
    suffix = SUFFIXES[form]
    yield path.with_name(f"{path.name}.{suffix}")
    for number in itertools.count(1):
        yield path.with_name(f"{path.name}.{number}.{suffix}")


def side_files(path: Path) -> list[Path]:
    """The side files that exist; of the numbered ones, only a save killed half-way leaves any."""
    return [side for form in SUFFIXES for side in itertools.islice(_side_names(path, form), 4) if side.is_file()]


def mentions(path: Path, name: str) -> bool:
    """Whether the model at ``path`` may read the side file ``name``."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(name.encode()) >= 0


@contextlib.contextmanager
def _removed_on_failure(side: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        side.unlink(missing_ok=True)
        raise


def _rename_side_file(path: Path, side: Path, usual: Path, laid_out: Layout) -> None:
    """Gives the data its usual name by way of a second name for the same file, so that the model always finds it."""
    with StagedFile(path) as model_file:
        write_layout(model_file.file, laid_out)
        model_file.sync()
        try:
            os.link(side, usual)
        except OSError:
            # Not every file system has links; the model is complete as it is, under the other name.
            return
        with _removed_on_failure(usual):
            model_file.commit()
    side.unlink()
