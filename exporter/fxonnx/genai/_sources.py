"""The inputs of encoders: a text with a mask; audio or images, of one size in a batch, without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

__all__ = ["IMAGE_SOURCES", "SPEECH_SOURCES", "Source", "make_source"]

_BATCH, _TEXT = 2, 7


def _spectrum(config: Any) -> tuple[int, ...]:
    return (64, config.encoder_config.num_mel_bins)


def _samples(_config: Any) -> tuple[int, ...]:
    return (6400,)


def _pixels(config: Any) -> tuple[int, ...]:
    encoder = config.encoder
    size = encoder.image_size
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return (encoder.num_channels, height, width)


SPEECH_SOURCES: Mapping[str, Callable[[Any], tuple[int, ...]]] = MappingProxyType(
    {
        "canary": _spectrum,
        "cohere_asr": _spectrum,
        "moonshine": _samples,
        "moonshine_streaming": _samples,
        "speech_to_text": lambda config: (64, config.input_channels * config.input_feat_per_channel),
        "speecht5": _samples,
    }
)
"""Type of a model to the function from its configuration to the shape of one example, whose first axis is the time."""
IMAGE_SOURCES: Mapping[str, Callable[[Any], tuple[int, ...]]] = MappingProxyType({"vision-encoder-decoder": _pixels})
"""The same of models that read images."""


@dataclass(frozen=True)
class Source:
    """The inputs of an encoder.

    Attributes:
        inputs: An example by the names of parameters of the model.
        dynamic_shapes: Their dynamic dims.
        lengths: Sizes of a dynamic axis that the encoder is called with.
    """

    inputs: Mapping[str, Tensor]
    dynamic_shapes: Mapping[str, Mapping[int, str]]
    lengths: tuple[int, ...]

    @property
    def mask(self) -> Tensor | None:
        """The mask of the source, if it has one."""
        return self.inputs.get("attention_mask")


def make_source(model: Any) -> Source:
    """An example of two rows, of which one is padded if the source is a text.

    Args:
        model: An encoder-decoder model of transformers.
    """
    generator = torch.Generator().manual_seed(0)
    model_type = model.config.model_type
    shape = {**SPEECH_SOURCES, **IMAGE_SOURCES}.get(model_type)
    if shape is None:
        ids = torch.randint(3, model.config.get_text_config().vocab_size, (_BATCH, _TEXT), generator=generator)
        mask = torch.ones_like(ids)
        mask[1, -2:] = 0
        inputs = {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}
        return Source(inputs, {key: {0: "batch", 1: "source"} for key in inputs}, (1, 2, 40))
    size = shape(model.config)
    values = torch.randn(_BATCH, *size, generator=generator).to(model.device, model.dtype)
    times = {1: "time"} if model_type in SPEECH_SOURCES else {}
    name = model.main_input_name
    return Source({name: values}, {name: {0: "batch", **times}}, tuple(size[0] * count + 1 for count in (1, 2, 5)))
