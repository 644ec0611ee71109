"""Attention of decoders: over latent vectors, rotary embeddings that depend on the length, and sizes of heads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import warn_user
from ..extras import import_extra

__all__ = [
    "attention_over_latents",
    "dynamic_factor",
    "equal_head_sizes",
    "indexed_cache",
    "traceable_rotary_embeddings",
    "warn_about_long_sequences",
    "with_indexer_keys",
]

_IMPLEMENTATION = "sdpa"
_OTHERS = ("position_bias", "softcap", "cache")
"""Options of ``sdpa`` for which transformers' function is called."""
# A small layer with unequal sizes, whose keys and values are compared.
_HEADS, _NOPE, _ROTARY, _VALUE, _RANK = 4, 2, 6, 3, 5


@contextmanager
def attention_over_latents(model: nn.Module) -> Iterator[None]:
    """In the body, layers with latent vectors multiply queries, not the cache, by the weight of ``kv_b_proj``.

    DeepSeek, Kimi, MiniCPM3 and others keep one latent vector for each token in the cache, and transformers multiplies
    the whole cache by that weight for every new token. The product of a query with a key equals the product of the
    latent vector with the query times the key's part of the weight, and the sum of values equals the sum of latent
    vectors, times the value's part: a token then takes the time of attention with one head of keys and values (the
    absorption of arXiv:2405.04434, 2.1.2). Layers whose weight is quantized or has adapters or hooks, and other
    implementations than ``sdpa``, are left.
    """
    layers: list[Any] = [each for each in model.modules() if _has_latents(each)]
    if not layers:
        yield
        return
    functions = import_extra("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    before = functions[_IMPLEMENTATION]
    expanded = {layer: layer.expand_kv for layer in layers}
    functions[_IMPLEMENTATION] = partial(_attend, before, expanded)
    for layer in layers:
        layer.expand_kv = _latents
    try:
        yield
    finally:
        for layer in layers:
            del layer.expand_kv
        # The registry had no entry of its own, but that of its class, unless the user has replaced it.
        del functions[_IMPLEMENTATION]
        if functions[_IMPLEMENTATION] is not before:
            functions[_IMPLEMENTATION] = before


def _has_latents(layer: Any) -> bool:
    config = getattr(layer, "config", None)
    projection = getattr(layer, "kv_b_proj", None)
    return (
        hasattr(layer, "expand_kv")
        and "expand_kv" not in vars(layer)
        and type(projection) is nn.Linear
        and "forward" not in vars(projection)
        and not (projection._forward_hooks or projection._forward_pre_hooks)
        and type(projection.weight) is nn.Parameter
        and projection.bias is None
        and getattr(config, "_attn_implementation", None) == _IMPLEMENTATION
        and _expands_by_one_product(type(layer))
    )


def _expands_by_one_product(kind: type[Any]) -> bool:
    """Whether ``expand_kv`` of a class computes keys and values as ``_attend`` assumes, found with random numbers."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.rand(_HEADS, _NOPE + _VALUE, _RANK, generator=generator)
    latents = torch.rand(2, 1, 3, _RANK, generator=generator)
    rotated = torch.rand(2, 1, 3, _ROTARY, generator=generator)
    layer = SimpleNamespace(
        kv_b_proj=lambda value: F.linear(value, weight.flatten(0, 1)),
        qk_nope_head_dim=_NOPE,
        v_head_dim=_VALUE,
        qk_rope_head_dim=_ROTARY,
        kv_lora_rank=_RANK,
    )
    try:
        keys, values = kind.expand_kv(layer, latents, rotated)
    except (AttributeError, RuntimeError, TypeError, ValueError):  # another form of the layer
        return False
    products = latents @ weight.mT
    expected = torch.cat((products[..., :_NOPE], rotated.expand(-1, _HEADS, -1, -1)), -1), products[..., _NOPE:]
    return all(
        found.shape == wanted.shape and torch.allclose(found, wanted, atol=1e-5)
        for found, wanted in zip((keys, values), expected, strict=True)
    )


def _latents(latents: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
    """``expand_kv`` that returns the cache as it is, for ``_attend``."""
    return latents, rotated


def _attend(
    attention: Callable[..., Any],
    expanded: dict[nn.Module, Callable[..., Any]],
    layer: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> Any:
    """Attention of transformers, with the latent vectors as key and the rotated parts of keys as value of our layers.

    Args:
        attention: transformers' function, for other layers and without a mask.
        expanded: Our layers, with their methods that compute keys and values.
        layer: The layer.
        query: Queries of all heads, of which the rotated parts are the last.
        key: One latent vector for each token, ``[batch, 1, length, rank]``.
        value: The rotated part of each token's key.
        attention_mask: The mask.
        scaling: The factor of the scores.
        options: Other arguments.
    """
    if layer not in expanded:
        return attention(layer, query, key, value, attention_mask, scaling=scaling, **options)
    if attention_mask is None or any(options.get(name) is not None for name in _OTHERS):
        keys, values = expanded[layer](key, value)
        return attention(layer, query, keys, values, attention_mask, scaling=scaling, **options)
    nope, rotary = layer.qk_nope_head_dim, value.shape[-1]
    weight = layer.kv_b_proj.weight.view(query.shape[1], nope + layer.v_head_dim, key.shape[-1])
    unrotated, rotated = torch.split(query, [nope, rotary], -1)
    queries = torch.cat((unrotated @ weight[:, :nope], rotated), -1)
    sums = F.scaled_dot_product_attention(
        queries, torch.cat((key, value), -1), key, attn_mask=attention_mask, scale=scaling, enable_gqa=True
    )
    return (sums @ weight[:, nope:].mT).transpose(1, 2).contiguous(), None


_COMPUTED_AGAIN = 4096
"""Number of tokens after which onnxruntime-genai computes the cache of Phi-3 again, for one sequence."""


def dynamic_factor(config: Any) -> float:
    """How many times longer sequences may become by dynamic scaling; 1.0 without."""
    parameters = getattr(config, "rope_parameters", None) or {}
    # With ``alpha``, the frequencies are constants.
    is_dynamic = parameters.get("rope_type") == "dynamic" and not parameters.get("alpha")
    return float(parameters.get("factor", 1.0)) if is_dynamic else 1.0


def warn_about_long_sequences(config: Any) -> None:
    """Warn if tokens differ from transformers' where a sequence exceeds the original length."""
    parameters = getattr(config, "rope_parameters", None) or {}
    original = parameters.get("original_max_position_embeddings")
    is_phi = config.model_type in ("phi3", "phimoe") and parameters.get("rope_type") == "longrope"
    if is_phi and original != _COMPUTED_AGAIN:
        warn_user(
            f"sequences that exceed {original} tokens while they are generated continue with other tokens than in "
            f"transformers, which then computes their cache again; onnxruntime-genai does so after {_COMPUTED_AGAIN} "
            "tokens only"
        )


@contextmanager
def traceable_rotary_embeddings(model: Any) -> Iterator[None]:
    """In the body, rotary embeddings compute their frequencies from the positions of the call only.

    transformers replaces buffers of the module where a sequence becomes longer than all before.
    """
    replaced = []
    for module in model.modules():
        forward = _forward(module)
        if forward is not None:
            module.forward = forward
            replaced.append(module)
    try:
        yield
    finally:
        for module in replaced:
            del module.forward


def _forward(module: torch.nn.Module) -> Callable[..., Any] | None:
    """The replacement of a module's forward; None for modules that can be captured as they are."""
    rope_type = getattr(module, "rope_type", None)
    if rope_type == "dynamic":
        return partial(_scaled_forward, module, _dynamic_frequencies)
    if rope_type != "longrope":
        return None
    if type(module).__name__ == "PhimoeRotaryEmbedding":
        return partial(_phimoe_forward, module)
    return partial(_scaled_forward, module, _long_frequencies)


def _scaled_forward(module: Any, frequencies: Callable[[Any, Tensor], Tensor], x: Tensor, position_ids: Tensor) -> Any:
    """``forward`` of any rotary embedding, with the frequencies for the longest sequence of the call."""
    before = module._buffers["inv_freq"]
    module._buffers["inv_freq"] = frequencies(module, position_ids.max() + 1)
    try:
        return inspect.unwrap(type(module).forward)(module, x, position_ids)
    finally:
        module._buffers["inv_freq"] = before


def _dynamic_frequencies(module: Any, length: Tensor) -> Tensor:
    return _initial_frequencies("dynamic", module, length)


def _long_frequencies(module: Any, length: Tensor) -> Tensor:
    original = module.config.rope_parameters["original_max_position_embeddings"]
    long = _initial_frequencies("longrope", module, original + 1)
    return torch.where(length > original, long, module.original_inv_freq)


def _initial_frequencies(rope_type: str, module: Any, length: Any) -> Tensor:
    functions = import_extra("transformers").modeling_rope_utils.ROPE_INIT_FUNCTIONS
    frequencies: Tensor = functions[rope_type](module.config, module.inv_freq.device, seq_len=length)[0]
    return frequencies


def _phimoe_forward(module: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """``forward`` with a factor for long and for short sequences, which transformers chooses by a branch."""
    parameters = module.config.rope_parameters
    is_long = position_ids.max() + 1 > parameters["original_max_position_embeddings"]
    factor = torch.where(is_long, parameters["long_mscale"], parameters["short_mscale"])
    frequencies, _ = module.rope_init_fn(module.config)
    angles = position_ids[..., None].float() * frequencies.to(device=x.device, dtype=torch.float32)
    angles = torch.cat((angles, angles), dim=-1)
    return (angles.cos() * factor).to(x.dtype), (angles.sin() * factor).to(x.dtype)


@contextmanager
def equal_head_sizes(model: Any) -> Iterator[None]:
    """In the body, the cache keeps the smaller one of keys and values with zeros up to the size of the other.

    Latent attention keeps the latent vector as the key, and the rotated part of the key, for all heads, as the value.
    The keys by which sparse attention selects tokens are a part of these zeros.
    """
    hook = model.get_decoder().register_forward_pre_hook(_change_layers, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def _change_layers(_model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    cache_class = import_extra("transformers").DynamicCache
    for value in (*args, *kwargs.values()):
        for layer in value.layers if isinstance(value, cache_class) else ():
            if hasattr(layer, "update"):  # recurrent states have none
                layer.update = partial(_update, layer, layer.update)


def _update(layer: Any, update: Any, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Pad the new keys and values, and return the joined ones in their own sizes."""
    sizes = key.shape[-1], value.shape[-1]
    past = layer.values
    cached = past.shape[-1] if isinstance(past, Tensor) and past.dim() == key.dim() else 0
    width = max(*sizes, cached)
    if sizes == (width, width):
        joined: tuple[Tensor, Tensor] = update(key, value, *args, **kwargs)
        return joined
    padded = (nn.functional.pad(new, (0, width - size)) for new, size in zip((key, value), sizes, strict=True))
    keys, values = update(*padded, *args, **kwargs)
    layer.update_indexer = partial(_update_indexer, layer, past, sizes[1])
    return keys[..., : sizes[0]], values[..., : sizes[1]]


def _update_indexer(layer: Any, past: Tensor, start: int, new: Tensor) -> Tensor:
    """Store keys of an indexer, [batch, tokens, size], after the values of their tokens, and return the keys of all."""
    end = start + new.shape[-1]
    joined = torch.cat((past[:, 0, :, start:end], new), 1)
    layer.values = torch.cat((layer.values[..., :start], joined[:, None], layer.values[..., end:]), -1)
    return joined


def indexed_cache(model: Any) -> Any:
    """A cache with keys of indexers, if a model selects tokens by them; None for others."""
    transformers = import_extra("transformers")
    kind = getattr(transformers.cache_utils, "DynamicIndexedLayer", None)
    cache = transformers.DynamicCache(config=model.config.get_text_config(decoder=True))
    return cache if kind is not None and any(isinstance(layer, kind) for layer in cache.layers) else None


def with_indexer_keys(layer: Any) -> Tensor:
    """The values of a layer as the exported cache has them, with the keys of an indexer after them."""
    keys = getattr(layer, "indexer_keys", None)
    values: Tensor = layer.values
    return values if keys is None else torch.cat((values, keys[:, None]), -1)
