"""Padding of prompts: onnxruntime-genai pads on the right only, with masks of 0 and 1."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["assume_right_padding"]

_LENGTHS, _BIAS = 5, 10
"""Inputs of GroupQueryAttention: the lengths mask padding after a sequence, and the bias that before it."""


def assume_right_padding(graph: ir.Graph) -> None:
    """Remove the mask of padding on the left, which slows attention down; a length is the sum of the mask.

    Args:
        graph: The graph of a decoder; changed in place.
    """
    attentions = [node for node in graph if node.op_type == "GroupQueryAttention"]
    if not attentions:
        return
    for node in attentions:
        if len(node.inputs) > _BIAS and node.inputs[_BIAS] is not None:
            node.replace_input_with(_BIAS, None)
            node.resize_inputs(1 + max(index for index, value in enumerate(node.inputs) if value is not None))
    for lengths in {node.inputs[_LENGTHS]: None for node in attentions}:
        _count_without_offset(lengths)
    _merge_sums(graph)
    for node in reversed(graph):
        if not any(output.uses() or output.is_graph_output() for output in node.outputs):
            graph.remove(node, safe=True)
    used = {*graph.inputs, *graph.outputs}
    for name, value in [*graph.initializers.items()]:
        if not value.uses() and value not in used:
            del graph.initializers[name]


def _count_without_offset(lengths: ir.Value | None) -> None:
    """Simplify ``sum(sign(mask)) + argmax(sign(mask)) - 1`` to ``sum(mask) - 1``."""
    less_one = _operand(_producer(lengths, "Cast"), "Sub")
    end = _operand(less_one, "Add")
    tokens, offset = _operand(end, "ReduceSum"), _operand(end, "ArgMax")
    signs = _operand(tokens, "Sign")
    if less_one is None or tokens is None or signs is None or _operand(offset, "Sign") is not signs:
        return
    less_one.replace_input_with(0, tokens.outputs[0])
    tokens.replace_input_with(0, signs.inputs[0])


def _merge_sums(graph: ir.Graph) -> None:
    """Compute equal sums once: the logits of the last token are selected by the sum of the mask as well."""
    first: dict[ir.Value | None, ir.Node] = {}
    for node in graph:
        if node.op_type != "ReduceSum":
            continue
        equal = first.setdefault(node.inputs[0], node)
        if equal is not node and equal.inputs == node.inputs and equal.attributes == node.attributes:
            node.outputs[0].replace_all_uses_with(equal.outputs[0])


def _producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op_type else None


def _operand(node: ir.Node | None, op_type: str) -> ir.Node | None:
    """The operator of a type that computes an input of a node."""
    found = (_producer(value, op_type) for value in (() if node is None else node.inputs))
    return next((operand for operand in found if operand is not None), None)
