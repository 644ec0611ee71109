"""Intermediate values of a model, and evaluation with onnx's reference implementation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from fxonnx_translations._builder.initializers import TorchTensor
from fxonnx_translations._torch_compat import pytree

from ..errors import ArgumentError, RuntimeSessionError, did_you_mean
from .protobuf_layout import serialize
from .session import Session, SessionFactory, as_graph_input, from_numpy

__all__ = ["compute_values", "run_reference"]


def compute_values(
    model: ir.Model, names: Sequence[str], inputs: Sequence[Any], session_factory: SessionFactory | None
) -> tuple[Any, ...]:
    """Evaluate values of the main graph in ONNX Runtime.

    Args:
        model: The model; its outputs are restored afterwards.
        names: Names of graph inputs, initializers or node outputs.
        inputs: A value for each graph input.
        session_factory: Creates the session.

    Raises:
        ArgumentError: If a name is not that of a value of the main graph.
    """
    graph = model.graph
    values = {str(value.name): value for node in graph for value in node.outputs}
    given = {str(value.name): index for index, value in enumerate(graph.inputs)}
    known = [*given, *graph.initializers, *values]
    if isinstance(names, str):
        raise ArgumentError("value_names", f"expected a list of names, got {names!r}", hint=f"write [{names!r}]")
    for name in names:
        if name not in known:
            raise ArgumentError(
                "value_names",
                f"{name!r} is not a value of the main graph",
                hint=did_you_mean(name, known, "program.model.graph lists its values"),
            )
    found: dict[str, Any] = {}
    for name in names:
        if name in given and given[name] < len(inputs):
            found[name] = as_graph_input(inputs[given[name]], graph.inputs[given[name]])
        elif name in graph.initializers and (constant := graph.initializers[name].const_value) is not None:
            found[name] = from_numpy(constant.numpy().copy(), name)
    wanted = [values[name] for name in dict.fromkeys(names) if name not in found]
    if wanted:
        outputs = list(graph.outputs)
        try:
            graph.outputs[:] = wanted
            session = Session(model, session_factory)
            try:
                computed = session.run(inputs)
            finally:
                session.close()
        finally:
            graph.outputs[:] = outputs
        found |= {str(value.name): tensor for value, tensor in zip(wanted, computed, strict=True)}
    return tuple(found[name] for name in names)


def run_reference(model: ir.Model, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Run a model in onnx's reference implementation.

    Raises:
        RuntimeSessionError: If the reference implementation fails.
    """
    from onnx.reference import ReferenceEvaluator

    graph_inputs = model.graph.inputs
    feeds = {
        str(graph_input.name): pytree.tree_map(
            lambda tensor: TorchTensor(tensor).numpy(), as_graph_input(value, graph_input)
        )
        for value, graph_input in zip(inputs, graph_inputs, strict=False)
    }
    try:
        outputs: Any = ReferenceEvaluator(serialize(model)).run(None, feeds)
    except Exception as error:
        raise RuntimeSessionError(f"onnx's reference implementation cannot run the model: {error}") from error
    return tuple(pytree.tree_map(lambda output: from_numpy(output.copy(), "outputs"), output) for output in outputs)
