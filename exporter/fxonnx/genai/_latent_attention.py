"""Attention over latent vectors, from which transformers computes the keys and values of all earlier tokens again.

DeepSeek, Kimi, MiniCPM3 and others keep one latent vector for each token in the cache, and multiply the whole cache by
the weight of ``kv_b_proj`` for every new token. The product of a query with a key is that of the latent vector with
the query times the key's part of the weight, and the sum of values that of latent vectors, times the value's part:
a token then takes the time of attention with one head of keys and values (the absorption of arXiv:2405.04434, 2.1.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._extra import import_extra

__all__ = ["attention_over_latents"]

_IMPLEMENTATION = "sdpa"
_OTHERS = ("position_bias", "softcap", "cache")
"""Options of ``sdpa`` for which transformers' function is called."""
# A small layer with unequal sizes, whose keys and values are compared.
_HEADS, _NOPE, _ROTARY, _VALUE, _RANK = 4, 2, 6, 3, 5


@contextmanager
def attention_over_latents(model: nn.Module) -> Iterator[None]:
    """In the body, layers with latent vectors multiply queries, not the cache, by the weight of ``kv_b_proj``.

    Layers whose weight is quantized or has adapters or hooks, and other implementations than ``sdpa``, are left.

    Args:
        model: A decoder-only model of transformers; it is restored afterwards.
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
