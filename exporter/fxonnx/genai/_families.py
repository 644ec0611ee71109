"""Families of models: how each is recognized, loaded and exported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

__all__ = ["AUTO_CLASSES", "Family", "family_of"]

Family = Literal["decoder", "whisper", "vision-language"]

AUTO_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "decoder": "AutoModelForCausalLM",
        "whisper": "AutoModelForSpeechSeq2Seq",
        "vision-language": "AutoModelForImageTextToText",
    }
)
"""Family to the class of transformers that loads its models."""


def family_of(config: Any, architecture: str, directory: Path | None = None) -> Family:
    """The family of a model.

    Args:
        config: Its configuration.
        architecture: The name of its class.
        directory: The directory that it is in, if any.
    """
    if config.model_type == "whisper":
        return "whisper"
    if getattr(config, "vision_config", None) is not None and not architecture.endswith("ForCausalLM"):
        return "vision-language"
    return "decoder"
