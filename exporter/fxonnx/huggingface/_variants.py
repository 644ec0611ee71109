"""Element types of the exported files, by the names of transformers.js."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from .. import QuantizeConfig
from ..errors import ArgumentError, did_you_mean
from ..genai._importance import measured_importance
from ..genai._meta import has_weights
from ._source import Source

__all__ = ["VARIANTS", "Variant", "importance_of", "read_variants"]


@dataclass(frozen=True)
class Variant:
    """The element types of one file.

    Attributes:
        name: The name, as ``dtype`` of transformers.js.
        suffix: The end of the file name.
        dtype: Element type of the computation; graph inputs and outputs are float32 except for caches.
        quantize: Quantization of the weights, if any.
        tolerance: Largest difference from eager torch, relative to the largest value; None for integers, whose
            difference is shown.
    """

    name: str
    suffix: str
    dtype: torch.dtype = torch.float32
    quantize: QuantizeConfig | None = None
    tolerance: float | None = None

    @property
    def searches(self) -> bool:
        """Whether the rounding of the weights depends on their importance."""
        return self.quantize is not None and self.quantize.rounding == "search"

    def for_inputs(self, importance: Mapping[str, torch.Tensor]) -> Variant:
        """Return the same element types with the importance of the input features of weights."""
        return self if self.quantize is None else replace(self, quantize=replace(self.quantize, importance=importance))


def importance_of(source: Source) -> dict[str, torch.Tensor]:
    """Measure the importance of features in a model of one text; nothing of other models."""
    model = source.model
    tokenizer = next((each for each in source.processors if hasattr(each, "convert_ids_to_tokens")), None)
    is_text = getattr(model, "main_input_name", "") == "input_ids" and not model.config.is_encoder_decoder
    return measured_importance(model, tokenizer) if tokenizer is not None and is_text and has_weights(model) else {}


_INT4 = QuantizeConfig("int4", symmetric=False, rounding="search", embeddings="int8")

VARIANTS: Mapping[str, Variant] = MappingProxyType(
    {
        variant.name: variant
        for variant in (
            Variant("fp32", "", tolerance=1e-3),
            Variant("fp16", "_fp16", torch.float16, tolerance=0.05),
            Variant("q8", "_quantized", quantize=QuantizeConfig("int8", activations="dynamic", embeddings="int8")),
            Variant("q4", "_q4", quantize=_INT4),
            Variant("q4f16", "_q4f16", torch.float16, _INT4),
        )
    }
)


def read_variants(dtype: Any) -> tuple[Variant, ...]:
    """Read the argument ``dtype``.

    Args:
        dtype: One name, names separated by commas, or a sequence of names.

    Raises:
        ArgumentError: If no variant has this name, or there are none.
    """
    names = [name.strip() for name in dtype.split(",")] if isinstance(dtype, str) else [*dtype]
    for name in names:
        if name not in VARIANTS:
            expected = ", ".join(VARIANTS)
            raise ArgumentError(
                "dtype",
                f"expected names of {expected}, got {name!r}",
                hint=did_you_mean(name, VARIANTS, 'write dtype="q8", or ["fp32", "q4"] for several files'),
            )
    if not names:
        raise ArgumentError("dtype", "at least one is required")
    return tuple(VARIANTS[name] for name in dict.fromkeys(names))
