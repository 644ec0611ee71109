"""Example inputs of a model, and their dynamic axes by the names that optimum gives them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError
from .extras import import_extra

__all__ = [
    "IMAGE_SOURCES",
    "SPEECH_SOURCES",
    "EncoderInputs",
    "Sizes",
    "axes_of",
    "cast",
    "encoder_inputs",
    "input_names",
    "sample_inputs",
    "text_config",
]

_TEXT = {0: "batch_size", 1: "sequence_length"}
_IMAGE = {0: "batch_size", 2: "height", 3: "width"}


@dataclass(frozen=True)
class Sizes:
    """Sizes of example inputs.

    Attributes:
        batch: Rows of each input.
        tokens: Length of texts.
        scale: Factor of the sizes of images and the length of audio, relative to the configuration's.
        seed: Seed of the values.
    """

    batch: int = 2
    tokens: int = 9
    scale: float = 1.0
    seed: int = 0


AXES: Mapping[str, Mapping[int, str]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("input_ids", "attention_mask", "token_type_ids", "bbox", "position_ids", "decoder_input_ids"),
                *("states", "actions", "returns_to_go", "timesteps", "flattened_patches"),
            ),
            _TEXT,
        ),
        "pixel_values": _IMAGE,
        "pixel_mask": {0: "batch_size", 1: "height", 2: "width"},
        "input_values": {0: "batch_size", 1: "sequence_length"},
        "input_features": {0: "batch_size", 1: "feature_length"},
        "past_values": {0: "batch_size"},
    }
)


_TOGETHER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("input_ids", "flattened_patches"), ("attention_mask",)),
        "states": ("actions", "returns_to_go", "timesteps", "attention_mask"),
    }
)
"""Inputs that the processors of an input do not name, or that have no processor."""


def axes_of(name: str, value: Tensor, model: Any) -> dict[int, str]:
    """Dynamic axes of an input."""
    axes = dict(AXES.get(name, {0: "batch_size"}))
    if name in ("input_ids", "attention_mask", "token_type_ids") and value.ndim == 3:  # choices of a question
        axes = {0: "batch_size", 1: "num_choices", 2: "sequence_length"}
    if name == "input_features" and has_fixed_length(model):
        axes = {0: "batch_size"}
    if name == "pixel_values" and value.ndim == 5:  # frames of a video
        axes = {0: "batch_size", 3: "height", 4: "width"}
    if _compares_images_with_texts(model):
        axes[0] = "image_batch_size" if name.startswith("pixel") else "text_batch_size"
    return axes


def has_fixed_length(model: Any) -> bool:
    """Whether a model takes audio of one length only, as Whisper does."""
    return model.config.is_encoder_decoder and hasattr(model.get_encoder(), "conv1")


def _compares_images_with_texts(model: Any) -> bool:
    return hasattr(model, "logit_scale") and "pixel_values" in inspect.signature(model.forward).parameters


def text_config(model: Any) -> Any:
    """The configuration of the model that takes the texts of a model."""
    return getattr(model.config, "text_encoder", None) or model.config.get_text_config()


def cast(inputs: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Convert the floating-point tensors among inputs, which are float32 in the files."""
    return {
        name: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }


def input_names(model: Any, processors: Iterable[Any]) -> list[str]:
    """Names of the inputs of the exported model, in the order of forward.

    They are what the processors of the model return, or the usual processors of its type.
    """
    parameters = inspect.signature(model.forward).parameters
    wanted = {model.main_input_name}
    for processor in [*processors] or _usual_processors(model.config):
        wanted.update(processor.model_input_names)
    wanted.discard("inputs")  # of Perceiver, another name of its tokens or pixels
    if hasattr(model, "audio_encoder"):
        wanted -= {"input_values", "padding_mask"}  # MusicGen also continues a sound, which optimum's files do not
    for name, others in _TOGETHER.items():
        if name in wanted:
            wanted.update(others)
    is_image = "pixel_values" in wanted and "input_ids" not in parameters
    is_speech = "input_features" in wanted and model.config.is_encoder_decoder
    if "input_values" in wanted or is_image or is_speech:
        wanted.discard("attention_mask")  # nothing is padded, as in optimum's files
    if "bbox" in parameters:
        wanted.add("bbox")
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    wanted.update(name for name, each in parameters.items() if each.default is each.empty and each.kind in named)
    missing = [name for name in parameters if name in wanted and name not in _MAKERS]
    if missing:
        problem = f"{type(model).__name__} has the input {missing[0]!r}, for which no example can be made"
        raise ArgumentError("model", problem, hint="export it with fxonnx.export, which takes an example")
    return [name for name in parameters if name in wanted]


def _usual_processors(config: Any) -> list[Any]:
    """The classes of the processors of a model type."""
    transformers = import_extra("transformers")
    found = []
    for name in ("TOKENIZER_MAPPING", "IMAGE_PROCESSOR_MAPPING", "FEATURE_EXTRACTOR_MAPPING"):
        mapping = getattr(transformers, name)
        classes = mapping.get(type(config), None)
        candidates = [*classes.values()] if isinstance(classes, Mapping) else [classes]  # by their backend
        found += [each for each in candidates if _has_input_names(each)][-1:]
    return found


def _has_input_names(processor: Any) -> bool:
    try:
        return hasattr(processor, "model_input_names")
    except ImportError:  # it stands for a class whose library is not installed
        return False


def sample_inputs(model: Any, names: Iterable[str], sizes: Sizes) -> dict[str, Tensor]:
    """Example inputs with random values."""
    generator = torch.Generator().manual_seed(sizes.seed)
    return {name: _MAKERS[name](model, sizes, generator) for name in names}


def _input_ids(model: Any, sizes: Sizes, generator: torch.Generator) -> Tensor:
    config = text_config(model)
    vocabulary = getattr(config, "vocab_size", None) or 2
    special = {
        getattr(config, name, None) for name in ("pad_token_id", "bos_token_id", "eos_token_id", "mask_token_id")
    }
    allowed = torch.tensor([token for token in range(min(vocabulary, 1000)) if token not in special] or [0])
    shape = (sizes.batch, sizes.tokens)
    ids = allowed[torch.randint(len(allowed), shape, generator=generator)]
    end = getattr(config, "eos_token_id", None)
    if _compares_images_with_texts(model) and isinstance(end, int):
        ids[:, -1] = end  # the embedding of a text is the state of this token
    if type(model).__name__.endswith("ForMultipleChoice"):
        ids = ids[:, None].expand(-1, 3, -1).contiguous()
    return ids


def _attention_mask(model: Any, sizes: Sizes, generator: torch.Generator) -> Tensor:
    if "input_features" in inspect.signature(model.forward).parameters:
        features = _input_features(model, sizes, generator)
        return torch.ones(features.shape[:2], dtype=torch.int64)
    mask = torch.ones_like(_input_ids(model, sizes, generator))
    mask[-1, ..., -2:] = 0  # of the shorter text; padding on the right
    return mask


def _zeros(model: Any, sizes: Sizes, generator: torch.Generator) -> Tensor:
    return torch.zeros_like(_input_ids(model, sizes, generator))


def _bbox(model: Any, sizes: Sizes, generator: torch.Generator) -> Tensor:
    ids = _input_ids(model, sizes, generator)
    limit = getattr(model.config, "max_2d_position_embeddings", 1024)
    corners = torch.randint(1, max(2, limit // 2), (*ids.shape, 2), generator=generator)
    return torch.cat([corners, corners + 1], dim=-1)


def _pixel_values(model: Any, sizes: Sizes, generator: torch.Generator) -> Tensor:
    config = getattr(model.config, "vision_config", None) or model.config
    config = getattr(config, "encoder", config)
    if type(model).__name__.endswith("ForPoseEstimation"):  # which also reshapes features to this size
        config = config.backbone_config
    size = getattr(config, "image_size", None) or getattr(config, "input_size", None) or 64
    height, width = size if isinstance(size, (tuple, list)) else (size, size)
    channels = getattr(config, "num_channels", 3)
    is_video = hasattr(config, "num_frames") and "ForImageClassification" not in type(model).__name__  # Perceiver
    frames = (config.num_frames,) if is_video else ()
    shape = (sizes.batch, *frames, channels, int(height * sizes.scale), int(width * sizes.scale))
    return torch.randn(shape, generator=generator)


def _steps(of: str, model: Any, sizes: Sizes, generator: torch.Generator) -> Tensor:
    """The states, actions or rewards of each step of an episode, FLOAT (batch, steps, size)."""
    size = getattr(model.config, of, 1)
    return torch.randn(sizes.batch, sizes.tokens, size, generator=generator)


def _timesteps(model: Any, sizes: Sizes, generator: torch.Generator) -> Tensor:
    return torch.randint(model.config.max_ep_len, (sizes.batch, sizes.tokens), generator=generator)


def _flattened_patches(model: Any, sizes: Sizes, generator: torch.Generator) -> Tensor:
    """The row, the column and the pixels of each patch, FLOAT (batch, patches, 2 + pixels)."""
    config = model.config.vision_config
    pixels = torch.randn(sizes.batch, sizes.tokens, config.patch_embed_hidden_size, generator=generator)
    places = torch.randint(1, config.seq_len, (sizes.batch, sizes.tokens, 2), generator=generator)
    return torch.cat([places.to(pixels.dtype), pixels], dim=-1)


def _pixel_mask(model: Any, sizes: Sizes, generator: torch.Generator) -> Tensor:
    images = _pixel_values(model, sizes, generator)
    return torch.ones(images.shape[0], *images.shape[2:], dtype=torch.int64)


def _input_values(model: Any, sizes: Sizes, generator: torch.Generator) -> Tensor:
    config = model.config
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):  # a spectrogram of fixed length
        return torch.randn(sizes.batch, config.max_length, config.num_mel_bins, generator=generator)
    return torch.randn(sizes.batch, int(4000 * sizes.scale), generator=generator)


def _input_features(model: Any, sizes: Sizes, generator: torch.Generator) -> Tensor:
    config = model.config
    names = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim")
    bins = next((getattr(config, name) for name in names if getattr(config, name, None)), 80)
    if has_fixed_length(model):
        return torch.randn(sizes.batch, bins, 2 * config.max_source_positions, generator=generator)
    return torch.randn(sizes.batch, int(120 * sizes.scale), bins, generator=generator)


def _past_values(model: Any, sizes: Sizes, generator: torch.Generator) -> Tensor:
    config = model.config
    return torch.randn(sizes.batch, config.context_length, config.num_input_channels, generator=generator)


_MAKERS: Mapping[str, Callable[[Any, Sizes, torch.Generator], Tensor]] = MappingProxyType(
    {
        "input_ids": _input_ids,
        "attention_mask": _attention_mask,
        "token_type_ids": _zeros,
        "bbox": _bbox,
        "pixel_values": _pixel_values,
        "pixel_mask": _pixel_mask,
        "input_values": _input_values,
        "input_features": _input_features,
        "past_values": _past_values,
        "states": functools.partial(_steps, "state_dim"),
        "actions": functools.partial(_steps, "act_dim"),
        "returns_to_go": functools.partial(_steps, ""),
        "timesteps": _timesteps,
        "flattened_patches": _flattened_patches,
    }
)


_BATCH, _LENGTH = 2, 7


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
class EncoderInputs:
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


def encoder_inputs(model: Any) -> EncoderInputs:
    """An example of two rows, of which one is padded if the source is a text."""
    generator = torch.Generator().manual_seed(0)
    model_type = model.config.model_type
    shape = {**SPEECH_SOURCES, **IMAGE_SOURCES}.get(model_type)
    if shape is None:
        text = sample_inputs(model, ("input_ids", "attention_mask"), Sizes(_BATCH, _LENGTH))
        inputs = {key: value.to(model.device) for key, value in text.items()}
        return EncoderInputs(inputs, {key: {0: "batch", 1: "source"} for key in inputs}, (1, 2, 40))
    size = shape(model.config)
    values = torch.randn(_BATCH, *size, generator=generator).to(model.device, model.dtype)
    times = {1: "time"} if model_type in SPEECH_SOURCES else {}
    name = model.main_input_name
    return EncoderInputs(
        {name: values}, {name: {0: "batch", **times}}, tuple(size[0] * count + 1 for count in (1, 2, 5))
    )
