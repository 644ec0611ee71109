"""Logits of the last position of each row only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.onnx.ops  # defines the operators

__all__ = ["last_logits_only"]


@contextmanager
def last_logits_only(model: Any) -> Iterator[None]:
    """In the body, the model returns one logit vector per row, for the last token that is not padding.

    onnxruntime-genai pads shorter prompts of a batch on the right, so that the last position may be padding. Models
    without an output embedding are left alone; onnxruntime-genai then selects from all logits.

    Args:
        model: A causal language model of transformers; its hooks are removed afterwards.
    """
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is None:
        yield
        return
    masks: list[torch.Tensor] = []

    def keep_mask(_module: torch.nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        masks[:] = [kwargs["attention_mask"]]

    def select(_module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        return (_last_positions(args[0], masks[0]),)

    hooks = [
        model.register_forward_pre_hook(keep_mask, with_kwargs=True),
        head.register_forward_pre_hook(select),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _last_positions(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Select ``[batch, 1, size]`` from ``[batch, tokens, size]``."""
    # A prompt is padded on the right; later calls have one token per row, or one row without padding.
    last = mask.sum(1).clamp(max=hidden.shape[1]) - 1
    selected: torch.Tensor = torch.onnx.ops.symbolic(
        "GatherND",
        [hidden, last[:, None, None]],
        {"batch_dims": 1},
        dtype=hidden.dtype,
        shape=(hidden.shape[0], 1, hidden.shape[2]),
        version=13,  # the first one with batch_dims for all dtypes
    )
    return selected
