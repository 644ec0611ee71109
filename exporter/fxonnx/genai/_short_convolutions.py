"""Models with short convolutions beside attention (LFM2): one graph for prompts and for single tokens.

The state of a convolution is its last inputs. transformers has one operator for prompts and another for single tokens;
here the state is joined with the new inputs, for any number of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ._extra import import_extra

__all__ = ["convolution_inputs", "has_short_convolutions", "states_as_tensors"]

_MODEL_TYPES = frozenset({"lfm2", "lfm2_moe"})
_CONVOLUTION = "conv"
"""The name of these layers in the model's configuration, and of their states."""


def has_short_convolutions(model: Any) -> bool:
    """Whether onnxruntime-genai has the states of a model's convolutions."""
    return model.config.model_type in _MODEL_TYPES


def convolution_inputs(model: Any, batch: int, past: int) -> dict[str, Tensor]:
    """Make the example of the cache: name to state, keys or values.

    Args:
        model: A model with short convolutions.
        batch: Size of the batch.
        past: Number of cached tokens.
    """
    config = model.config
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shapes: dict[str, tuple[int, ...]] = {}
    for index, layer_type in enumerate(config.layer_types):
        if layer_type == _CONVOLUTION:
            shapes[f"{index}.{_CONVOLUTION}"] = batch, config.hidden_size, config.conv_L_cache - 1
        else:
            cached = batch, config.num_key_value_heads, past, size
            shapes |= {f"{index}.key": cached, f"{index}.value": cached}
    return {name: torch.zeros(shape, dtype=model.dtype, device=model.device) for name, shape in shapes.items()}


@dataclass
class _Step:
    """The cache and the padding mask of one call.

    Attributes:
        states: Index of a layer to the state of its convolution.
        cache: Keys and values.
        mask: The padding mask, [batch, total].
    """

    states: dict[int, Tensor] = field(default_factory=dict)
    cache: Any = None
    mask: Any = None


@contextmanager
def states_as_tensors(model: Any) -> Iterator[tuple[str, ...]]:
    """In the body, the cache of a model is a dict of tensors, and its outputs are logits and tensors.

    Args:
        model: A model with short convolutions; its hooks and modules are restored afterwards.

    Yields:
        The names of the outputs.
    """
    step, decoder = _Step(), model.base_model
    names = tuple(convolution_inputs(model, 1, 1))
    hooks = [
        decoder.register_forward_pre_hook(partial(_read_cache, step), with_kwargs=True),
        model.register_forward_hook(partial(_return_cache, step, names)),
    ]
    convolutions = [layer.conv for layer in decoder.layers if hasattr(layer, "conv")]
    for module in convolutions:
        module.forward = partial(_forward, module, step)
    try:
        yield ("logits", *(f"present.{name}" for name in names))
    finally:
        for hook in hooks:
            hook.remove()
        for module in convolutions:
            del module.forward


def _read_cache(
    step: _Step, decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Make the cache of transformers of the dict, and a mask for any number of tokens."""
    transformers = import_extra("transformers")
    given: Mapping[str, Tensor] = kwargs["past_key_values"]
    cache = transformers.DynamicCache(config=decoder.config)
    step.states, step.cache, step.mask = {}, cache, kwargs["attention_mask"]
    for index, layer_type in enumerate(decoder.config.layer_types):
        if layer_type == _CONVOLUTION:
            step.states[index] = given[f"{index}.{_CONVOLUTION}"]
        else:
            layer = cache.layers[index]
            layer.keys, layer.values = given[f"{index}.key"], given[f"{index}.value"]
            layer.dtype, layer.device, layer.is_initialized = layer.keys.dtype, layer.keys.device, True
    embeds = decoder.embed_tokens(kwargs["input_ids"])
    if kwargs.get("position_ids") is None:
        kwargs["position_ids"] = (torch.arange(embeds.shape[1], device=embeds.device) + cache.get_seq_length())[None]
    causal = transformers.masking_utils.create_causal_mask(
        config=decoder.config,
        inputs_embeds=embeds,
        attention_mask=step.mask,
        past_key_values=cache,
        position_ids=kwargs["position_ids"],
    )
    # transformers would make that of the convolutions for prompts only.
    masks = {"full_attention": causal, _CONVOLUTION: None}
    changed = {"input_ids": None, "inputs_embeds": embeds, "attention_mask": masks, "past_key_values": cache}
    return args, {**kwargs, **changed}


def _return_cache(
    step: _Step, names: Sequence[str], _model: Any, _args: tuple[Any, ...], output: Any
) -> tuple[Tensor, ...]:
    """Return the logits and the tensors of the cache in the order of the inputs."""
    found = []
    for name in names:
        index, _, kind = name.partition(".")
        layer = step.cache.layers[int(index)]
        found.append(step.states[int(index)] if kind == _CONVOLUTION else getattr(layer, f"{kind}s"))
    return (output.logits, *found)


def _forward(module: Any, step: _Step, hidden_states: Tensor, **_: Any) -> Tensor:
    """``forward`` of a short convolution with the inputs before, whose state is replaced."""
    state, tokens = step.states[module.layer_idx], hidden_states.shape[1]
    valid = step.mask[:, step.mask.shape[1] - tokens :]
    gate, scale, x = module.in_proj(hidden_states * valid[..., None].to(hidden_states.dtype)).mT.chunk(3, dim=1)
    joined = torch.cat([state, gate * x], dim=2)
    convolved = functional.conv1d(joined, module.conv.weight, module.conv.bias, groups=module.conv.groups)
    step.states[module.layer_idx] = _last_inputs(joined, valid, state.shape[2])
    output: Tensor = module.out_proj((scale * convolved).mT)
    return output


def _last_inputs(joined: Tensor, valid: Tensor, count: int) -> Tensor:
    """The last inputs up to the last token of each row that is not padding: onnxruntime-genai pads on the right."""
    numbers = torch.arange(1, valid.shape[1] + 1, device=valid.device)
    first = (valid * numbers).amax(1)
    places = first[:, None] + torch.arange(count, device=valid.device)
    return joined.gather(2, places[:, None].expand(-1, joined.shape[1], -1))
