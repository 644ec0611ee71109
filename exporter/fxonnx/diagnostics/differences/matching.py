"""Comparison of one captured value with the ONNX value that stands for it."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import onnx_ir as ir
import torch

from ..._comparison import Tolerance
from ..._lower.metadata import class_scopes_of, target_name
from ..._program.value_comparison import ValueDifference, source_text, statistics_of
from ..._provenance import source_line

__all__ = ["difference_of", "in_same_layout", "replacement_of"]


def difference_of(
    node: torch.fx.Node,
    name: str,
    value: ir.Value,
    expected: torch.Tensor,
    actual: torch.Tensor,
    tolerance: Tolerance,
    *,
    error: float | None = None,
) -> ValueDifference:
    """Compare the result of an operator, applied to the ONNX values of its inputs, with the ONNX value of its result.

    Args:
        node: The FX node.
        name: Name of the captured value.
        value: The ONNX value.
        expected: PyTorch's result.
        actual: The ONNX result.
        tolerance: The tolerances.
        error: The difference to the captured program's own value.
    """
    found = _described(node, name, str(value.name), expected, error)
    real, same = in_same_layout(expected, actual.to(expected.device))
    if same is None:
        return found
    own_error, message = tolerance.difference(real, same)
    found = replace(found, own_error=own_error)
    if not message:
        return found
    return replace(found, is_wrong=True, message=message, expected=statistics_of(real), actual=statistics_of(same))


def in_same_layout(expected: torch.Tensor, actual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return both tensors as real ones of PyTorch's shape; None for an ONNX value with another layout.

    Flattened tokens, ``[batch * length, width]``, are brought into the shape ``[batch, length, width]``.
    """
    real = torch.view_as_real(expected.detach().resolve_conj()) if expected.is_complex() else expected.detach()
    if actual.shape == real.shape:
        return real, actual
    if actual.dim() and real.dim() and actual.numel() == real.numel() and actual.shape[-1] == real.shape[-1]:
        return real, actual.reshape(real.shape)
    return real, None


def replacement_of(expected: torch.Tensor, actual: torch.Tensor) -> torch.Tensor | None:
    """The ONNX value in the form of PyTorch's, to continue with; None if it is equal or has another layout."""
    real, same = in_same_layout(expected, actual.to(expected.device))
    if same is None or (same.dtype == real.dtype and torch.equal(same, real)):
        return None
    same = same.to(real.dtype)
    return torch.view_as_complex(same.contiguous()) if expected.is_complex() else same


def _described(
    node: torch.fx.Node, name: str, value: str, tensor: torch.Tensor, error: float | None
) -> ValueDifference:
    """A value with its operator, module and source line."""
    call: Any = node.args[0] if node.target is operator.getitem else node
    scopes = class_scopes_of(node) or class_scopes_of(call)
    path, class_name = scopes[-1] if scopes else ("", "")
    line = source_line(node if node.meta.get("stack_trace") else call)
    return ValueDifference(
        name,
        value,
        target_name(call),
        path.split("@")[0],
        class_name.rpartition(".")[2],
        line,
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        source_text(line),
        error,
    )
