"""Where a model comes from: a local directory, an id of the Hub, or an object with its processors."""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .._program.checkpoints import StoredTensor, read_weight_sources
from .._warnings import warn_user
from ..errors import ArgumentError, kind_of
from ..quantization.coded_weights import CodedWeight
from ..quantization.packed_weights import PackedWeight, parts_of
from ..quantization.scaled_weights import ScaledWeight, scales_of_weights
from .extras import import_extra
from .hub import download, is_hub_id
from .meta import model_on_meta, without_weights
from .tasks import TASKS, Task, check_class, check_inputs, model_classes, task_by_name, task_of
from .untrusted import check_checkpoint, check_size, loading

__all__ = [
    "Source",
    "check_quantization",
    "check_unused",
    "dequantized_checkpoint",
    "find_checkpoint",
    "load_source",
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
    """Load a model and its processors.

    Args:
        model: A local directory, an id of the Hub, or a model of transformers, which is left unchanged.
        task: The name of the task; None for the task of the model's class.
        processor: A tokenizer, image processor, feature extractor, or a processor with several of them; a directory
            with them; None for those in the model's directory.
        revision: Branch, tag or commit on the Hub.
        token: Token of the Hub.
        trust_remote_code: Run code that the checkpoint contains.
        with_weights: Load the weights. Otherwise, the parameters of a checkpoint in safetensors are on the meta device,
            if it has them under the names of the model.

    Raises:
        ArgumentError: If the model cannot be found or loaded, or its task is unknown.
    """
    transformers = import_extra("transformers")
    if not isinstance(model, (str, os.PathLike)):
        if not isinstance(model, transformers.PreTrainedModel):
            expected = "expected a directory, an id of the Hub or a model of transformers"
            hint = (
                "fxonnx.export is for other models" if isinstance(model, torch.nn.Module) else 'write "path/to/model"'
            )
            raise ArgumentError("model", f"{expected}, got {kind_of(model)}", hint=hint)
        if model.device.type not in ("cpu", "meta"):
            raise ArgumentError(
                "model", f"it is on {model.device}, and the examples are on the CPU", hint="call .cpu()"
            )
        found = task_of(model.config, type(model).__name__) if task is None else task_by_name(task)
        check_class(found, model)
        check_inputs(found, model, is_requested=task is not None)
        check_quantization(model)
        return Source(_in_float32(model), found, _processors(processor, None), None)
    directory = find_checkpoint(model, revision, token, trust_remote_code=trust_remote_code)
    check_checkpoint(directory, trust_remote_code=trust_remote_code, hint=_TRUST)
    with loading(directory, hint=_TRUST if _has_code(directory) else None):
        config = transformers.AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=trust_remote_code
        )
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
        loaded = _load(directory, config, found, loader, trust_remote_code)
    check_inputs(found, loaded, is_requested=task is not None)
    return Source(loaded, found, _processors(processor, directory, trust_remote_code), directory)


def find_checkpoint(
    model: str | os.PathLike[str], revision: str | None, token: str | None, *, trust_remote_code: bool = False
) -> Path:
    """The directory of a checkpoint, which is downloaded if ``model`` is an id of the Hub.

    Args:
        model: A local directory, or an id.
        revision: Branch, tag or commit on the Hub.
        token: Token of the Hub.
        trust_remote_code: Whether to download the code of a model as well.

    Raises:
        ArgumentError: If there is neither a directory nor a downloaded or accessible repository of this name.
    """
    directory = Path(model)
    if directory.is_dir():
        if not (directory / "config.json").is_file():
            hint = "pass a directory that save_pretrained or a download of the model has written"
            raise ArgumentError("model", f"{directory} has no config.json", hint=hint)
        return directory
    if directory.is_file():
        raise ArgumentError("model", f"{directory} is a file", hint="pass the directory of the model")
    if not is_hub_id(model):
        raise ArgumentError("model", f"directory {directory} does not exist")
    found = download(model, revision, token, trust_remote_code=trust_remote_code)
    if not (found / "config.json").is_file():
        raise ArgumentError("model", f"{model} on the Hub has no config.json beside its modules")
    return found


def _has_code(directory: Path) -> bool:
    return "auto_map" in (directory / "config.json").read_text(encoding="utf-8")


def _loader(config: Any, task: Task, architecture: str | None, trust_remote_code: bool) -> Any:
    """The class of the checkpoint, if it is one of the task, or else the task's class.

    Raises:
        ArgumentError: If transformers has no class of this type for the task.
    """
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


def _load(directory: Path, config: Any, task: Task, loader: Any, trust_remote_code: bool) -> Any:
    """Load the weights.

    Raises:
        ArgumentError: If they cannot be loaded, or the checkpoint does not have all of them.
    """
    is_auto = hasattr(loader, "_model_mapping")
    own_code: dict[str, Any] = {"trust_remote_code": True} if is_auto and trust_remote_code else {}
    options = {"config": config, "dtype": torch.float32, "ignore_mismatched_sizes": True, "output_loading_info": True}
    state = None if own_code else dequantized_checkpoint(directory, config, torch.float32)
    with loading(directory), without_progress():
        if not own_code:
            check_size(directory, model_on_meta(config, loader, torch.float32))
        if state is None:
            loaded, report = loader.from_pretrained(directory, local_files_only=True, **options, **own_code)
        else:
            model_class = model_classes(loader.__name__, config)[0]
            loaded, report = model_class.from_pretrained(None, state_dict=state, **options)
            if (directory / "generation_config.json").is_file():
                generation = import_extra("transformers").GenerationConfig
                loaded.generation_config = generation.from_pretrained(directory, local_files_only=True)
    check_unused(directory, report["unexpected_keys"])
    check_quantization(loaded)
    for name, found, expected in sorted(report["mismatched_keys"])[:1]:
        raise ArgumentError("model", f"{directory}: {name} has the shape {[*found]}, not {[*expected]}")
    missing = sorted(name for name in report["missing_keys"] if "pooler." not in name)
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ArgumentError(
            "model",
            f"{directory} has no weights for {missing[0]}{others}, which {task.name} requires",
            hint="choose another task, or pass a model object if random weights are intended",
        )
    return loaded.eval()


def _in_float32(model: Any) -> Any:
    """The model itself, or a copy if it is in training mode or has another dtype."""
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    if model.training or dtypes - {torch.float32}:
        return copy.deepcopy(model).eval().float()
    return model


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


def dequantized_checkpoint(directory: Path, config: Any, dtype: torch.dtype) -> dict[str, torch.Tensor] | None:
    """Read all tensors of a quantized checkpoint; quantized weights are dequantized.

    Args:
        directory: The directory of the checkpoint.
        config: The configuration of the model, which is not one of a quantized model afterwards.
        dtype: dtype of the quantized weights.

    Returns:
        The tensors by name; None if the checkpoint has no weights in a form that is read here.

    Raises:
        ArgumentError: If a weight cannot be read.
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


def check_unused(directory: Path, unused: Iterable[str]) -> None:
    """Reject a checkpoint whose weights are quantized in a form that the loaded model has ignored.

    Args:
        directory: The directory of the checkpoint.
        unused: Names of the tensors that the model does not use.

    Raises:
        ArgumentError: If one of them belongs to a quantized weight.
    """
    found = scales_of_weights(unused)
    if found:
        others = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise ArgumentError(
            "model",
            f"the weights in {directory} are quantized in a form that is not supported: {found[0]}{others} is not used",
            hint="dequantize the checkpoint with the library that has quantized it, and save the model again",
        )


def check_quantization(model: Any) -> None:
    """Reject a model of bitsandbytes, or whose quantization transformers has ignored while loading it.

    Args:
        model: The model.

    Raises:
        ArgumentError: If it does.
    """
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
