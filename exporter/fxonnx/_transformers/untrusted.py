"""Checkpoints from anyone: no name in their configurations is executed, and their sizes fit their files."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ..errors import ArgumentError, ExportError
from .core import check_places, read_json, relative_place

__all__ = ["check_checkpoint", "check_size", "check_weights", "loading", "read_settings"]

_PASS_OBJECT = "load it yourself, if you trust it, and pass the object"
_ATTENTION = frozenset({"eager", "sdpa", "flex_attention", *(f"flash_attention_{version}" for version in (2, 3, 4))})
_KNOWN: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "attn_implementation": _ATTENTION | {f"paged|{name}" for name in _ATTENTION},
        "experts_implementation": frozenset({"eager", "batched_mm", "grouped_mm"}),
    }
)
"""Setting to the implementations in transformers itself; of others, it loads kernels of a repository."""
_CODE = frozenset({"kernel_config", "megatron_config"})
"""Settings that name modules to import or kernels to load."""
_LIMITS: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"(^|_)(n_?)?(layers?|depths?|blocks|stages)$|^layers_block_type$"), 2_048),
    (re.compile(r"(^|_)experts$"), 4_096),
    (re.compile(r"^(num_labels|_num_labels)$"), 2**20),
    (re.compile(r"^(max_(source_|target_)?position(s|_embeddings)|n_positions|n_ctx)$"), 2**27),
    (re.compile(r"^(r|lora_r)$"), 2**14),
)
"""Keys of configurations to the largest number, which bounds the time in which a model is built."""
_COUNT_OF_LAYERS = re.compile(r"(num_)?((hidden|encoder|decoder)_)?layers|n_layers?|depth")
"""Keys of numbers of layers, which are not negative; an index of a layer, counted from the end, may be."""
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
_PARAMETERS_PER_BYTE = 8
_SMALL = 2**26
"""Parameters of a model that may have no weights in files, as buffers have none."""


def check_checkpoint(
    directory: Path, argument: str = "model", *, trust_remote_code: bool = False, hint: str = _PASS_OBJECT
) -> None:
    """Check the links, indices and configurations of a checkpoint before any of it is loaded."""
    check_places(directory, argument)
    for path in sorted((*directory.glob("*.json"), *directory.glob("*/*.json"))):
        check = _CHECKS.get(path.name)
        if check is not None:
            check(path, argument, None if trust_remote_code else hint)


def _check_configuration(path: Path, argument: str, hint: str | None) -> None:
    """Check the settings of a configuration and of those in it."""
    settings = read_settings(path, argument)
    names = settings.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ArgumentError(argument, f"{path} has architectures = {names!r}, which is not a list of names")
    remaining: list[tuple[str, Any]] = [("", settings)]
    while remaining:
        key, value = remaining.pop()
        if isinstance(value, dict):
            remaining += ((str(name), each) for name, each in value.items())
            if hint is not None:
                _check_code(path, argument, value, hint)
        elif isinstance(value, list):
            remaining += ((key, each) for each in value)
        elif isinstance(value, int) and not isinstance(value, bool):
            _check_number(path, argument, key, value)


def _check_code(path: Path, argument: str, settings: Mapping[str, Any], hint: str) -> None:
    """Reject settings that name code or another repository."""
    for key, value in settings.items():
        name = key.removeprefix("_").removesuffix("_internal")
        named = _texts(value) if name in _KNOWN else ()
        unknown = next((text for text in named if text not in _KNOWN[name]), None)
        if key in _CODE and value:
            unknown = str(value)
        # Backbones of timm have plain names; of another form are ids of the Hub, whose configuration is downloaded.
        if key == "backbone" and isinstance(value, str) and re.search("[/:]", value):
            unknown = value
        if unknown is not None:
            problem = f"{path} names {unknown!r} as {key}: code or another repository, which is not loaded"
            raise ArgumentError(argument, problem, hint=hint)


def _texts(value: Any) -> Iterator[str]:
    """The implementations in a setting, which has one for each part of a model or one for all."""
    if isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif value is not None:
        yield str(value)


def _check_number(path: Path, argument: str, key: str, value: int) -> None:
    limit = next((limit for form, limit in _LIMITS if form.search(key)), None)
    if limit is not None and value > limit:
        raise ArgumentError(argument, f"{path} has {key} = {value}, which is more than {limit}")
    if value < 0 and _COUNT_OF_LAYERS.fullmatch(key):
        raise ArgumentError(argument, f"{path} has {key} = {value}")


def _check_modules(path: Path, argument: str, _hint: str | None) -> None:
    """Check the places of the modules of sentence-transformers."""
    entries = read_json(path, argument)
    known = isinstance(entries, list) and all(isinstance(each, dict) for each in entries)
    if not known or not all(isinstance(each.get(key), str) for each in entries for key in ("type", "path")):
        raise ArgumentError(argument, f"{path} is not a list of modules with type and path")
    for entry in entries:
        check_places(relative_place(path, entry["path"], argument), argument)


def _check_tokenizer(path: Path, argument: str, _hint: str | None) -> None:
    """Check the names of the files of a tokenizer."""
    for name in map(str, read_settings(path, argument).get("fast_tokenizer_files") or ()):
        relative_place(path, name, argument)


def _check_pipeline(path: Path, argument: str, hint: str | None) -> None:
    """Check that the components of a pipeline are classes of transformers and Diffusers.

    Components of Diffusers' own pipelines have the name of the pipeline's module, which is not imported.
    """
    for name, entry in read_settings(path, argument).items():
        library = entry[0] if isinstance(entry, list) and entry else None
        if hint is not None and library is not None and library not in ("transformers", "diffusers"):
            is_own = name == "safety_checker" and library == "stable_diffusion"
            if not is_own:
                problem = f"{path} names {library!r} as {name}: code or another repository, which is not loaded"
                raise ArgumentError(argument, problem, hint=hint)


_CHECKS: Mapping[str, Callable[[Path, str, str | None], None]] = MappingProxyType(
    {
        "adapter_config.json": _check_configuration,
        "config.json": _check_configuration,
        "model_index.json": _check_pipeline,
        "modules.json": _check_modules,
        "tokenizer_config.json": _check_tokenizer,
    }
)


def check_size(directory: Path, model: torch.nn.Module) -> None:
    """Check that the weights of a model can be in the files of its checkpoint, before memory is allocated for them.

    A byte holds 8 parameters at most, of one bit.
    """
    count = sum(parameter.numel() for parameter in model.parameters())
    count += sum(buffer.numel() for buffer in model.buffers())
    size = sum(path.stat().st_size for pattern in _WEIGHTS for path in directory.rglob(pattern))
    if count > _PARAMETERS_PER_BYTE * size + _SMALL:
        raise ArgumentError(
            "model",
            f"{directory / 'config.json'} describes a model of {count:,} parameters, and the files with its weights "
            f"have {size:,} bytes",
            hint="check the sizes in config.json, and whether files are missing",
        )


def check_weights(place: Path, report: Mapping[str, Any], ignored: str | None = None, task: str = "") -> None:
    """Reject models of which transformers has chosen weights at random, except those with ``ignored`` in the name."""
    missing = sorted(name for name in report["missing_keys"] if ignored is None or ignored not in name)
    problems = [f"{place} has no weights for {missing[0]}"] if missing else []
    mismatched = sorted(report["mismatched_keys"])
    problems += [f"{name} has the shape {[*found]}, not {[*expected]}" for name, found, expected in mismatched[:1]]
    if problems:
        others = len(missing) + len(mismatched) - len(problems)
        more = f" and {others} more" if others else ""
        hint = "pass a model object if random weights are intended"
        if missing and task:
            more, hint = f"{more}, which {task} requires", f"choose another task, or {hint}"
        raise ArgumentError("model", f"{'; '.join(problems)}{more}", hint=hint)


@contextmanager
def loading(place: Any, argument: str = "model", *, hint: str | None = None) -> Iterator[None]:
    """Report errors of libraries that load files of any content in the body as an error of the argument."""
    try:
        yield
    except ExportError:
        raise
    except pickle.UnpicklingError as error:
        problem = f"{place} cannot be loaded: its weights are pickled with objects that could execute code"
        raise ArgumentError(
            argument, problem, hint="convert the weights to safetensors where you trust them"
        ) from error
    except Exception as error:
        is_described = isinstance(error, (OSError, ValueError, ImportError)) and str(error)
        reason = str(error) if is_described else f"{type(error).__name__}: {error}"
        raise ArgumentError(argument, f"{place} cannot be loaded: {reason}", hint=hint) from error


def read_settings(path: Path, argument: str = "model") -> dict[str, Any]:
    """Read a JSON file with an object."""
    found = read_json(path, argument)
    if not isinstance(found, dict):
        raise ArgumentError(argument, f"{path} is not a JSON object of settings")
    return found
