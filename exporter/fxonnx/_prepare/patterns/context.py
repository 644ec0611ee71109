"""Facts about the model and the target that the graph does not have, for the fusion patterns that need them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fxonnx_translations._builder.dtypes import from_torch

from ..._targets import TargetProfile

__all__ = ["PatternContext", "pattern_context"]

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class PatternContext:
    """Facts that fusion patterns read.

    Attributes:
        max_positions: The number of positions that the model supports; None if it is not known.
        cached_attention: Dtypes for which the target has kernels of attention over buffers of fixed length.
        skip_norms: Dtypes for which it has kernels of a residual connection with its norm.
        attention: The forms of those kernels besides causal attention, see ``TargetProfile``; a bias of the scores
            masks padding before a sequence.
        experts: Dtypes for which the target has kernels of mixtures of experts.
    """

    max_positions: int | None = None
    cached_attention: frozenset[torch.dtype] = frozenset()
    skip_norms: frozenset[torch.dtype] = frozenset()
    attention: frozenset[str] = frozenset()
    experts: frozenset[torch.dtype] = frozenset()


def pattern_context(model: Any, profile: TargetProfile) -> PatternContext:
    """Collect the facts about a model and the profile of its target.

    Args:
        model: The model; one of transformers, or a module that contains one, has a configuration.
        profile: The target.
    """
    attention, skip_norms, experts = (
        frozenset(dtype for dtype in _DTYPES if _has_kernel(profile, name, dtype))
        for name in ("GroupQueryAttention", "SkipSimplifiedLayerNormalization", "MoE")
    )
    limits = _position_limits(model) if isinstance(model, torch.nn.Module) else ()
    return PatternContext(max(limits, default=None), attention, skip_norms, profile.attention, experts)


def _has_kernel(profile: TargetProfile, name: str, dtype: torch.dtype) -> bool:
    return profile.has_kernel(name, from_torch(dtype), 1, variable="T", domain="com.microsoft")


def _position_limits(model: torch.nn.Module) -> Iterator[int]:
    for module in model.modules():
        limit = getattr(getattr(module, "config", None), "max_position_embeddings", None)
        if isinstance(limit, int):
            yield limit
