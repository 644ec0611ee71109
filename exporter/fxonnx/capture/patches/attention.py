"""Attention whose ``is_causal`` is a symbolic condition while a model is captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(
    original: Callable[..., Any],
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: Any = False,
    **options: Any,
) -> Any:
    """Accept an ``is_causal`` that depends on a size, as transformers passes it.

    transformers passes ``is_causal = length > 1 and mask is None``, which is the comparison itself for a length of 1.
    With a mask it can only be False; without one the condition is evaluated, which adds a guard.
    """
    if isinstance(is_causal, torch.SymBool):
        is_causal = attn_mask is None and bool(is_causal)
    return original(query, key, value, attn_mask, dropout_p, is_causal, **options)
