"""Small modules that several tests share: modules created from functions, and a loop over a tensor's value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["Doubling", "Function", "VariadicFunction"]


class Function(nn.Module):
    """A function of one or two inputs as a module with the parameters ``x`` and ``y``.

    Args:
        function: The body of ``forward``; called with ``x`` alone if ``y`` is not given.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any, y: Any = None) -> Any:
        return self.function(x) if y is None else self.function(x, y)


class VariadicFunction(nn.Module):
    """A function of any number of tensors as a module with the parameter ``*inputs``.

    ``dynamic_shapes`` for it is a tuple of one tuple.

    Args:
        function: The body of ``forward``; a module becomes a submodule.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


class Doubling(nn.Module):
    """A layer that is applied in a ``while`` loop, to a tensor of shape ``(n, 4)``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while x.sum() < 100:
            x = self.layer(x).abs() + x + 1
        return x
