"""Eager results of a GPU in the precision that ONNX files compute in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["full_float32_products"]


@contextmanager
def full_float32_products() -> Iterator[None]:
    """Context in which GPUs do not round the factors of float32 products to TF32, as torch does in convolutions.

    The settings of the process are as before after it. They are read and written by operator, since torch refuses to
    read the older ones, for all operators, where a user has set one of these.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield
        return
    settings: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)  # type: ignore[attr-defined]
    before = [setting.fp32_precision for setting in settings]
    try:
        for setting in settings:
            setting.fp32_precision = "ieee"
        yield
    finally:
        for setting, precision in zip(settings, before, strict=True):
            setting.fp32_precision = precision
