"""Where a model comes from: a local directory, an id of the Hub, or an object with its processors."""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import ArgumentError, did_you_mean, kind_of
from .core import (
    CodedWeight,
    PackedWeight,
    ScaledWeight,
    StoredTensor,
    parts_of,
    read_weight_sources,
    scales_of_weights,
    warn_user,
)
from .extras import import_extra
from .hub import download, is_hub_id
from .meta import model_on_meta, without_weights
from .tasks import TASKS, Task, check_class, check_inputs, model_classes, task_by_name, task_of
from .untrusted import check_checkpoint, check_size, check_weights, loading, read_settings

__all__ = [
    "Source",
    "check_object",
    "checked_checkpoint",
    "find_checkpoint",
    "in_dtype",
    "load_source",
    "load_weights",
    "read_config",
    "use_generation_config",
    "without_progress",
]

_TRUST = "code in a checkpoint is run only with trust_remote_code=True"
_PROCESSORS = ("AutoTokenizer", "AutoImageProcessor", "AutoFeatureExtractor")
_PROCESSOR_FILES = {
    "AutoTokenizer": ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt"),
    "AutoImageProcessor": ("preprocessor_config.json", "processor_config.json"),
    "AutoFeatureExtractor": ("preprocessor_config.json", "processor_config.json"),
}


@dataclass(frozen=True)
class Source:
    """A model in evaluation mode with what belongs to it.

    Attributes:
        model: The model, in float32.
        task: Its task.
        processors: Tokenizer, image processor and feature extractor, as far as it has them.
        directory: The checkpoint, if it was loaded from one.
        vocoder: The user's argument: the model that makes sound of its spectrograms.
        has_attentions: The user's argument: whether the decoder returns its cross attentions.
    """

    model: Any
    task: Task
    processors: tuple[Any, ...]
    directory: Path | None
    vocoder: Any = None
    has_attentions: bool = False


def load_source(
    model: Any,
    task: str | None,
    processor: Any,
    revision: str | None = None,
    token: str | None = None,
    trust_remote_code: bool = False,
    with_weights: bool = True,
) -> Source:
    """Load a model and its processors; without weights, the parameters may be on the meta device."""
    if not isinstance(model, (str, os.PathLike)):
        check_object(model)
        if model.device.type not in ("cpu", "meta"):
            raise ArgumentError(
                "model", f"it is on {model.device}, and the examples are on the CPU", hint="call .cpu()"
            )
        found = task_of(model.config, type(model).__name__) if task is None else task_by_name(task)
        check_class(found, model)
        check_inputs(found, model, is_requested=task is not None)
        return Source(in_dtype(model, torch.float32), found, _processors(processor, None), None)
    directory = find_checkpoint(model, revision, token, trust_remote_code=trust_remote_code)
    config = read_config(directory, trust_remote_code=trust_remote_code)
    architecture = next(iter(getattr(config, "architectures", None) or ()), None)
    found = task_of(config, architecture) if task is None else task_by_name(task)
    loader = _loader(config, found, architecture, trust_remote_code)
    needs_weights = found.form == "image-text" or config.model_type == "speecht5"  # to compare, or join a vocoder's
    with_weights = with_weights or trust_remote_code or needs_weights
    loaded = None
    if not with_weights:
        with loading(directory):
            loaded = without_weights(directory, config, loader)
    if loaded is None:
        loaded, report = load_weights(directory, config, loader, torch.float32, trust_remote_code=trust_remote_code)
        check_weights(directory, report, ignored="pooler.", task=found.name)
    check_inputs(found, loaded, is_requested=task is not None)
    return Source(loaded, found, _processors(processor, directory, trust_remote_code), directory)


def check_object(model: Any) -> None:
    """Reject an object that is not a model of transformers, or has weights that cannot be exported."""
    if not isinstance(model, import_extra("transformers").PreTrainedModel):
        hint = "fxonnx.export is for other models" if isinstance(model, torch.nn.Module) else 'write "path/to/model"'
        expected = "expected a directory, an id of the Hub or a model of transformers"
        raise ArgumentError("model", f"{expected}, got {kind_of(model)}", hint=hint)
    _check_quantization(model)


def in_dtype(model: Any, dtype: torch.dtype) -> Any:
    """The model itself, or a copy if it is in training mode or has another dtype."""
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    return copy.deepcopy(model).eval().to(dtype) if model.training or dtypes - {dtype} else model


def find_checkpoint(
    model: str | os.PathLike[str], revision: str | None, token: str | None, *, trust_remote_code: bool = False
) -> Path:
    """The directory of a checkpoint, which is downloaded if ``model`` is an id of the Hub."""
    if not is_hub_id(model):
        return checked_checkpoint(Path(model), trust_remote_code=trust_remote_code)
    found = download(model, revision, token, trust_remote_code=trust_remote_code)
    if not (found / "config.json").is_file():
        raise ArgumentError("model", f"{model} on the Hub has no config.json beside its modules")
    return checked_checkpoint(found, trust_remote_code=trust_remote_code)


def checked_checkpoint(directory: Path, *, trust_remote_code: bool | None = None) -> Path:
    """A directory with a model, whose links and settings are checked; None if its code is never run."""
    if directory.is_file():
        raise ArgumentError("model", f"{directory} is a file", hint="pass a GGUF file, or the directory of the model")
    if not directory.is_dir():
        hint = did_you_mean(directory.name, (other.name for other in directory.parent.glob("*") if other.is_dir()))
        raise ArgumentError("model", f"directory {directory} does not exist", hint=hint)
    if not (directory / "config.json").is_file():
        hint = "pass a directory that save_pretrained or a download of the model has written"
        raise ArgumentError("model", f"{directory} has no config.json", hint=hint)
    if trust_remote_code is None:
        check_checkpoint(directory)
    else:
        check_checkpoint(directory, trust_remote_code=trust_remote_code, hint=_TRUST)
    return directory


def read_config(directory: Path, *, trust_remote_code: bool | None = None) -> Any:
    """The configuration of a checkpoint; None if its code is never run."""
    own = read_settings(directory / "config.json")
    try:
        with loading(directory):
            # Unless it is told not to, transformers asks in a terminal whether to run code of the checkpoint.
            return import_extra("transformers").AutoConfig.from_pretrained(
                directory, local_files_only=True, trust_remote_code=bool(trust_remote_code)
            )
    except ArgumentError as error:
        if not own.get("auto_map") or trust_remote_code:
            raise
        raise ArgumentError(
            "model",
            f"{directory} has a model of type {own.get('model_type')!r} with code of its own, which is not run",
            hint="load the model yourself with trust_remote_code=True and export it with fxonnx.export"
            if trust_remote_code is None
            else _TRUST,
        ) from error


def _loader(config: Any, task: Task, architecture: str | None, trust_remote_code: bool) -> Any:
    """The class of the checkpoint, if it is one of the task, or else the task's class."""
    transformers = import_extra("transformers")
    found = {name: model_classes(name, config) for name in task.auto_classes if hasattr(transformers, name)}
    own = [each for classes in found.values() for each in classes if each.__name__ == architecture]
    if own:
        return own[0]
    suitable = [name for name, classes in found.items() if classes]
    if suitable or trust_remote_code:
        return getattr(transformers, (suitable or [*found])[0])
    possible = [each.name for each in TASKS.values() if any(model_classes(name, config) for name in each.auto_classes)]
    raise ArgumentError(
        "task",
        f"transformers has no model of type {config.model_type!r} for {task.name}",
        hint=f"it has models for {', '.join(possible)}" if possible else None,
    )


def load_weights(
    directory: Path, config: Any, loader: Any, dtype: torch.dtype, *, trust_remote_code: bool = False
) -> tuple[Any, Mapping[str, Any]]:
    """Load a model with its weights, and the report of transformers about weights that are missing."""
    is_auto = hasattr(loader, "_model_mapping")
    own_code: dict[str, Any] = {"trust_remote_code": True} if is_auto and trust_remote_code else {}
    options = {"config": config, "dtype": dtype, "ignore_mismatched_sizes": True, "output_loading_info": True}
    state = None if own_code else _dequantized_checkpoint(directory, config, dtype)
    with loading(directory), without_progress():
        if not own_code:
            check_size(directory, model_on_meta(config, loader, dtype))
        if state is None:
            loaded, report = loader.from_pretrained(directory, local_files_only=True, **options, **own_code)
        else:
            model_class = model_classes(loader.__name__, config)[0] if is_auto else loader
            loaded, report = model_class.from_pretrained(None, state_dict=state, **options)
            use_generation_config(loaded, directory)
    _check_unused(directory, report["unexpected_keys"])
    _check_quantization(loaded)
    return loaded.eval(), report


def use_generation_config(model: Any, directory: Path) -> None:
    """Give a model that is made without its checkpoint the settings of generation in it, if there are any."""
    if (directory / "generation_config.json").is_file():
        found = import_extra("transformers").GenerationConfig.from_pretrained(directory, local_files_only=True)
        model.generation_config = found


def _processors(processor: Any, directory: Path | None, trust_remote_code: bool = False) -> tuple[Any, ...]:
    """The processors of a directory, or of an object, which may hold several."""
    if isinstance(processor, (str, os.PathLike)):
        directory, processor = Path(processor), None
        check_checkpoint(directory, "processor", trust_remote_code=trust_remote_code, hint=_TRUST)
    if processor is not None:
        parts = [getattr(processor, name, None) for name in ("tokenizer", "image_processor", "feature_extractor")]
        given: Iterable[Any] = processor if isinstance(processor, (tuple, list)) else (processor,)
        return tuple(part for part in parts if part is not None) or tuple(given)
    if directory is None:
        return ()
    return tuple(_stored_processors(directory, trust_remote_code))


def _stored_processors(directory: Path, trust_remote_code: bool) -> Iterator[Any]:
    transformers = import_extra("transformers")
    for name in _PROCESSORS:
        if not any((directory / file).is_file() for file in _PROCESSOR_FILES[name]):
            continue
        options = {"local_files_only": True, "trust_remote_code": trust_remote_code}
        try:
            with loading(directory):
                found = getattr(transformers, name).from_pretrained(directory, **options)
        except ArgumentError as error:
            # preprocessor_config.json belongs to one of the two; the other class does not know its type.
            if isinstance(error.__cause__, (OSError, ValueError, KeyError, ImportError, AttributeError)):
                continue
            raise
        yield found


@contextmanager
def without_progress() -> Iterator[None]:
    """transformers would show its progress also where the output is not a terminal."""
    logging = import_extra("transformers").utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


_OF_ACTIVATIONS = re.compile(r"\.(input|output|q|k|v)_(scale|zero_point)$")
"""Names of the scales of activations and caches, which stay floating-point numbers."""


def _dequantized_checkpoint(directory: Path, config: Any, dtype: torch.dtype) -> dict[str, torch.Tensor] | None:
    """Read all tensors of a quantized checkpoint; quantized weights are dequantized.

    Returns:
        The tensors by name; None if the checkpoint has no weights in a form that is read here.
    """
    if next(directory.glob("*.safetensors"), None) is None:
        return None
    try:
        found = read_weight_sources(directory)
    except ArgumentError as error:
        raise ArgumentError("model", f"{directory} cannot be loaded: {error.message}") from error
    kinds = (PackedWeight, ScaledWeight, CodedWeight)
    quantized = {name: tensor for name, tensor in found.items() if isinstance(tensor, kinds)}
    if not quantized:
        return None
    # transformers would require the library of the method.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    parts = {part for weight in quantized.values() if isinstance(weight, PackedWeight) for part in parts_of(weight)}
    parts |= {part for weight in quantized.values() if not isinstance(weight, PackedWeight) for part in weight.parts}
    _warn_of_bytes([weight for weight in quantized.values() if isinstance(weight, CodedWeight)], dtype)
    state = {
        name: tensor.load() if isinstance(tensor, StoredTensor) else tensor
        for name, tensor in found.items()
        if name not in parts
        and _OF_ACTIVATIONS.search(name) is None
        and isinstance(tensor, (StoredTensor, torch.Tensor))
    }
    return {**state, **{name: _dequantized(weight, dtype) for name, weight in quantized.items()}}


def _warn_of_bytes(weights: Sequence[CodedWeight], dtype: torch.dtype) -> None:
    """Warn that weights become larger, since ONNX Runtime cannot multiply by their codes."""
    forms = ", ".join(dict.fromkeys(weight.form for weight in weights))
    if forms:
        before, after = (sum(sizes) / 2**20 for sizes in zip(*(_sizes(each, dtype) for each in weights), strict=True))
        warn_user(
            f"the weights in {forms} are dequantized, since ONNX Runtime has no operator for them: {before:.1f} MiB "
            f"become {after:.1f} MiB of {dtype}, unless the export rounds them again to 4 or 8 bits"
        )


def _sizes(weight: CodedWeight, dtype: torch.dtype) -> tuple[int, int]:
    return weight.bytes, math.prod(weight.shape) * dtype.itemsize


def _dequantized(weight: PackedWeight | ScaledWeight | CodedWeight, dtype: torch.dtype) -> torch.Tensor:
    try:
        return weight.dequantized(dtype)
    except ValueError as error:
        raise ArgumentError("model", f"{weight.name!r} in {weight.path} cannot be read: {error}") from error


def _check_unused(directory: Path, unused: Iterable[str]) -> None:
    """Reject a checkpoint whose weights are quantized in a form that the loaded model has ignored."""
    found = scales_of_weights(unused)
    if found:
        others = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise ArgumentError(
            "model",
            f"the weights in {directory} are quantized in a form that is not supported: {found[0]}{others} is not used",
            hint="dequantize the checkpoint with the library that has quantized it, and save the model again",
        )


def _check_quantization(model: Any) -> None:
    """Reject a model of bitsandbytes, or whose quantization transformers has ignored while loading it."""
    layer = next((each for each in model.modules() if type(each).__module__.startswith("bitsandbytes.")), None)
    if layer is not None:
        raise ArgumentError(
            "model",
            f"it has weights that bitsandbytes has quantized, in a {type(layer).__name__}",
            hint="pass the directory that model.save_pretrained writes, or the result of model.dequantize()",
        )
    found = getattr(model.config, "quantization_config", None)
    if found is None or getattr(model, "hf_quantizer", None) is not None:
        return
    method = found.get("quant_method") if isinstance(found, dict) else getattr(found, "quant_method", None)
    raise ArgumentError(
        "model",
        f"its configuration has weights quantized by {method}, which transformers has loaded as they are stored",
        hint="pass the directory of the checkpoint, or a model without config.quantization_config if its weights are "
        "not quantized",
    )
