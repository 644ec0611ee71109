"""Recipes: named choices between speed, size and quality."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

from .. import QuantizeConfig
from ..errors import ArgumentError, did_you_mean
from ._importance import measured_importance
from ._meta import has_weights

__all__ = ["KL_LIMITS", "RECIPES", "Recipe", "check_recipe", "config_of_precision", "config_of_recipe"]

Recipe: TypeAlias = Literal["exact", "balanced", "fast", "prefill"]

_SEARCHED = QuantizeConfig("int4", symmetric=False, rounding="search", embeddings="tied", lm_head="int8")
# The inputs of attention, whose rounding changes the results most for their size.
_SENSITIVE = ("*.q_proj", "*.k_proj", "*.v_proj", "*.qkv_proj", "*.query_key_value", "*.Wqkv", "*.c_attn")

RECIPES: Mapping[Recipe, QuantizeConfig | None] = MappingProxyType(
    {
        "exact": None,
        "balanced": replace(_SEARCHED, block_size=32, bits=dict.fromkeys(_SENSITIVE, 8)),
        "fast": replace(_SEARCHED, block_size=128),
        "prefill": QuantizeConfig("int8", activations="dynamic", embeddings="tied"),
    }
)
"""Recipe to quantization. `benchmarks/RESULTS.md` has the speed and the quality of each."""

KL_LIMITS: Mapping[str, float] = MappingProxyType(
    {"fp32": 1e-3, "exact": 1e-3, "int8": 0.02, "prefill": 0.05, "balanced": 0.15, "fast": 0.35, "int4": 0.6}
)
"""Precision or recipe to the mean KL divergence to the original model, in nats, above which the export warns."""


def check_recipe(recipe: str, precision: str, quantize: Any) -> None:
    """Check the argument ``recipe``, and the arguments that it excludes.

    Raises:
        ArgumentError: If the recipe does not exist, or the precision or the quantization is specified as well.
    """
    known = get_args(Recipe)
    if recipe not in known:
        expected = ", ".join(map(repr, known))
        raise ArgumentError("recipe", f"expected {expected}, got {recipe!r}", hint=did_you_mean(recipe, known))
    if precision != "fp32" or quantize is not None:
        other = "precision" if precision != "fp32" else "quantize"
        raise ArgumentError("recipe", f"{recipe!r} includes the quantization, and excludes {other}", hint="pass one")


def config_of_recipe(recipe: Recipe, model: Any, tokenizer: Any) -> QuantizeConfig | None:
    """Return the quantization of a recipe for a language model.

    Args:
        recipe: The recipe.
        model: The language model.
        tokenizer: Its tokenizer.
    """
    config = RECIPES[recipe]
    if config is None:
        return None
    if recipe == "prefill":
        # Of a prompt, only the last token has logits: these have no use for integer products, but for blocks.
        head = _head_of(model)
        return replace(config, weights_only=(head,), block_size=32) if head else config
    names = [name for name, _ in model.named_modules()]
    bits = {pattern: bits for pattern, bits in config.bits.items() if any(fnmatchcase(name, pattern) for name in names)}
    importance = measured_importance(model, tokenizer) if has_weights(model) else {}
    lm_head = config.lm_head if _head_of(model) else None
    return replace(config, bits=bits, importance=importance, lm_head=lm_head)


def config_of_precision(quantize: Any) -> QuantizeConfig:
    """Return the quantization of a decoder that "int4" or "int8" implies.

    Args:
        quantize: The precision, or a configuration with it, of which the attributes that are None are completed.
    """
    config = quantize if isinstance(quantize, QuantizeConfig) else QuantizeConfig(quantize)
    # Integer products have no blocks.
    is_blocked = config.block_size is None and config.activation_mode == "float"
    return replace(
        config,
        block_size=32 if is_blocked else config.block_size,
        embeddings="tied" if config.embeddings is None else config.embeddings,
    )


def _head_of(model: Any) -> str | None:
    """The name of the layer that computes the logits, if the export finds it by its name or a tied table."""
    head = model.get_output_embeddings()
    return next((name for name, module in model.named_modules() if module is head), None) if head is not None else None
