"""Model types: the name by which onnxruntime-genai knows an architecture of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["genai_type"]

_KNOWN = frozenset(
    {
        *("chatglm", "ernie4_5", "gemma", "gemma2", "gemma3_text", "gemma4_text", "gptoss", "granite"),
        *("granitemoehybrid", "hunyuandensev1", "internlm2", "lfm2", "lfm2_moe", "llama", "mistral", "nemotron"),
        *("olmo", "phi", "phi3", "phimoe", "qwen2", "qwen3", "smollm3"),
    }
)
"""Types of decoder-only models in onnxruntime-genai 0.18; for gpt2 it expects keys and values in one input."""

_RENAMED: Mapping[str, str] = MappingProxyType({"gpt_oss": "gptoss", "hunyuan_v1_dense": "hunyuandensev1"})

_GENERAL = "decoder"
"""Type of any other decoder-only model; onnxruntime-genai derives the rest from the names of inputs and outputs."""


def genai_type(model_type: str) -> str:
    """The type in genai_config.json for a decoder-only model.

    Args:
        model_type: ``model_type`` of the model's configuration.
    """
    name = _RENAMED.get(model_type, model_type)
    return name if name in _KNOWN else _GENERAL
