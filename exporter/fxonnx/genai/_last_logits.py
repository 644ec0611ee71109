"""Logits of the last position of each row only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["last_logits_only"]


@contextmanager
def last_logits_only(model: Any) -> Iterator[None]:
    """In the body, the model returns one logit vector per row: that of the last token that is not padding.

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
    tokens = hidden.shape[1]
    # Counted from the end: the mask of the new tokens, reversed, is its beginning.
    last = tokens - 1 - mask.flip(1)[:, :tokens].argmax(-1)
    return hidden.gather(1, last[:, None, None].expand(-1, -1, hidden.shape[2]))
