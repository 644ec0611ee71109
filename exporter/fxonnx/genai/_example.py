"""Example inputs of a decoder: a step with a past, whose batch, tokens and past are dynamic."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ._extra import import_extra

__all__ = ["DYNAMIC_SHAPES", "example_inputs"]

_BATCH, _PAST, _TOKENS = 2, 5, 3

DYNAMIC_SHAPES: dict[str, Any] = {
    "input_ids": {0: "batch", 1: "tokens"},
    "attention_mask": {0: "batch", 1: "total"},
    "position_ids": {0: "batch", 1: "tokens"},
    "past_key_values.*": {0: "batch", 2: "past"},
}


def example_inputs(model: Any) -> dict[str, Any]:
    """Make the keyword inputs of one step.

    The cache is a ``DynamicCache`` without the model's configuration: a sliding cache would add inputs that
    onnxruntime-genai cannot provide, while the mask of the window suffices.

    Args:
        model: A decoder-only model of transformers.
    """
    transformers = import_extra("transformers")
    ids = torch.ones(1, 1, dtype=torch.int64, device=model.device)
    cache = transformers.DynamicCache()
    with torch.no_grad():
        model(input_ids=ids, attention_mask=ids, past_key_values=cache, use_cache=True)
    past = [
        tuple(each.new_zeros(_BATCH, each.shape[1], _PAST, each.shape[3]) for each in (layer.keys, layer.values))
        for layer in cache.layers
    ]
    inputs = {
        "input_ids": ids.expand(_BATCH, _TOKENS).contiguous(),
        "attention_mask": ids.expand(_BATCH, _PAST + _TOKENS).contiguous(),
        "past_key_values": transformers.DynamicCache(past),
    }
    if _has_absolute_positions(model):
        positions = torch.arange(_PAST, _PAST + _TOKENS, device=model.device)
        inputs["position_ids"] = positions.expand(_BATCH, _TOKENS).contiguous()
    return inputs


def _has_absolute_positions(model: Any) -> bool:
    """Whether the positions of a padded row must be inputs; rotary embeddings are invariant to a shift."""
    rotary = getattr(model.config.get_text_config(decoder=True), "rope_parameters", None)
    return not rotary and "position_ids" in inspect.signature(model.forward).parameters
