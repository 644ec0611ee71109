"""The names that torch.onnx gave with its first exporter: ``/features/features.0/Conv_output_0``."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["SCOPE", "rename_by_scope"]

SCOPE = "fxonnx.scope"
"""Key of ``ir.Node.meta``: the paths of the modules around, from the outside in."""


def rename_by_scope(graph: ir.Graph) -> None:
    """Renames nodes and the values between them by module path and operator, numbered where that is not unique.

    Inputs, outputs and initializers keep their names.

    Args:
        graph: The main graph, complete.
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
