"""Checkpoints on the Hub: only the files that an export reads are downloaded, into the cache of huggingface_hub."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePath
from typing import Any

from ..errors import ArgumentError, did_you_mean
from .core import read_json
from .extras import import_extra

__all__ = ["download", "download_errors", "is_hub_id"]

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_SMALL = ("*.json", "*.txt", "*.model", "*.jinja", "*.spm", "*.tiktoken")
_INDEX = "*.index.json"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""The files that transformers loads, each also in parts with an index, in the order of its choice."""
_NOT_OF_THE_MODEL = ("consolidated*", "adapter_*")
_FOLDERS = ("additional_chat_templates",)
_MODULES = "modules.json"
_INVALID_TOKEN = "Invalid credentials in Authorization header"
_DOWNLOAD_AGAIN = "run it again: files that are complete are kept"


def is_hub_id(model: str | os.PathLike[str]) -> bool:
    """Whether a name can be an id of the Hub: it has the form of one, and is not the path of a file or directory."""
    return _ID.fullmatch(_name(model)) is not None and not Path(model).exists()


def _name(model: str | os.PathLike[str]) -> str:
    """The id as it is written, also where a path has other separators."""
    return model.as_posix() if isinstance(model, PurePath) else os.fspath(model)


def download_errors() -> tuple[type[Exception], ...]:
    """The errors of huggingface_hub and of the library that it makes requests with."""
    hub_errors = import_extra("huggingface_hub.errors")
    # HTTPError is the library's; without a connection, httpx raises it, and requests an OSError. hf_xet raises
    # RuntimeError.
    return (OSError, ValueError, RuntimeError, hub_errors.HTTPError)


def download(
    model: str | os.PathLike[str],
    revision: str | None,
    token: str | None,
    *,
    argument: str = "model",
    trust_remote_code: bool = False,
) -> Path:
    """Download the files of a model that an export reads, as far as they are not in the cache.

    Without a connection, the files in the cache are used if they are complete.
    """
    name = _name(model)
    hub = import_extra("huggingface_hub")
    errors = download_errors()

    def fetch(files: Iterable[str]) -> Path:
        patterns = [*map(glob.escape, files)]
        return Path(hub.snapshot_download(name, revision=revision, token=token, allow_patterns=patterns))

    try:
        found = hub.HfApi(token=token).model_info(name, revision=revision)
    except errors as error:
        cached = _cached(hub, name, revision)
        if cached is None:
            raise _described(error, name, revision, argument) from error
        return cached
    files = {each.rfilename for each in found.siblings or ()}
    if not files & {"config.json", _MODULES}:
        problem = f"{name} on the Hub has no config.json: it is not a model of transformers"
        raise ArgumentError(argument, problem, hint="pass the id of the model in the format of transformers")
    try:
        return _fetched(fetch, files, argument, trust_remote_code=trust_remote_code)
    except errors as error:
        if isinstance(error, ArgumentError):
            raise
        raise _described(error, name, revision, argument, is_begun=True) from error


def _fetched(
    fetch: Callable[[Iterable[str]], Path], files: set[str], argument: str, *, trust_remote_code: bool
) -> Path:
    """Download the small files, which say what the weights are, and then the weights."""
    code = {file for file in files if trust_remote_code and file.endswith(".py")}
    folders = ["", *_FOLDERS]
    if _MODULES in files:
        modules = read_json(fetch([_MODULES]) / _MODULES, argument)
        folders += _places(modules)
    small = code.union(*(_small_files(files, folder) for folder in folders))
    indices = {index for folder in folders for index in _chosen_index(files, folder)}
    directory = fetch(sorted(small | indices))
    weights = [file for folder in folders for file in _weights(files, folder, directory, argument)]
    return fetch(sorted({*small, *indices, *weights}))


def _places(modules: Any) -> Iterator[str]:
    """The folders of the modules of sentence-transformers; the content of the file is checked later."""
    for entry in modules if isinstance(modules, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("path"), str) and entry["path"]:
            yield entry["path"].strip("/")


def _inside(files: Iterable[str], folder: str) -> Iterator[str]:
    """The names of the files in a folder."""
    for file in files:
        place, _, name = file.rpartition("/")
        if place == folder:
            yield name


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _small_files(files: Iterable[str], folder: str) -> set[str]:
    """Configurations and files of tokenizers and processors."""
    return {
        _joined(folder, name)
        for name in _inside(files, folder)
        if any(fnmatch(name, pattern) for pattern in _SMALL) and not fnmatch(name, _INDEX)
    }


def _chosen_index(files: Iterable[str], folder: str) -> list[str]:
    """The index of weights in parts, if these are what transformers loads."""
    names = {*_inside(files, folder)}
    for name in _WEIGHTS:
        if name in names:
            return []
        if f"{name}.index.json" in names:
            return [_joined(folder, f"{name}.index.json")]
    return []


def _weights(files: Iterable[str], folder: str, directory: Path, argument: str) -> list[str]:
    """The files that transformers loads the weights from, or else all in safetensors."""
    names = {*_inside(files, folder)}
    for name in _WEIGHTS:
        if name in names:
            return [_joined(folder, name)]
        if f"{name}.index.json" in names:
            index = read_json(directory / folder / f"{name}.index.json", argument)
            shards = index.get("weight_map") if isinstance(index, dict) else None
            parts = dict.fromkeys(map(str, shards.values())) if isinstance(shards, dict) else {}
            return [_joined(folder, part) for part in parts]
    others = (name for name in names if name.endswith(".safetensors"))
    return [_joined(folder, name) for name in others if not any(fnmatch(name, each) for each in _NOT_OF_THE_MODEL)]


def _cached(hub: Any, name: str, revision: str | None) -> Path | None:
    """The directory in the cache; None if the model, or a file of it, is missing there."""
    try:
        found = hub.snapshot_download(
            name,
            revision=revision,
            local_files_only=True,
            allow_patterns=list(_SMALL),
            ignore_patterns=["*/*", _INDEX],
        )
    except download_errors():
        return None
    directory = Path(found)
    files = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    weights = _weights(files, "", directory, "model")
    is_elsewhere = _MODULES in files and "config.json" not in files
    is_complete = is_elsewhere or (bool(weights) and all(file in files for file in weights))
    return directory if is_complete or "model_index.json" in files else None


def _described(
    error: Exception, name: str, revision: str | None, argument: str, *, is_begun: bool = False
) -> ArgumentError:
    """The error of fxonnx for one of huggingface_hub, before the download has begun or while it runs."""
    error = _cause(error)
    hub_errors = import_extra("huggingface_hub.errors")
    constants = import_extra("huggingface_hub.constants")
    log_in = "run: hf auth login, or pass token= (--token)"
    similar = did_you_mean(name, (path.name for path in Path().glob("*") if path.is_dir()))
    if isinstance(error, hub_errors.GatedRepoError):
        page = f"{constants.ENDPOINT}/{name}"
        return ArgumentError(
            argument,
            f"access to {name} on the Hub is restricted",
            hint=f"accept its conditions on {page}, and {log_in}",
        )
    if isinstance(error, hub_errors.RevisionNotFoundError):
        problem = f"{name} on the Hub has no branch, tag or commit {revision!r}"
        return ArgumentError("revision", problem, hint="leave it out for the branch main")
    is_refused = _code_of(error) == 401  # also of models that do not exist, for anyone without a token
    if is_refused and _answer(error).headers.get("X-Error-Message") == _INVALID_TOKEN:
        return ArgumentError("token", "the Hub does not know it", hint="run: hf auth login")
    if is_refused or isinstance(error, hub_errors.RepositoryNotFoundError):
        problem = f"{name} is neither a directory nor a model on the Hub that is public or yours"
        hint = similar or f"check the name; for a private model, {log_in}"
        return ArgumentError(argument, problem, hint=hint)
    if is_begun:
        problem = f"the download of {name} has failed: {_first_line(error)}"
        return ArgumentError(argument, problem, hint=_DOWNLOAD_AGAIN)
    reason = "HF_HUB_OFFLINE is set" if isinstance(error, hub_errors.OfflineModeIsEnabled) else _first_line(error)
    return ArgumentError(
        argument,
        f"{name} is neither a directory nor complete in the cache of huggingface_hub, and it cannot be downloaded: "
        f"{reason}",
        hint=similar or f"on a machine with network access, run: hf download {name}",
    )


def _answer(error: Exception) -> Any:
    """The answer of the Hub; None if there was none."""
    return getattr(error, "response", None)


def _code_of(error: Exception) -> int | None:
    """The status of the answer of the Hub; None if there was none."""
    code = getattr(_answer(error), "status_code", None)
    return code if isinstance(code, int) else None


def _cause(error: Exception) -> Exception:
    """The error of the request: huggingface_hub raises another one from it if the file is not in the cache either."""
    cause = error.__cause__
    return cause if isinstance(error, FileNotFoundError) and isinstance(cause, Exception) else error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
