"""Inputs whose shape ``forward`` changes in place, as by ``x.unsqueeze_(0)``, which torch.export can rarely capture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxonnx_translations._torch_compat import pytree

from ..errors import CaptureError
from .shapes.dynamic_shapes import Leaf

__all__ = ["reshaped_error", "with_reshaped_inputs"]


def with_reshaped_inputs(
    forward: Callable[..., Any], leaves: Sequence[Leaf], reshaped: list[str]
) -> Callable[..., Any]:
    """Wrap ``forward`` so that it reports the inputs that have another shape after the call.

    Args:
        forward: The method, of tensors.
        leaves: The leaves of the inputs.
        reshaped: Receives the labels of these inputs.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        given = zip(pytree.tree_leaves((args, kwargs)), leaves, strict=False)
        before = [(value, value.shape, leaf.label) for value, leaf in given if isinstance(value, torch.Tensor)]
        outputs = forward(*args, **kwargs)
        reshaped[:] = [label for value, shape, label in before if _is_other(value.shape, shape)]
        return outputs

    run.__signature__ = forward.__signature__  # type: ignore[attr-defined]
    return run


def _is_other(shape: torch.Size, before: torch.Size) -> bool:
    """Whether a shape is another one than before.

    Expressions are compared, both after the call: a comparison of symbolic sizes would be a guard, and a guard of the
    model may replace a symbol by a number.
    """
    return [_expression(size) for size in shape] != [_expression(size) for size in before]


def _expression(size: int | torch.SymInt) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def reshaped_error(reshaped: Sequence[str]) -> CaptureError:
    """The error for a capture that failed for inputs with another shape after the call."""
    names = ", ".join(map(repr, reshaped))
    return CaptureError(
        f"forward changes the shape of its input {names} in place, which torch.export cannot capture",
        hint=f"assign the result to a variable: {reshaped[0]} = {reshaped[0]}.unsqueeze(0) in place of "
        f"{reshaped[0]}.unsqueeze_(0)",
    )
