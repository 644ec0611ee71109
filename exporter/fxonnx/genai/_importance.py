"""The importance of the input features of linear layers, by which the rounding of their weights is chosen."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from ._texts import MEASURED, tokens_of

__all__ = ["measured_importance"]

_TOKENS = 640


def measured_importance(model: Any, tokenizer: Any) -> dict[str, torch.Tensor]:
    """Run a model of one text on a text, and return the mean square of each input feature of its layers.

    Args:
        model: The model, with its weights.
        tokenizer: Its tokenizer.

    Returns:
        Name of the weight to the mean squares, of layers that multiply their input by a matrix.
    """
    found: dict[str, torch.Tensor] = {}

    def recording(name: str) -> Callable[[Any, tuple[Any, ...]], None]:
        def record(module: Any, arguments: tuple[Any, ...]) -> None:
            inputs = arguments[0] if arguments else None
            if (
                isinstance(inputs, torch.Tensor)
                and inputs.is_floating_point()
                and inputs.shape[-1] in module.weight.shape
            ):
                squares = inputs.detach().double().square().flatten(0, -2).mean(0).float()
                if bool(torch.isfinite(squares).all()):
                    found[f"{name}.weight"] = squares.cpu()

        return record

    with ExitStack() as hooks, torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(getattr(module, "weight", None), torch.nn.Parameter) and module.weight.dim() == 2:
                hooks.callback(module.register_forward_pre_hook(recording(name)).remove)
        model(tokens_of(MEASURED, model, tokenizer, _TOKENS))
    return found
