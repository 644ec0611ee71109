"""Padded rows of ``nn.TransformerEncoder``, which eager torch sets to zero where it uses nested tensors.

It does so for inference with a mask that hides the end of each sequence; torch.export traces the other path, which
computes the same for the rows that are not hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...departures import DepartureKind, record_departure
from ..patch import Patch

__all__ = ["ENCODER_PATCHES"]


def _forward(
    original: Callable[..., Tensor],
    self: nn.TransformerEncoder,
    src: Tensor,
    mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Tensor:
    output = original(self, src, mask, src_key_padding_mask, is_causal)
    if src_key_padding_mask is None or mask is not None or not _uses_nested_tensors(self, src):
        return output
    record_departure(DepartureKind.REPLACED, "torch.nn.TransformerEncoder.forward")
    hidden = src_key_padding_mask.logical_not().logical_not()
    if getattr(self, "mask_check", True):
        # Only if each mask hides the end of its sequence: no row follows a hidden one.
        hidden = hidden & ~(hidden[:, :-1] & ~hidden[:, 1:]).any()
    padding = torch.zeros_like(output[:1, :1])
    if self.norm is not None:
        padding = self.norm(padding)
    return torch.where(hidden[..., None], padding, output)


def _uses_nested_tensors(encoder: nn.TransformerEncoder, src: Tensor) -> bool:
    """Whether eager torch makes a nested tensor of an input with a mask that hides the end of each sequence."""
    first: Any = encoder.layers[0]
    return (
        torch.backends.mha.get_fastpath_enabled()
        and bool(getattr(encoder, "use_nested_tensor", False))
        and not first.training
        and src.dim() == 3
        and not torch.is_autocast_enabled()
        and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (src, *first.parameters())))
    )


ENCODER_PATCHES = (
    Patch(
        "torch.nn.modules.transformer:TransformerEncoder.forward",
        _forward,
        "without gradients, eager torch sets the rows that the mask hides to zero, and torch.export does not",
        strict=False,
    ),
)
"""The patch of the capture."""
