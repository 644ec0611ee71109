"""Facts about the model and the target that the graph does not have, for the fusion patterns that need them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fxonnx_translations._builder.dtypes import from_torch

from ..._targets import TargetProfile

__all__ = ["PatternContext", "pattern_context"]


@dataclass(frozen=True)
class PatternContext:
    """Facts that fusion patterns read.

    Attributes:
        max_positions: The number of positions that the model supports; None if it is not known.
        cached_attention: Dtypes for which the target has kernels of attention over buffers of fixed length.
        masks_scores: Whether those kernels add a bias to the scores, which masks padding before a sequence.
        experts: Dtypes for which the target has kernels of mixtures of experts.
    """

    max_positions: int | None = None
    cached_attention: frozenset[torch.dtype] = frozenset()
    masks_scores: bool = True
    experts: frozenset[torch.dtype] = frozenset()


def pattern_context(model: Any, profile: TargetProfile) -> PatternContext:
    """Collect the facts about a model and the profile of its target.

    Args:
        model: The model; one of transformers, or a module that contains one, has a configuration.
        profile: The target.
    """
    attention, experts = (
        frozenset(
            dtype
            for dtype in (torch.float32, torch.float16, torch.bfloat16)
            if profile.has_kernel(name, from_torch(dtype), 1, domain="com.microsoft")
        )
        for name in ("GroupQueryAttention", "MoE")
    )
    limits = _position_limits(model) if isinstance(model, torch.nn.Module) else ()
    return PatternContext(max(limits, default=None), attention, profile.masks_scores, experts)


def _position_limits(model: torch.nn.Module) -> Iterator[int]:
    for module in model.modules():
        limit = getattr(getattr(module, "config", None), "max_position_embeddings", None)
        if isinstance(limit, int):
            yield limit
