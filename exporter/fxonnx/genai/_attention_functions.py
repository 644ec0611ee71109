"""Attention functions in place of transformers' while a part is captured."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

__all__ = ["attend_within_segments", "skip_attention"]


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
