"""The size of a pooled tensor, without a branch.

With ``ceil_mode`` torch rounds up and takes a window back that would begin behind the input. For a dynamic size it asks
whether that is so at the size of the example, and the size it works out is right only where the answer is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._meta_registrations as meta

__all__ = ["pooled_sizes"]


@contextmanager
def pooled_sizes() -> Iterator[None]:
    """Lets torch work out sizes of pooled tensors that are right for every size of the input."""
    branching: Callable[..., Any] = meta.pooling_output_shape_pad_lr

    smaller: Callable[..., Any] = torch.sym_min

    def exact(
        inputSize: Any,
        kernelSize: Any,
        pad_l: Any,
        pad_r: Any,
        stride: Any,
        dilation: Any,
        ceil_mode: Any,
    ) -> Any:
        if not ceil_mode or not isinstance(inputSize, torch.SymInt):
            return branching(inputSize, kernelSize, pad_l, pad_r, stride, dilation, ceil_mode)
        rounded = (inputSize + pad_l + pad_r - dilation * (kernelSize - 1) - 1 + stride - 1) // stride + 1
        # The last window that begins within the input; torch, too, takes no more than one window back.
        return smaller(rounded, (inputSize + pad_l - 1) // stride + 1)

    meta.pooling_output_shape_pad_lr = exact
    try:
        yield
    finally:
        meta.pooling_output_shape_pad_lr = branching
