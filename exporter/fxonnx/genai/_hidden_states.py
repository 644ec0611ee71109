"""The last hidden states of a decoder as a further output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import ArgumentError

__all__ = ["HIDDEN_STATES", "returning_hidden_states"]

HIDDEN_STATES = "hidden_states"
"""Name of the output."""


@contextmanager
def returning_hidden_states(model: Any) -> Iterator[None]:
    """In the body, the model also returns ``hidden_states``: those after the last layer and its norm, of all positions.

    Args:
        model: A causal language model of transformers; its hooks are removed afterwards.

    Raises:
        ArgumentError: If it is not one with a model inside of it, whose output they are.
    """
    inner = model.base_model
    if inner is model:
        raise ArgumentError(HIDDEN_STATES, f"{type(model).__name__} has no model without an output embedding")
    found: list[torch.Tensor] = []

    def keep(_module: torch.nn.Module, _args: Any, output: Any) -> None:
        found[:] = [output[0]]

    def add(_module: torch.nn.Module, _args: Any, output: Any) -> Any:
        if isinstance(output, tuple):  # with recurrent states, which are tensors
            return (*output, found.pop())
        output[HIDDEN_STATES] = found.pop()
        return output

    hooks = [inner.register_forward_hook(keep), model.register_forward_hook(add)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
