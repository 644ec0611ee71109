"""Functions as modules, for models of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["Function"]


class Function(nn.Module):
    """A model of one tensor.

    Args:
        function: What its forward computes.
    """

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)
