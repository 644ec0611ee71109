"""Families of models: how each is recognized, loaded and exported."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from ..errors import ArgumentError
from ._sentence_modules import has_sentence_modules
from ._sources import IMAGE_SOURCES, SPEECH_SOURCES

__all__ = [
    "AUTO_CLASSES",
    "Family",
    "check_modalities",
    "family_of",
    "has_image_tokens",
    "other_modalities",
    "without_image_tokens",
]

Family = Literal["decoder", "embedding", "encoder-decoder", "image", "reranker", "speech", "vision-language", "whisper"]

AUTO_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "decoder": "AutoModelForCausalLM",
        "embedding": "AutoModel",
        "encoder-decoder": "AutoModelForSeq2SeqLM",
        "image": "AutoModelForImageTextToText",
        "reranker": "AutoModelForSequenceClassification",
        "speech": "AutoModelForSpeechSeq2Seq",
        "vision-language": "AutoModelForImageTextToText",
        "whisper": "AutoModelForSpeechSeq2Seq",
    }
)
"""Family to the class of transformers that loads its models."""


def family_of(config: Any, architecture: str, directory: Path | None, is_embedding: bool) -> Family:
    """The family of a model.

    Args:
        config: Its configuration.
        architecture: The name of its class.
        directory: The directory that it is in, if any.
        is_embedding: Whether the caller asks for embeddings.
    """
    if is_embedding or (directory is not None and has_sentence_modules(directory)):
        return "embedding"
    if architecture.endswith("ForSequenceClassification"):
        return "reranker"
    if config.model_type == "whisper" and not architecture.endswith("ForCausalLM"):
        return "whisper"
    if getattr(config, "vision_config", None) is not None and not architecture.endswith("ForCausalLM"):
        return "vision-language"
    if config.model_type in SPEECH_SOURCES and not architecture.endswith(("Model", "Speech")):
        return "speech"
    if config.model_type in IMAGE_SOURCES:
        return "image"
    if config.is_encoder_decoder and not architecture.endswith("EncoderModel"):
        return "encoder-decoder"
    return "embedding" if architecture.endswith("Model") and not architecture.endswith("LMHeadModel") else "decoder"


_MODALITIES = ("pixel_values", "image_patches", "input_features", "input_values", "protein_input_ids")


def other_modalities(model: Any) -> list[str]:
    """The inputs of a model that are images or audio.

    Args:
        model: The model.
    """
    return [name for name in inspect.signature(model.forward).parameters if name.endswith(_MODALITIES)]


_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "dia": "its tokens are codes of audio in several channels",
        "pop2piano": "its tokens are notes of music",
        "kyutai_speech_to_text": "each of its tokens has codes of audio beside the text",
        **dict.fromkeys(
            ("qwen2_5_omni", "qwen3_omni_moe"),
            "it generates speech with several models; the one that generates text is its attribute thinker",
        ),
    }
)
"""Type of a model to the reason why it is not supported."""


def check_modalities(family: Family, model: Any, *, text_only: bool) -> None:
    """Reject a model of images or audio whose family has the inputs of text only.

    Args:
        family: The family of the model.
        model: The model.
        text_only: Whether images and audio beside text may be left out.

    Raises:
        ArgumentError: If the model is one.
    """
    name = type(model).__name__
    if family != "embedding" and model.config.model_type in _REFUSED:
        raise ArgumentError("model", f"{name} is not supported: {_REFUSED[model.config.model_type]}")
    others = other_modalities(model) if family in ("decoder", "encoder-decoder", "reranker") else []
    if family == "encoder-decoder" and model.main_input_name in (
        "input_features",
        "input_values",
        "inputs",
        "pixel_values",
    ):
        raise ArgumentError(
            "model",
            f"the encoder of {name} reads {', '.join(others)}: fxonnx.genai does not support its type, only "
            f"{', '.join((*SPEECH_SOURCES, *IMAGE_SOURCES))}",
            hint="export it with fxonnx.export",
        )
    if others and not text_only:
        raise ArgumentError(
            "model",
            f"{name} also takes {', '.join(others)}, which the files of its family do not have",
            hint="export it with fxonnx.export, or pass text_only=True (--text-only) for a model of text",
        )


def has_image_tokens(model: Any) -> bool:
    """Whether a model keeps the tokens of images in its cache, as GIT, which widens masks by them."""
    return any("image_patch_tokens" in vars(module) for module in model.modules())


@contextmanager
def without_image_tokens(model: Any) -> Iterator[None]:
    """A model of text has no tokens of images in its cache: masks are those of the text."""
    modules = [module for module in model.modules() if "image_patch_tokens" in vars(module)]
    before = [module.image_patch_tokens for module in modules]
    try:
        for module in modules:
            module.image_patch_tokens = 0
        yield
    finally:
        for module, tokens in zip(modules, before, strict=True):
            module.image_patch_tokens = tokens
