"""The summary of a program that notebooks show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import onnx_ir as ir

from .._capture import Capture
from .._display import html_table
from .._sequence_types import type_text
from .protobuf_layout import tensor_bytes

__all__ = ["html_summary"]

_SHOWN_OPERATORS = 8


def html_summary(model: ir.Model, capture: Capture) -> str:
    """An HTML table of the model: size, inputs and outputs with their dims, operators, constraints.

    Args:
        model: The model.
        capture: Its captured program.
    """
    graph = model.graph
    counts = Counter(node.op_type for node in ir.traversal.RecursiveGraphIterator(graph))
    operators = [f"{name} {count}" for name, count in counts.most_common(_SHOWN_OPERATORS)]
    if len(counts) > _SHOWN_OPERATORS:
        operators.append(f"{len(counts) - _SHOWN_OPERATORS} more")
    weights = f"{len(graph.initializers)} initializers, {tensor_bytes(model) / 2**20:.2f} MiB"
    rows: list[tuple[str, Sequence[str]]] = [
        ("graph", [f"opset {model.opset_imports.get('')}, {sum(counts.values())} nodes"]),
        ("weights", [weights]),
        ("inputs", list(map(_typed, graph.inputs))),
        ("outputs", list(map(_typed, graph.outputs))),
        ("operators", [", ".join(operators)]),
        ("constraints", list(map(str, capture.limits.constraints))),
        ("assumptions", list(map(str, capture.assumptions))),
    ]
    return html_table("ONNXProgram", [(name, "\n".join(values)) for name, values in rows if values])


def _typed(value: ir.Value) -> str:
    dims = ", ".join(str(dim) if isinstance(dim, int) else str(dim.value) for dim in value.shape or ())
    dtype = "?" if value.dtype is None else value.dtype.name.lower()
    return f"{value.name}: {type_text(value, f'{dtype}[{dims}]')}"
