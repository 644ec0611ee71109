"""Node and value names in the style of torch.onnx's TorchScript exporter: ``/features/features.0/Conv_output_0``."""

from __future__ import annotations

import onnx_ir as ir

from .._lower.metadata import SCOPE

__all__ = ["rename_by_scope"]


def rename_by_scope(graph: ir.Graph) -> None:
    """Rename nodes and intermediate values by module path and operator, with a number where that is not unique.

    Inputs, outputs and initializers keep their names.

    Args:
        graph: The completed main graph.
    """
    taken = {str(value.name) for value in (*graph.inputs, *graph.outputs, *graph.initializers.values())}
    kept = set(graph.outputs)
    for node in ir.traversal.RecursiveGraphIterator(graph):
        path = "".join(f"/{scope}" for scope in node.meta.get(SCOPE, ()))
        name = base = f"{path}/{node.op_type}"
        number = 0
        while name in taken:
            number += 1
            name = f"{base}_{number}"
        taken.add(name)
        node.name = name
        for position, value in enumerate(node.outputs):
            if value not in kept and value.name:
                value.name = f"{name}_output_{position}"
