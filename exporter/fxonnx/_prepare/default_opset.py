"""The default opset of a model: blocks of integers are stored from opset 21 on, and some targets lack newer kernels."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from fxonnx_translations._torch_compat import OpOverload

from .._export_signature import read_signature
from .._extensions import extensions_of_graph
from .._inner_tensors import has_wrapped_weights

__all__ = ["has_operators", "least_default_opset", "least_opset_of_program"]

_STORED_WEIGHTS_OPSET = 21
"""The first opset with DequantizeLinear of 4-bit integers, and of blocks."""


def least_default_opset(model: Any) -> int:
    """The lowest opset to export a model in unless the user specifies one; 0 without weights that are subclasses."""
    return _STORED_WEIGHTS_OPSET if has_wrapped_weights(model) else 0


def least_opset_of_program(program: torch.export.ExportedProgram) -> int:
    """The lowest opset for a captured program unless the user specifies one; 0 if it does not unpack weights."""
    placeholders = program.graph.find_nodes(op="placeholder")
    records = zip(placeholders, read_signature(program).inputs, strict=True)
    weights = {node for node, record in records if record.is_weight}
    least = (one.least_opset for one in extensions_of_graph(program.graph, weights) if one.least_opset is not None)
    return max((opset(program.graph, weights) for opset in least), default=0)


def has_operators(program: torch.export.ExportedProgram, names: Collection[str]) -> bool:
    """Whether a captured program calls one of these operators, in any overload and in any subgraph."""
    modules = (module for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule))
    nodes = (node for module in modules for node in module.graph.nodes) if names else ()
    return any(isinstance(node.target, OpOverload) and node.target._schema.name in names for node in nodes)
