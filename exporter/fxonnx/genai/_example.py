"""Example inputs of a decoder: a step with a past, whose batch, tokens and past are dynamic."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from ..errors import ArgumentError
from ._extra import import_extra
from ._meta import input_device, runnable
from ._recurrent_states import cache_parameter, has_recurrent_states, state_inputs

__all__ = ["DYNAMIC_SHAPES", "dynamic_shapes", "example_inputs", "has_rotary_positions", "input_names", "state_names"]

_BATCH, _PAST, _TOKENS = 2, 5, 3

DYNAMIC_SHAPES: dict[str, Any] = {
    "input_ids": {0: "batch", 1: "tokens"},
    "attention_mask": {0: "batch", 1: "total"},
    "position_ids": {0: "batch", 1: "tokens"},
    "past_key_values.*": {0: "batch", 2: "past"},
}

_STEP_BY_STEP = "export a step of one token, with the states as inputs, with fxonnx.export"

_STATES: dict[str, Any] = {
    **{kind: {0: "batch"} for kind in ("conv", "conv_state", "recurrent_state")},
    **{kind: {0: "batch", 2: "past"} for kind in ("key", "value")},
}


def dynamic_shapes(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Select the dynamic dims of given inputs; a batch of 1 is static.

    Args:
        inputs: The inputs that ``example_inputs`` has made, or some of them.
    """
    parameter, states = _states(inputs)
    names = {*inputs, *(() if states else ("past_key_values.*",))}
    kinds = dict.fromkeys(name.partition(".")[2] for name in states)
    tokens = {"inputs_embeds": DYNAMIC_SHAPES["input_ids"]} if "inputs_embeds" in names else {}
    dynamic = {
        **tokens,
        **{name: dims for name, dims in DYNAMIC_SHAPES.items() if name in names},
        **{f"{parameter}.*.{kind}": _STATES[kind] for kind in kinds},
    }
    if len(inputs["attention_mask"]) > 1:
        return dynamic
    return {name: {axis: dim for axis, dim in dims.items() if axis > 0} for name, dims in dynamic.items()}


def input_names(inputs: Mapping[str, Any]) -> list[str] | None:
    """Names of graph inputs; None for those that the export chooses.

    Args:
        inputs: The inputs that ``example_inputs`` has made, or some of them.
    """
    parameter, states = _states(inputs)
    if not states:
        return None
    parts = ([f"past_key_values.{part}" for part in states] if name == parameter else [name] for name in inputs)
    return [name for names in parts for name in names]


def state_names(inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the tensors of a cache that is a dict; empty for others.

    Args:
        inputs: The inputs that ``example_inputs`` has made, or some of them.
    """
    return tuple(_states(inputs)[1])


def _states(inputs: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The parameter of a cache that is a dict, and the dict; empty without one."""
    return next(((name, value) for name, value in inputs.items() if isinstance(value, dict)), ("", {}))


def example_inputs(model: Any, batch: int = _BATCH) -> dict[str, Any]:
    """Make the keyword inputs of one step.

    The cache is a ``DynamicCache`` without the model's configuration: a sliding cache would add inputs that
    onnxruntime-genai cannot provide, while the mask of the window suffices.

    Args:
        model: A decoder-only model of transformers.
        batch: Number of rows.
    """
    transformers = import_extra("transformers")
    if has_recurrent_states(model):
        return _step(model, state_inputs(model, batch, _PAST), batch)
    _check_cache(transformers, model)
    called = runnable(model)
    ids = torch.ones(1, 1, dtype=torch.int64, device=called.device)
    cache = transformers.DynamicCache()
    try:
        with torch.no_grad():
            output = called(input_ids=ids, past_key_values=cache, use_cache=True)
    except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        raise _without_cache(model, error) from error
    returned = getattr(output, "past_key_values", None)
    if not isinstance(returned, (transformers.DynamicCache, type(None))):
        raise ArgumentError(
            "model",
            f"{_name(model)} keeps its states in a cache of its own, {type(returned).__name__}",
            hint=_STEP_BY_STEP,
        )
    if not cache.layers or not all(isinstance(layer.keys, torch.Tensor) for layer in cache.layers):
        raise ArgumentError(
            "model",
            f"{_name(model)} does not store keys and values in a cache",
            hint="export it with fxonnx.export, if it is not a decoder-only language model",
        )
    device = input_device(model)
    pairs = [(layer.keys, layer.values) for layer in cache.layers]
    past = [
        tuple(
            each.new_zeros(batch, each.shape[1], _PAST, max(other.shape[3] for other in pair), device=device)
            for each in pair
        )
        for pair in pairs
    ]
    return _step(model, transformers.DynamicCache(past), batch)


def _step(model: Any, cache: Any, batch: int) -> dict[str, Any]:
    """The inputs of one step with a given cache."""
    ids = torch.ones(1, 1, dtype=torch.int64, device=input_device(model))
    inputs = {
        "input_ids": ids.expand(batch, _TOKENS).contiguous(),
        "attention_mask": ids.expand(batch, _PAST + _TOKENS).contiguous(),
        cache_parameter(model): cache,
    }
    if "position_ids" in inspect.signature(model.forward).parameters:
        positions = torch.arange(_PAST, _PAST + _TOKENS, device=ids.device)
        inputs["position_ids"] = positions.expand(batch, _TOKENS).contiguous()
    return inputs


def _name(model: Any) -> str:
    return f"{type(model).__name__} (model type {model.config.model_type!r})"


def _without_cache(model: Any, error: Exception) -> ArgumentError:
    return ArgumentError("model", f"{_name(model)} does not run with a DynamicCache: {error}", hint=_STEP_BY_STEP)


def _check_cache(transformers: Any, model: Any) -> None:
    """Reject models with states other than keys and values.

    transformers computes such states of a prompt and of a single token with different operators, so that one graph
    cannot do both. A layer may have no state, or use the one of another layer.
    """
    attention = transformers.cache_utils.DynamicLayer
    stateless = getattr(transformers.cache_utils, "DummyLayer", attention)
    try:
        layers = transformers.DynamicCache(config=model.config.get_text_config(decoder=True)).layers
    except AttributeError as error:  # BLT: its parts have layers, and its configuration no number of them
        raise _without_cache(model, error) from error
    others = sorted({type(layer).__name__ for layer in layers if not isinstance(layer, (attention, stateless))})
    if others:
        raise ArgumentError(
            "model",
            f"{_name(model)} has states other than keys and values ({', '.join(others)}), which are computed "
            "differently for prompts and for single tokens",
            hint=_STEP_BY_STEP,
        )


def has_rotary_positions(model: Any) -> bool:
    """Whether positions are used by rotary embeddings only."""
    return bool(getattr(model.config.get_text_config(decoder=True), "rope_parameters", None))
