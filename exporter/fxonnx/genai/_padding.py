"""Padding of prompts: onnxruntime-genai pads on the right only."""

from __future__ import annotations

import onnx_ir as ir

from .._lower.dead_nodes import eliminate_dead_nodes

__all__ = ["remove_padding_bias"]

_BIAS = 10
"""The input of GroupQueryAttention that masks padding before a sequence; the lengths mask the padding after it."""


def remove_padding_bias(graph: ir.Graph) -> None:
    """Remove the mask of padding on the left, which slows attention down.

    Args:
        graph: The graph of a decoder; changed in place.
    """
    biased = [
        node
        for node in graph
        if node.op_type == "GroupQueryAttention" and len(node.inputs) > _BIAS and node.inputs[_BIAS] is not None
    ]
    if not biased:
        return
    for node in biased:
        node.replace_input_with(_BIAS, None)
        node.resize_inputs(1 + max(index for index, value in enumerate(node.inputs) if value is not None))
    eliminate_dead_nodes(graph)
    used = {*graph.inputs, *graph.outputs}
    for name, value in [*graph.initializers.items()]:
        if not value.uses() and value not in used:
            del graph.initializers[name]
