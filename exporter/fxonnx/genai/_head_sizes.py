"""Caches whose keys and values have different sizes, in tensors of one size: onnxruntime-genai has one for a layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from ._extra import import_extra

__all__ = ["equal_head_sizes"]


@contextmanager
def equal_head_sizes(model: Any) -> Iterator[None]:
    """In the body, the cache keeps the smaller one of keys and values with zeros up to the size of the other.

    Latent attention keeps the latent vector as the key, and the rotated part of the key, for all heads, as the value.

    Args:
        model: A decoder-only model of transformers; its hook is removed afterwards.
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
            layer.update = partial(_update, layer.update)


def _update(update: Any, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Pad the new keys and values, and return the joined ones in their own sizes."""
    sizes = key.shape[-1], value.shape[-1]
    if sizes[0] == sizes[1]:
        joined: tuple[Tensor, Tensor] = update(key, value, *args, **kwargs)
        return joined
    padded = (nn.functional.pad(new, (0, max(sizes) - size)) for new, size in zip((key, value), sizes, strict=True))
    keys, values = update(*padded, *args, **kwargs)
    return keys[..., : sizes[0]], values[..., : sizes[1]]
