"""``tensor.data`` in forward: an alias that torch.export loses, so that writes through it would be lost as well."""

from __future__ import annotations

from typing import Any

import torch

from fxonnx_translations.torch_compat import FakeTensor, recording_mode

from .patch import is_tracing

__all__ = ["RecordedData"]


class RecordedData:
    """``Tensor.data``: ``detach()`` and ``copy_()`` of the tensors of a model that is recorded, as before for others.

    Args:
        original: The attribute of torch.
    """

    def __init__(self, original: Any) -> None:
        self._original = original

    def __get__(self, tensor: torch.Tensor | None, owner: type | None = None) -> Any:
        if tensor is not None and _is_recorded(tensor):
            return tensor.detach()
        return self._original.__get__(tensor, owner)

    def __set__(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        if not _is_recorded(tensor):
            self._original.__set__(tensor, value)
            return
        if tensor.shape != value.shape or tensor.dtype != value.dtype:
            raise RuntimeError(
                "a tensor of another shape or dtype is assigned to .data in forward, which cannot be captured; "
                "give the new tensor a name of its own"
            )
        with torch.no_grad():
            tensor.copy_(value)


def _is_recorded(tensor: torch.Tensor) -> bool:
    return is_tracing() and isinstance(tensor, FakeTensor) and recording_mode() is not None
