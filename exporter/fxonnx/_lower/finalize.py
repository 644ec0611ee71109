"""The end of the lowering: dead nodes, recorded shapes and the names of nodes."""

from __future__ import annotations

import onnx_ir as ir

from fxonnx_translations._builder.builder import Builder, Unsupported

from ..errors import TranslationError
from .dead_nodes import eliminate_dead_nodes, release_subgraph_uses, subgraphs, trim_unused_outputs

__all__ = ["finalize"]


def finalize(builder: Builder) -> None:
    """Eliminate dead nodes and initializers; record shapes of the remaining values, and name the nodes."""
    graph = builder.graph
    outputs = set(graph.outputs)
    for node in reversed(graph):
        if not any(output in outputs or output.uses() for output in node.outputs):
            release_subgraph_uses(node)
            unrounded = builder.unrounded.get(node.outputs[0])
            graph.remove(node, safe=True)
            if unrounded is not None and unrounded.uses() and unrounded not in outputs:
                # It takes the place of the rounded value, and the FX node's name.
                unrounded.name = node.outputs[0].name
                unrounded.metadata_props.update(node.outputs[0].metadata_props)
        else:
            for body in subgraphs(node):
                eliminate_dead_nodes(body)
    for node in graph:
        if len(node.outputs) > 1:
            trim_unused_outputs(node, outputs, builder.opset_version)
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
