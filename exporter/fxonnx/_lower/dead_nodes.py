"""Dead code elimination: subgraphs of control flow operators, and optional outputs."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from fxonnx_translations._builder.op_schema import schema_info

__all__ = ["eliminate_dead_nodes", "release_subgraph_uses", "subgraphs", "trim_unused_outputs"]

_ALL_OPTIONAL = frozenset(("com.microsoft", f"Skip{norm}LayerNormalization", "") for norm in ("", "Simplified"))
"""Operators whose outputs after the first are optional, each for itself."""


def subgraphs(node: ir.Node) -> list[ir.Graph]:
    """The subgraphs of a control flow operator."""
    graphs: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            graphs.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            graphs.extend(attribute.as_graphs())
    return graphs


def eliminate_dead_nodes(body: ir.Graph) -> None:
    """Dead code elimination in a subgraph, before the nodes that compute its outer values."""
    outputs = set(body.outputs)
    for node in reversed(body):
        if any(output in outputs or output.uses() for output in node.outputs):
            for inner in subgraphs(node):
                eliminate_dead_nodes(inner)
        else:
            release_subgraph_uses(node)
            body.remove(node, safe=True)


def release_subgraph_uses(node: ir.Node) -> None:
    """Detach the inputs of all nodes in a removed node's subgraphs, so that outer values lose these uses."""
    for body in subgraphs(node):
        for inner in body:
            release_subgraph_uses(inner)
            for index in range(len(inner.inputs)):
                inner.replace_input_with(index, None)


def trim_unused_outputs(node: ir.Node, outputs: Collection[ir.Value], opset: int) -> None:
    """Remove trailing optional outputs without uses."""
    if node.op_identifier() in _ALL_OPTIONAL:
        for output in node.outputs[1:]:
            if not output.uses() and output not in outputs:
                output.name = ""
    schema = schema_info(node.op_type, opset) if node.domain == "" else None
    # Before opset 14, the number of BatchNormalization's outputs selects training mode, although all are optional.
    if schema is None or node.op_type == "BatchNormalization":
        return
    # ONNX Runtime's Attention writes the present outputs whenever a past is given.
    has_past = node.op_type == "Attention" and any(value is not None for value in node.inputs[4:6])
    count, least = len(node.outputs), 3 if has_past else schema.least_outputs
    while count > least and not node.outputs[count - 1].uses() and node.outputs[count - 1] not in outputs:
        count -= 1
    if count < len(node.outputs):
        node.resize_outputs(count)
