"""Parameters that the captured program may write to."""

from __future__ import annotations

from typing import Any

import torch
from torch.export.graph_signature import InputKind

from fxonnx_translations._torch_compat import OpOverload

from .._export_signature import read_signature

__all__ = ["written_parameters", "written_placeholders"]


def written_parameters(exported_program: torch.export.ExportedProgram) -> frozenset[str]:
    """FQNs of the parameters to which the captured graph may write."""
    written = written_placeholders(exported_program.graph)
    records = read_signature(exported_program).inputs if written else ()
    return frozenset(
        str(record.target) for record in records if record.kind == InputKind.PARAMETER and record.name in written
    )


def written_placeholders(graph: torch.fx.Graph) -> set[str]:
    """Names of placeholders to which an in-place operator may write, directly or through views."""
    found = set()
    for node in graph.nodes:
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            source: Any = node
            while isinstance(source, torch.fx.Node) and source.op == "call_function":
                source = source.args[0] if source.args else None
            if isinstance(source, torch.fx.Node):
                found.add(source.name)
    return found
