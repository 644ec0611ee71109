"""Attention functions in place of those of transformers while a part is captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from torch import Tensor, nn

from ._extra import import_extra

__all__ = ["attend_within_segments", "attention_function", "skip_attention"]

_NAME = "flash_attention_in_fxonnx"
"""Beginning of the function's name; modules pass ``cu_seqlens`` to implementations of flash attention only."""


@contextmanager
def attention_function(module: nn.Module, function: Callable[..., tuple[Tensor, None]]) -> Iterator[None]:
    """In the body, the attention layers of a module call a function.

    Args:
        module: A module of transformers; its configuration is restored afterwards.
        function: Called with the layer, query, key and value, and keyword arguments.
    """
    functions = import_extra("transformers").modeling_utils.ALL_ATTENTION_FUNCTIONS
    found: list[Any] = [each.config for each in module.modules() if hasattr(each, "config")]
    configs = {id(config): config for config in found}.values()
    before = [config._attn_implementation_internal for config in configs]
    name = f"{_NAME}_{get_ident()}"
    functions[name] = function
    for config in configs:
        config._attn_implementation_internal = name
    try:
        yield
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation_internal = implementation
        del functions[name]


def attend_within_segments(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scaling: float,
    cu_seq_lens_q: Tensor,
    **_unused: Any,
) -> tuple[Tensor, None]:
    """Attention within segments, whose numbers for all positions are given in place of cumulative lengths."""
    mask = cu_seq_lens_q[:, None] == cu_seq_lens_q
    output = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return output.transpose(1, 2), None


def skip_attention(
    _module: nn.Module, query: Tensor, _key: Tensor, value: Tensor, *_unused: Any, **_more: Any
) -> tuple[Tensor, None]:
    """Zeros in the shape of the result, for steps of which only the cache is used."""
    return value.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None
