"""Operators of custom domains that user translations emit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from fxonnx_translations._builder.op import Op

__all__ = ["as_input", "emit_custom"]


def as_input(op: Op, argument: Any) -> ir.Value | None:
    """The graph value of a value, tensor, number, list of numbers or size; None for an absent input."""
    if argument is None or isinstance(argument, ir.Value):
        return argument
    if isinstance(argument, (torch.Tensor, bool, int, float)):
        return op.const(torch.as_tensor(argument))
    if isinstance(argument, (list, tuple)) and all(isinstance(item, (int, float)) for item in argument):
        return op.const(torch.tensor(argument))
    return op.size(argument)


def emit_custom(
    op: Op,
    opsets: Mapping[str, int],
    operator: tuple[str, str],
    inputs: Sequence[Any],
    attributes: Mapping[str, Any],
    outputs: int,
) -> tuple[ir.Value, ...]:
    """Emit a custom operator; its outputs have the first input's element type, or else the node's result's.

    Args:
        op: The op object of the node.
        opsets: Opset versions of custom domains; 1 for domains that are not listed.
        operator: Domain and name.
        inputs: As for ``as_input``.
        attributes: The attributes.
        outputs: Number of outputs.
    """
    domain, name = operator
    values = [as_input(op, value) for value in inputs]
    dtypes = [value.dtype for value in values if value is not None and value.dtype is not None]
    dtype = dtypes[0] if dtypes else op.results[0].dtype
    return op.verbatim(name, values, attributes, [dtype] * outputs, domain=domain, version=opsets.get(domain, 1))
