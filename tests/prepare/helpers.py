"""Graph modules for tests of passes: captured, copied as the pipeline does, and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..functions import VariadicFunction

__all__ = ["capture", "own_copy", "run", "targets", "tensors"]


def capture(
    model: Callable[..., Any], args: tuple[Any, ...], dynamic_shapes: Any = None, strict: bool = False
) -> torch.export.ExportedProgram:
    """Capture a module or a function."""
    if not isinstance(model, nn.Module):
        model = VariadicFunction(model)
        dynamic_shapes = None if dynamic_shapes is None else (dynamic_shapes,)
    return torch.export.export(model.eval(), args, dynamic_shapes=dynamic_shapes, strict=strict)


def own_copy(program: torch.export.ExportedProgram) -> torch.fx.GraphModule:
    """A graph module that passes may change."""
    graph = torch.fx.Graph()
    output: Any = graph.graph_copy(program.graph, {}, return_output_node=True)
    graph.output(output[0])
    return torch.fx.GraphModule(program.graph_module, graph)


def targets(gm: torch.fx.GraphModule) -> list[Any]:
    """The targets of the graph's calls, in order."""
    return [node.target for node in gm.graph.nodes if node.op == "call_function"]


def tensors(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Parameters, buffers and constants by placeholder name, in the order of the placeholders."""
    found = {**program.state_dict, **program.constants}
    return {
        spec.arg.name: found[spec.target] for spec in program.graph_signature.input_specs if spec.target is not None
    }


def run(gm: torch.fx.GraphModule, program: torch.export.ExportedProgram, *args: Any) -> Any:
    """Run the changed graph; a single output is returned without its tuple."""
    gm.graph.lint()
    gm.recompile()
    with torch.no_grad():
        result = gm(*tensors(program).values(), *args)
    return result[0] if len(result) == 1 else tuple(result)
