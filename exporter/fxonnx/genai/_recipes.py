"""Recipes: named choices between speed, size and quality."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

from .. import QuantizeConfig
from ..errors import ArgumentError, did_you_mean

__all__ = ["RECIPES", "Recipe", "check_recipe", "config_of_recipe"]

Recipe: TypeAlias = Literal["exact", "balanced", "fast", "prefill"]

_FAST = QuantizeConfig("int4", block_size=128, rounding="search", embeddings="int8")
# Values, and the second layer of a feed-forward network, whose inputs have outliers.
_SENSITIVE = ("*.v_proj", "*.down_proj", "*.fc2", "*.dense_4h_to_h", "*.mlp.c_proj")

RECIPES: Mapping[Recipe, QuantizeConfig | None] = MappingProxyType(
    {
        "exact": None,
        "balanced": replace(_FAST, lm_head="int8", block_sizes=dict.fromkeys(_SENSITIVE, 32)),
        "fast": _FAST,
        "prefill": QuantizeConfig("int8", activations="dynamic", embeddings="int8"),
    }
)
"""Recipe to quantization. `benchmarks/RESULTS.md` has the speed and the quality of each."""


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


def config_of_recipe(recipe: Recipe, model: Any) -> QuantizeConfig | None:
    """Return the quantization of a recipe, with the patterns that match a module of the model.

    Args:
        recipe: The recipe.
        model: The language model.
    """
    config = RECIPES[recipe]
    if config is None:
        return None
    names = [name for name, _ in model.named_modules()]
    sizes = config.block_sizes.items()
    matching = {pattern: size for pattern, size in sizes if any(fnmatchcase(name, pattern) for name in names)}
    return replace(config, block_sizes=matching)
