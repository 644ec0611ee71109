"""Padded rows of ``nn.TransformerEncoder``, which eager torch sets to zero where it uses nested tensors.

It does so for inference with a mask that hides the end of each sequence; torch.export traces the other path, which
computes the same for the rows that are not hidden.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fxonnx_translations._torch_compat import arange

from ...._warnings import warn_user
from ...constraints.guard_recorder import user_line
from ...suspicions.departures import DepartureKind, record_departure
from ..patch import Patch

__all__ = ["ENCODER_PATCHES"]


_WITH_GRADIENTS = (
    "within torch.no_grad(), nn.TransformerEncoder sets the rows that src_key_padding_mask hides to zero; the model is "
    "exported with gradients, where these rows have other values"
)
_HINT = "\nhint: export within torch.no_grad() for zeros; or pass enable_nested_tensor=False to nn.TransformerEncoder"


def _forward(
    original: Callable[..., Tensor],
    self: nn.TransformerEncoder,
    src: Tensor,
    mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Tensor:
    if src_key_padding_mask is None or mask is not None or not _may_use_nested_tensors(self, src):
        return original(self, src, mask, src_key_padding_mask, is_causal)
    if _needs_gradients(self, src):
        line = user_line(sys._getframe())
        warn_user(_WITH_GRADIENTS + ("" if line is None else f"\n  at: {line}") + _HINT)
        return original(self, src, mask, src_key_padding_mask, is_causal)
    record_departure(DepartureKind.REPLACED, "torch.nn.TransformerEncoder.forward")
    hidden = src_key_padding_mask.logical_not().logical_not()
    if not getattr(self, "mask_check", True):
        # Then it takes as many rows from the beginning as are not hidden.
        hidden = arange(hidden.shape[1], device=hidden.device) >= hidden.logical_not().sum(1, keepdim=True)
        src_key_padding_mask = hidden
    output = original(self, src, mask, src_key_padding_mask, is_causal)
    # Only if each mask hides the end of its sequence: no row follows a hidden one.
    hidden = hidden & ~(hidden[:, :-1] & ~hidden[:, 1:]).any()
    padding = torch.zeros_like(output[:1, :1])
    if self.norm is not None:
        padding = self.norm(padding)
    return torch.where(hidden[..., None], padding, output)


def _may_use_nested_tensors(encoder: nn.TransformerEncoder, src: Tensor) -> bool:
    """Whether eager torch makes a nested tensor of an input with a mask, if it computes no gradients."""
    first: Any = encoder.layers[0]
    return (
        torch.backends.mha.get_fastpath_enabled()
        and bool(getattr(encoder, "use_nested_tensor", False))
        and not first.training
        and src.dim() == 3
        and not torch.is_autocast_enabled()
    )


def _needs_gradients(encoder: nn.TransformerEncoder, src: Tensor) -> bool:
    """Whether eager torch computes gradients, and no nested tensor then."""
    first: Any = encoder.layers[0]
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (src, *first.parameters()))


ENCODER_PATCHES: tuple[Patch, ...] = (
    Patch(
        "torch.nn.modules.transformer:TransformerEncoder.forward",
        _forward,
        "without gradients, eager torch sets the rows that the mask hides to zero, and torch.export does not",
        strict=False,
    ),
)
"""The patch of the capture."""
