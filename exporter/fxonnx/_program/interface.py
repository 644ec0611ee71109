"""``GraphInterface``: the graph inputs and outputs of a program, the sessions that run it, and its summary."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch

from .._capture import Capture
from .._capture.shapes.dim_names import data_dependent_lines
from .._display import html_table
from .._model_files import type_text
from .._public import public
from .adapters import adapter_names
from .assumption_checks import check_assumptions
from .call_binding import bind_call
from .protobuf_layout import tensor_bytes
from .record import ExportRecord
from .session import Session, SessionFactory
from .stateful import StatePair, read_states

__all__ = ["GraphInterface", "Sessions", "data_dependent_dims", "described", "html_summary"]

_SHOWN_VALUES = 40
"""Number of inputs or outputs up to which texts list them."""


@dataclass
class Sessions:
    """The ONNX Runtime sessions of a program.

    Attributes:
        factory: Creates sessions; by default with the CUDA execution provider if available, and the CPU one.
        session: The session of the model, if there is one.
        in_float: The session without the rounding of activations, if there is one.
    """

    factory: SessionFactory | None = None
    session: Session | None = None
    in_float: Session | None = None

    def release(self) -> None:
        """Close them."""
        for session in (self.session, self.in_float):
            if session is not None:
                session.close()
        self.session = self.in_float = None


@public
@dataclass(frozen=True, eq=False)
class GraphInterface:
    """The graph inputs and outputs of a program.

    Attributes:
        model: The ONNX model.
        record: The record of its export.
        sessions: The sessions that run it.
        applied_weights: FQN to weight, for all weights that ``apply_weights`` replaced.
    """

    model: ir.Model
    record: ExportRecord
    sessions: Sessions
    applied_weights: Mapping[str, torch.Tensor]

    @property
    def states(self) -> tuple[StatePair, ...]:
        """The mutated parameters, buffers and inputs with their graph inputs and outputs; see ``export(state=...)``."""
        return read_states(self.model)

    @property
    def adapters(self) -> tuple[str, ...]:
        """The graph inputs made from weights, with the exported values as defaults; see ``export(adapters=...)``."""
        return adapter_names(self.model)

    @property
    def session_factory(self) -> SessionFactory | None:
        """The function given to ``initialize_inference_session``, which creates sessions."""
        return self.sessions.factory

    def __repr__(self) -> str:
        graph, states, adapters = self.model.graph, self.states, frozenset(self.adapters)
        lines = [
            f"inputs:  {described(value for value in graph.inputs if value.name not in adapters)}",
            f"outputs: {described(graph.outputs)}",
        ]
        lines += [f"states: {len(states)}"] if states else []
        lines += [f"adapter weights: {len(adapters)}"] if adapters else []
        return "GraphInterface(" + ",\n  ".join(lines) + ")"

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Bind the arguments of a call to the graph inputs and check the constraints.

        Args:
            args: Positional arguments, as for the exported ``forward``.
            kwargs: Keyword arguments, in any order.

        Returns:
            A value for each graph input in order, without the states.

        Raises:
            ArgumentError: If the arguments do not match the exported ones or their sizes violate a constraint.
        """
        capture, forward = self.record.capture, self.record.forward
        call = bind_call(capture.exported_program, args, kwargs, forward, capture.inputs.frozen, capture.inputs.lists)
        capture.limits.check(call.inputs)
        check_assumptions(capture, call.inputs, self.applied_weights)
        return call.inputs


def described(values: Iterable[ir.Value]) -> str:
    """Names, types and shapes of graph inputs or outputs, as a text."""
    texts = [_described(value) for value in values]
    more = [f"... ({len(texts)})"] if len(texts) > _SHOWN_VALUES else []
    return ", ".join([*texts[:_SHOWN_VALUES], *more]) or "none"


def _described(value: ir.Value) -> str:
    dtype = "?" if value.dtype is None else value.dtype.name.lower()
    if value.shape is None:
        return f"{value.name}: {type_text(value, dtype)}"
    dims = ", ".join(str(dim) if isinstance(dim, int) else str(dim.value) for dim in value.shape)
    return f"{value.name}: {type_text(value, f'{dtype}[{dims}]')}"


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
        ("inputs", list(map(_described, graph.inputs))),
        ("outputs", list(map(_described, graph.outputs))),
        ("data-dependent dims", [f"{dim}: {line}" for dim, line in data_dependent_dims(graph, capture).items()]),
        ("operators", [", ".join(operators)]),
        ("constraints", list(map(str, capture.limits.constraints))),
        ("assumptions", list(map(str, capture.assumptions))),
    ]
    return html_table("ONNXProgram", [(name, "\n".join(values)) for name, values in rows if values])


def data_dependent_dims(graph: ir.Graph, capture: Capture) -> dict[str, str]:
    """Name of each data-dependent dim of the outputs to the operator and the line that determine it."""
    shown = {name for output in graph.outputs for dim in output.shape or () for name in re.findall(r"\w+", str(dim))}
    lines = data_dependent_lines(capture.exported_program)
    return {name: line for name, line in lines.items() if name in shown}
