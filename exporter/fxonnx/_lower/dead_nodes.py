"""Dead code elimination in the subgraphs of control flow operators."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["eliminate_dead_nodes", "release_subgraph_uses", "subgraphs"]


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
    """Dead code elimination in a subgraph, before that of the nodes that compute its outer values."""
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
