"""Options with a fixed set of values: their help, and completion by the shell.

The values are repeated here because the modules that define them import torch, which completion would wait for;
`tests/test_cli_completion.py` compares them. The functions that the commands call check them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import typer

__all__ = ["CHOICES", "choice"]

CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "target": (
            *("onnxruntime", "onnxruntime-cuda", "onnxruntime-genai", "onnxruntime-genai-cuda"),
            *("onnxruntime-genai-webgpu", "onnxruntime-genai-directml", "onnxruntime-genai-tensorrt-rtx"),
            *("onnxruntime-web", "onnxruntime-web-webgpu", "tensorrt", "openvino"),
        ),
        "device": ("cpu", "cuda", "webgpu", "directml", "tensorrt-rtx"),
        "numerics": ("default", "exact"),
        "functions": ("none", "regions", "repeated"),
        "metadata": ("full", "names", "none"),
        "data_dependent": ("error", "example"),
        "quantize": ("int4", "int8"),
        "opset": tuple(map(str, range(7, 29))),
        "layout": ("optimum", "transformers.js", "sentence-transformers", "genai"),
        "dtype": ("fp32", "fp16", "q8", "q4", "q4f16"),
        "precision": ("fp32", "fp16", "bf16", "int4", "int8"),
        "recipe": ("exact", "balanced", "fast", "prefill"),
        "embeddings": ("float", "int4", "int8", "tied"),
        "lm_head": ("float", "int4", "int8"),
        "cache": ("float", "int8"),
        "pooling": ("cls", "last", "max", "mean", "mean_sqrt_len", "weighted_mean"),
        "task": (
            *("text-classification", "token-classification", "question-answering", "multiple-choice"),
            *("text-generation", "text2text-generation", "fill-mask", "image-classification", "object-detection"),
            *("semantic-segmentation", "image-segmentation", "depth-estimation", "keypoint-detection"),
            *("image-to-image", "masked-im", "video-classification", "zero-shot-image-classification"),
            *("zero-shot-object-detection", "visual-question-answering", "document-question-answering"),
            *("image-to-text", "image-text-to-text", "audio-classification", "audio-frame-classification"),
            *("audio-xvector", "automatic-speech-recognition", "text-to-audio", "time-series-forecasting"),
            "feature-extraction",
        ),
    }
)
"""Kind of value to its values."""


def choice(kind: str, help_text: str, *names: str, several: bool = False) -> Any:
    """The declaration of an option."""
    values = CHOICES[kind]
    return typer.Option(
        *names,
        help=help_text.format(_listed(values)),
        metavar=f"{kind.upper()},..." if several else kind.upper(),
        autocompletion=_completing(values, several),
    )


def _listed(values: Sequence[str]) -> str:
    return f"{', '.join(values[:-1])} or {values[-1]}"


def _completing(values: Sequence[str], several: bool) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        begun, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        return [f"{begun}{comma}{value}" for value in values if value.startswith(last)]

    return complete
