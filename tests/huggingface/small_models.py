"""Small models of transformers with random weights, by type and task."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from benchmarks._optimum_models import MODELS
from fxonnx._transformers.tasks import TASKS, Task, model_classes
from tests.models.torchvision_shim import import_torchvision

from .newer_types import NEWER_TYPES

with suppress(ModuleNotFoundError):  # the environment of optimum has none
    import_torchvision()

__all__ = ["TYPES", "main_task", "make_model", "make_vocoder", "tasks_of"]

_UNKNOWN = {"mctct"}
"""Types that transformers 5 does not have any more, or whose files are not written."""

TYPES = tuple(name for name in {**MODELS, **NEWER_TYPES} if name not in _UNKNOWN)


def _plain(options: Any) -> Any:
    """A copy in dicts and lists, which configurations may change."""
    if isinstance(options, Mapping):
        return {key: _plain(value) for key, value in options.items()}
    return list(map(_plain, options)) if isinstance(options, list) else options


def _config(model_type: str) -> Any:
    import transformers

    name = model_type if model_type in transformers.CONFIG_MAPPING else model_type.replace("-", "_")
    return transformers.CONFIG_MAPPING[name](**_plain({**MODELS, **NEWER_TYPES}[model_type]), architectures=[])


def tasks_of(model_type: str) -> list[Task]:
    """The tasks that transformers has a class of this type for."""
    return [task for task in TASKS.values() if _classes(task, _config(model_type))]


def main_task(model_type: str) -> Task:
    """The task that a type is known for: generation, unless it is an encoder, or else the first one."""
    generates = "encoder-decoder" if _config(model_type).is_encoder_decoder else "decoder"
    found = tasks_of(model_type)
    if generates == "decoder" and TASKS["fill-mask"] in found:
        return found[0]
    if model_type == "speecht5":
        return TASKS["text-to-audio"]  # as optimum exports it
    speech = [task for task in found if task.name == "automatic-speech-recognition" and generates == "encoder-decoder"]
    return next(iter([*speech, *(task for task in found if task.form == generates), *found]))


def _classes(task: Task, config: Any) -> list[Any]:
    return [each for name in task.auto_classes for each in model_classes(name, config)]


def make_model(model_type: str, task: Task) -> Any:
    """A model with random weights, of a size that makes its outputs depend on its inputs."""
    config = _config(model_type)
    torch.manual_seed(0)
    (model_class, *_) = _classes(task, config)
    if model_class.config_class is config.sub_configs.get("text_config"):
        config = config.text_config
    model = model_class(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and not name.startswith("audio_encoder."):  # whose weights have norms of their own
                parameter.normal_(0, 0.2)
        for name, buffer in model.named_buffers():
            if name.endswith("codebook.embed"):  # zeros would decode any tokens to the same sound
                buffer.normal_()
    return model


def make_vocoder() -> Any:
    """A vocoder of spectrograms of 8 mel bins."""
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    torch.manual_seed(0)
    sizes = {"upsample_rates": [2, 2], "upsample_kernel_sizes": [4, 4], "resblock_kernel_sizes": [3]}
    config = SpeechT5HifiGanConfig(
        **sizes, model_in_dim=8, upsample_initial_channel=16, resblock_dilation_sizes=[[1, 3]], initializer_range=0.2
    )
    return SpeechT5HifiGan(config).eval()
