"""The size of a pooled tensor, without a branch.

Until version 2.12, torch asks whether the division leaves a remainder, and an export holds for such sizes only. With
``ceil_mode`` torch rounds up and removes a window that would begin after the end of the input. For a dynamic size it
evaluates that condition at the size of the example, and the computed size is right only where the answer is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["pooling_output_shape"]

_smaller: Callable[..., Any] = torch.sym_min  # without types in torch


def pooling_output_shape(
    original: Callable[..., Any],
    inputSize: Any,
    kernelSize: Any,
    pad_l: Any,
    pad_r: Any,
    stride: Any,
    dilation: Any,
    ceil_mode: Any,
) -> Any:
    """The size of a pooled tensor, right for every size of the input."""
    if not isinstance(inputSize, torch.SymInt):
        return original(inputSize, kernelSize, pad_l, pad_r, stride, dilation, ceil_mode)
    last = inputSize + pad_l + pad_r - dilation * (kernelSize - 1) - 1
    if not ceil_mode:
        return last // stride + 1
    rounded = (last + stride - 1) // stride + 1
    # The last window that begins within the input; torch, too, removes no more than one window.
    return _smaller(rounded, (inputSize + pad_l - 1) // stride + 1)
