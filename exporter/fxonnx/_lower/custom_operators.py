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
    outputs: Sequence[ir.DataType | int | None],
) -> tuple[ir.Value, ...]:
    """Emit a custom operator.

    Args:
        op: The op object of the node.
        opsets: Opset versions of custom domains; 1 for domains that are not listed.
        operator: Domain and name.
        inputs: As for ``as_input``.
        attributes: The attributes.
        outputs: For each output its element type, or the position of the input whose type it has; None if neither is
            known, which torch's type replaces if the output is a result of the node.
    """
    domain, name = operator
    values = [as_input(op, value) for value in inputs]
    made = op.builder.emit_verbatim(name, values, attributes, len(outputs), domain, opsets.get(domain, 1))
    for value, rule in zip(made, outputs, strict=True):
        source = values[rule] if isinstance(rule, int) and rule < len(values) else None
        if isinstance(rule, ir.DataType):
            value.type = ir.TensorType(rule)
        elif source is not None:
            value.type = source.type
    return made
