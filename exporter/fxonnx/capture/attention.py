"""Attention whose ``is_causal`` torch does not know while it captures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

__all__ = ["symbolic_causality"]


@contextmanager
def symbolic_causality() -> Iterator[None]:
    """Lets ``scaled_dot_product_attention`` take an ``is_causal`` that depends on a size, as transformers passes it.

    transformers says ``is_causal = length > 1 and mask is None``, which is the comparison itself for a length of 1.
    Beside a mask it can only be False; without one the question is asked, and the answer holds for such lengths only.
    """
    original: Callable[..., Any] = F.scaled_dot_product_attention

    def attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: Any = False,
        **options: Any,
    ) -> Any:
        if isinstance(is_causal, torch.SymBool):
            is_causal = attn_mask is None and bool(is_causal)
        return original(query, key, value, attn_mask, dropout_p, is_causal, **options)

    setattr(F, "scaled_dot_product_attention", attention)  # noqa: B010 - typed as a function of bools
    try:
        yield
    finally:
        setattr(F, "scaled_dot_product_attention", original)  # noqa: B010
