"""Precision: dtype of the computation, quantization of the weights, and how closely two computations agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

import torch

from .. import QuantizeConfig
from ..errors import ArgumentError, did_you_mean

__all__ = [
    "Precision",
    "PrecisionPlan",
    "read_precision",
    "with_accuracy_level",
    "with_integer_caches",
    "with_quantization",
]

Precision: TypeAlias = Literal["fp32", "fp16", "bf16", "int4", "int8"]

_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
)

_TOLERANCES: Mapping[torch.dtype, float] = MappingProxyType(
    {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.1}
)
# MatMulNBits rounds activations to int8.
_QUANTIZED_TOLERANCE = 0.1
# A whole tensor of activations has one scale.
_DYNAMIC_TOLERANCE = 0.3


@dataclass(frozen=True)
class PrecisionPlan:
    """How an exported model computes.

    Attributes:
        dtype: Element type of activations and of weights that are not quantized.
        quantize: Argument ``quantize`` of ``fxonnx.export``.
        tolerance: Two tokens are equally good if their logits differ by at most this part of the range of all logits.
    """

    dtype: torch.dtype
    quantize: Any
    tolerance: float


def read_precision(precision: str, quantize: Any, target: str) -> PrecisionPlan:
    """Validate the arguments ``precision`` and ``quantize``.

    Args:
        precision: The user's argument.
        quantize: The user's argument; None for the quantization that the precision implies.
        target: "cpu" or "cuda".

    Raises:
        ArgumentError: If the precision does not exist, or activations are to have constant scales.
    """
    mode = quantize.activation_mode if isinstance(quantize, QuantizeConfig) else "float"
    if mode == "static":
        raise ArgumentError(
            "quantize",
            "language models for onnxruntime-genai have no activations with constant scales",
            hint='pass activations="dynamic", or leave it out: MatMulNBits rounds activations by itself',
        )
    known = get_args(Precision)
    if precision not in known:
        expected = ", ".join(map(repr, known))
        raise ArgumentError("precision", f"expected {expected}, got {precision!r}", hint=did_you_mean(precision, known))
    dtype = _DTYPES.get(precision)
    if dtype is None:
        # The kernels of CUDA for quantized weights and for attention compute in half precision.
        dtype = torch.float32 if target == "cpu" else torch.float16
        quantize = precision if quantize is None else quantize
    rounding = 0.0 if quantize is None else _DYNAMIC_TOLERANCE if mode == "dynamic" else _QUANTIZED_TOLERANCE
    return PrecisionPlan(dtype, quantize, max(_TOLERANCES[dtype], rounding))


def with_quantization(plan: PrecisionPlan, quantize: Any) -> PrecisionPlan:
    """Return the same precision with quantized weights."""
    return replace(plan, quantize=quantize, tolerance=max(plan.tolerance, _QUANTIZED_TOLERANCE))


def with_accuracy_level(plan: PrecisionPlan, level: int) -> PrecisionPlan:
    """Return the same precision with another accuracy level of the products with quantized weights.

    Raises:
        ArgumentError: If the weights are not quantized, or the level is not a number from 0 to 4.
    """
    if plan.quantize is None:
        hint = "pass precision='int4' or 'int8'"
        raise ArgumentError("accuracy_level", "the weights of the model are not quantized", hint=hint)
    if level not in (0, 1, 2, 3, 4):
        raise ArgumentError("accuracy_level", f"expected a number from 0 to 4, got {level!r}")
    config = plan.quantize if isinstance(plan.quantize, QuantizeConfig) else QuantizeConfig(plan.quantize)
    return replace(plan, quantize=replace(config, accuracy_level=level))


def with_integer_caches(plan: PrecisionPlan) -> PrecisionPlan:
    """Return the same precision with rounded keys and values of earlier tokens."""
    return replace(plan, tolerance=max(plan.tolerance, _QUANTIZED_TOLERANCE))
