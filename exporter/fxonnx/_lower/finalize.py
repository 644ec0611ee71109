"""The end of the lowering: dead nodes and optional outputs, recorded shapes and the names of nodes."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from fxonnx_translations._builder.builder import Builder, Unsupported
from fxonnx_translations._builder.op_schema import schema_info

from ..errors import TranslationError

__all__ = ["finalize", "subgraphs"]


def finalize(builder: Builder) -> None:
    """Eliminate dead nodes and initializers; record shapes of the remaining values, and name the nodes."""
    graph = builder.graph
    outputs = set(graph.outputs)
    for node in reversed(graph):
        if not any(output in outputs or output.uses() for output in node.outputs):
            _release_subgraph_uses(node)
            unrounded = builder.unrounded.get(node.outputs[0])
            graph.remove(node, safe=True)
            if unrounded is not None and unrounded.uses() and unrounded not in outputs:
                # It takes the place of the rounded value, and the FX node's name.
                unrounded.name = node.outputs[0].name
                unrounded.metadata_props.update(node.outputs[0].metadata_props)
        else:
            for body in subgraphs(node):
                _eliminate_dead_nodes(body)
    for node in graph:
        if len(node.outputs) > 1:
            _trim_unused_outputs(node, outputs, builder.opset_version)
    is_foreign = any(node.domain not in ("", "ai.onnx") for node in graph)
    for node in ir.traversal.RecursiveGraphIterator(graph):
        # Value names are unique in the whole model, subgraphs included.
        node.name = f"node_{node.outputs[0].name}"
    for node in graph:
        for output in node.outputs:
            if output.shape is None and (output.uses() or output in outputs):
                try:
                    builder.write_shape(output, builder.dims(output))
                except Unsupported as error:
                    # Operators of other domains have no shape inference: their outputs keep the shapes torch recorded.
                    if not is_foreign:
                        raise TranslationError(str(error), target=node.op_type) from error
    kept = outputs.union(graph.inputs)
    unused = [name for name, value in graph.initializers.items() if not value.uses() and value not in kept]
    for name in unused:
        del graph.initializers[name]


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


def _eliminate_dead_nodes(body: ir.Graph) -> None:
    """Dead code elimination in a subgraph, before the nodes that compute its outer values."""
    outputs = set(body.outputs)
    for node in reversed(body):
        if any(output in outputs or output.uses() for output in node.outputs):
            for inner in subgraphs(node):
                _eliminate_dead_nodes(inner)
        else:
            _release_subgraph_uses(node)
            body.remove(node, safe=True)


def _release_subgraph_uses(node: ir.Node) -> None:
    """Detach the inputs of all nodes in a removed node's subgraphs, so that outer values lose these uses."""
    for body in subgraphs(node):
        for inner in body:
            _release_subgraph_uses(inner)
            for index in range(len(inner.inputs)):
                inner.replace_input_with(index, None)


def _trim_unused_outputs(node: ir.Node, outputs: Collection[ir.Value], opset: int) -> None:
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
