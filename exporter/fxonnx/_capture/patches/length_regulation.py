"""Replacements of functions of speech models that depend on predicted durations.

FastSpeech2Conformer repeats every token by its predicted duration, in a loop over the batch, and then chooses a table
of positions by the resulting unbacked length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_guarding_hint

__all__ = ["length_regulator", "position_table"]

# Functions of torch without type annotations.
_arange: Callable[..., Any] = torch.arange
_check: Callable[..., Any] = torch._check


def length_regulator(
    original: Callable[..., Any], encoded_embeddings: Tensor, duration_labels: Tensor, speaking_speed: float = 1.0
) -> Tensor:
    """``length_regulator`` without a branch on the durations and without a loop over the batch."""
    if speaking_speed <= 0:
        return original(encoded_embeddings, duration_labels, speaking_speed)  # type: ignore[no-any-return]
    if speaking_speed != 1.0:
        duration_labels = torch.round(duration_labels.float() * speaking_speed).long()
    # As in the original, the caller's durations change if all are 0.
    duration_labels.copy_(torch.where(duration_labels.sum() == 0, 1, duration_labels))
    ends = duration_labels.cumsum(1)
    lengths = ends[:, -1]
    longest: Any = lengths.max().item()
    _check(longest >= 0)
    steps = _arange(longest, device=ends.device)
    # The token of a step is the number of tokens that end before it.
    token = (ends[:, None, :] <= steps[None, :, None]).sum(2).clamp(max=ends.shape[1] - 1)
    repeated = encoded_embeddings.gather(1, token[..., None].expand(-1, -1, encoded_embeddings.shape[2]))
    return torch.where((steps < lengths[:, None])[..., None], repeated.float(), 0.0)


def position_table(original: Callable[..., Any], self: Any, x: Tensor, pos_enc: Tensor | None = None) -> Any:
    """``extend_pos_enc``: the stored table of positions, which must be long enough for an unbacked length."""
    if pos_enc is not None and not has_guarding_hint(x.size(1)):
        _check(x.size(1) * 2 - 1 <= pos_enc.size(1))
    return original(self, x, pos_enc)
