"""The batch size of a packed sequence, recorded on its tensor of batch sizes, whose first element it is."""

from __future__ import annotations

import torch

__all__ = ["Size", "record_batch_size", "recorded_batch_size"]

Size = int | torch.SymInt

_ATTRIBUTE = "_fxonnx_batch_size"


def record_batch_size(batch_sizes: torch.Tensor, size: Size) -> None:
    """Record the batch size on a traced tensor of batch sizes."""
    setattr(batch_sizes, _ATTRIBUTE, size)


def recorded_batch_size(batch_sizes: torch.Tensor) -> Size | None:
    """The recorded batch size, or None if the tensor is not known to be one of batch sizes."""
    return getattr(batch_sizes, _ATTRIBUTE, None)
