"""Parameters that the captured program may write to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from fxonnx_translations._torch_compat import OpOverload, pytree

from ._export_signature import read_signature
from ._nodes import schema_of, written_arguments

__all__ = ["written_parameters", "written_placeholders"]


def written_parameters(exported_program: torch.export.ExportedProgram) -> frozenset[str]:
    """FQNs of the parameters to which the captured graph may write."""
    written = written_placeholders(exported_program.graph)
    records = read_signature(exported_program).inputs if written else ()
    return frozenset(
        str(record.target) for record in records if record.kind == InputKind.PARAMETER and record.name in written
    )


def written_placeholders(graph: torch.fx.Graph) -> set[str]:
    """Names of placeholders to which an in-place operator may write, directly, through views or in a subgraph."""
    found = set()
    for node in graph.nodes:
        for operand in _written_operands(node):
            source = operand
            while isinstance(source, torch.fx.Node) and source.op == "call_function":
                source = source.args[0] if source.args else None
            if isinstance(source, torch.fx.Node):
                found.add(source.name)
    return found


def _written_operands(node: torch.fx.Node) -> Iterator[Any]:
    """The operands of a call that it may write: those of an operator, or of one that has subgraphs."""
    if isinstance(node.target, OpOverload):
        if schema_of(node).is_mutable:
            yield from pytree.tree_leaves(list(written_arguments(schema_of(node), node.args, node.kwargs)))
        return
    leaves = pytree.tree_leaves((node.args, node.kwargs))
    for subgraph in filter(None, map(_subgraph, node.all_input_nodes)):
        # The operands follow the subgraphs: (enabled, submodule, *operands), (condition, true, false, operands).
        placeholders = [one.name for one in subgraph.nodes if one.op == "placeholder"]
        operands = leaves[len(leaves) - len(placeholders) :]
        written = written_placeholders(subgraph)
        yield from (operand for name, operand in zip(placeholders, operands, strict=False) if name in written)


def _subgraph(node: torch.fx.Node) -> torch.fx.Graph | None:
    """The graph to which a node refers; None for other nodes."""
    if node.op != "get_attr":
        return None
    value = getattr(node.graph.owning_module, str(node.target), None)
    return value.graph if isinstance(value, torch.fx.GraphModule) else None
