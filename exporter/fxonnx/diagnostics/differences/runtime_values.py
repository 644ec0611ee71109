"""Intermediate values of a model in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import onnx_ir as ir

from ..._lower.metadata import FX_VALUE_KEY
from ..._program.session import Session, SessionFactory, as_graph_input

__all__ = ["RuntimeValues", "values_by_fx_name"]


def values_by_fx_name(nodes: Iterable[ir.Node], fx_names: Collection[str]) -> dict[str, ir.Value]:
    """Map the names of captured values to the ONNX values that stand for them.

    Args:
        nodes: Nodes of the main graph, or of the body of a loop or branch.
        fx_names: Names of the captured values.
    """
    found: dict[str, ir.Value] = {}
    for node in nodes:
        for value in node.outputs:
            name = str(value.metadata_props.get(FX_VALUE_KEY) or value.meta.get(FX_VALUE_KEY))
            if value.name and name in fx_names:
                found.setdefault(name, value)
    return found


class RuntimeValues:
    """Evaluation of values of the main graph of a model for given inputs.

    Args:
        model: The model.
        inputs: A value for each graph input.
        session_factory: Creates sessions.
    """

    def __init__(self, model: ir.Model, inputs: Sequence[Any], session_factory: SessionFactory | None) -> None:
        self.model = model
        self._inputs = inputs
        self._session_factory = session_factory

    def compute(self, values: Iterable[ir.Value]) -> dict[ir.Value, Any]:
        """Compute values in one run, in which the outputs of the model stay outputs.

        Args:
            values: Results of nodes, graph inputs or initializers.
        """
        graph = self.model.graph
        outputs = list(graph.outputs)
        requested = list(dict.fromkeys(values))
        pairs = zip(graph.inputs, self._inputs, strict=False)
        given = {value: as_graph_input(tensor, value) for value, tensor in pairs}
        wanted = [value for value in requested if value not in given]
        known = set(outputs)
        try:
            graph.outputs.extend(value for value in wanted if value not in known)
            session = Session(self.model, self._session_factory)
            try:
                computed = dict(zip(graph.outputs, session.run(self._inputs), strict=True))
            finally:
                session.close()
        finally:
            graph.outputs[:] = outputs
        return {value: given[value] if value in given else computed[value] for value in requested}
