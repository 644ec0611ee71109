"""Graph inputs and outputs that are lists of tensors: ONNX sequences."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["is_sequence", "type_text"]


def is_sequence(value: ir.Value) -> bool:
    """Whether a graph input or output is a list of tensors; its dtype and shape are an item's."""
    return isinstance(value.type, ir.SequenceType)


def type_text(value: ir.Value, text: str) -> str:
    """The type of a graph input or output, for messages.

    Args:
        value: The graph input or output.
        text: The type of the tensor, or of an item of the list.
    """
    return f"seq({text})" if is_sequence(value) else text
