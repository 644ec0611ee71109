"""Conditions on sizes that depend on data, of which a program has one side.

They are dropped where a run confirms the program at the other side; the graph checks the others.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fxonnx_translations._torch_compat import OpOverload, pytree

from ..._capture import Assumption, AssumptionKind, Capture
from ..._capture.constraints.guard_recorder import DataEdge
from ..._warnings import warn_user
from ...errors import CaptureError
from ..assumption_checks import placeholder_values
from ..call_binding import bind_call
from .coverage import FILLS, MOVES
from .prove import Prover, obstacle
from .runs import ProgramInterpreter
from .variations import Variation, variations

__all__ = ["confirm_data_edges"]

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_WITHOUT_VALUES = frozenset({"empty", "new_empty", "empty_like", "arange", "sym_size", "sym_numel"})
_HARMLESS = MOVES | FILLS | _WITHOUT_VALUES | {"index_select", "select_scatter"}


def confirm_data_edges(capture: Capture, model: Any) -> Capture:
    """Drop the conditions whose edges the program is right at; the graph checks the others.

    An edge is confirmed if program and model return the same there, and if all operators that the model skips have
    empty tensors, or move values.

    Raises:
        CaptureError: The error of the other attempts, if the example is at an edge that is not confirmed.
    """
    edges = capture.data_edges
    if not edges or capture.refusal is None:
        return capture
    asserted = _asserted(capture.exported_program, edges)
    if obstacle(capture, model) or len(asserted) < len(edges):
        raise capture.refusal
    runs = list(_runs(capture, model, asserted))
    confirmed = {edge for edge in edges if _is_confirmed(edge, runs)}
    remaining = [edge for edge in edges if edge not in confirmed]
    if not runs or any(edge in runs[0] for edge in remaining):
        raise capture.refusal
    for edge, nodes in asserted.items():
        for node in nodes:
            if edge in confirmed:
                node.graph.erase_node(node)
            else:
                node.target = torch.ops.aten._assert_scalar.default
    capture.exported_program.graph_module.recompile()
    if remaining:
        warn_user(
            "the model branches on sizes that depend on data, and is exported for one side:\n"
            + "\n".join(dict.fromkeys(f"  {edge.line} -> {edge.answer}" for edge in remaining))
        )
    assumptions = (
        Assumption(edge.line, edge.answer, AssumptionKind.EXAMPLE, _condition(node))
        for edge in remaining
        for node in asserted[edge]
    )
    return replace(capture, data_edges=(), assumptions=(*capture.assumptions, *assumptions))


def _asserted(program: ExportedProgram, edges: Sequence[DataEdge]) -> dict[DataEdge, list[Node]]:
    """The assertions of conditions in a program."""
    found: dict[DataEdge, list[Node]] = {}
    by_text = {edge.text: edge for edge in edges}
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.fxonnx.beside_edge.default):
        edge = by_text.get(str(node.args[1]))
        if edge is not None:
            found.setdefault(edge, []).append(node)
    return found


def _condition(assertion: Node) -> str:
    """The condition of an assertion in torch's symbols."""
    value = assertion.args[0].meta.get("val") if isinstance(assertion.args[0], Node) else None
    return str(value.node.expr) if isinstance(value, torch.SymBool) else ""


def _is_confirmed(edge: DataEdge, runs: Sequence[Mapping[DataEdge, bool]]) -> bool:
    """Whether runs at the edge, also of other iterations of a loop, compute nothing beside it."""
    statement = edge.file, edge.body
    at_edge = [harmless for run in runs for one, harmless in run.items() if (one.file, one.body) == statement]
    return edge.body is not None and bool(at_edge) and all(at_edge)


def _runs(
    capture: Capture, model: Any, asserted: Mapping[DataEdge, Sequence[Node]]
) -> Iterator[Mapping[DataEdge, bool]]:
    """For each run in which program and model return the same, the edges that it is at, and whether they are harmless.

    The first one is the example. No run follows one in which they differ.
    """
    prover = Prover(capture, model)
    for variation in variations(capture, prover.example):
        try:
            done = prover.run(variation)
        except CaptureError:
            yield from () if variation.label == "example" else [dict.fromkeys(asserted, False)]
            return
        if done is not None and done.status == "equal":
            yield _edges_at(capture, variation, asserted)
        elif variation.label == "example":
            return


def _edges_at(
    capture: Capture, variation: Variation, asserted: Mapping[DataEdge, Sequence[Node]]
) -> dict[DataEdge, bool]:
    """The edges that a call is at, and whether the operators beside each of them are harmless there."""
    program = capture.exported_program
    args, kwargs = variation.calls[0]
    call = bind_call(program, args, kwargs, None, capture.inputs.frozen)
    interpreter = _EdgeInterpreter(program.graph_module, asserted)
    copies = pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, placeholder_values(program, call.inputs, {}))
    with torch.no_grad():
        interpreter.run(*copies, enable_io_processing=False)
    return {edge: interpreter.is_harmless(edge) for edge in interpreter.reached}


class _EdgeInterpreter(ProgramInterpreter):
    """Runs a program, and records its edges.

    Attributes:
        reached: The edges at which the run is.
        active: The edges beside which something is computed.
    """

    def __init__(self, module: torch.fx.GraphModule, asserted: Mapping[DataEdge, Sequence[Node]]) -> None:
        super().__init__(module, {}, None, filler=0)
        self.reached: set[DataEdge] = set()
        self.active: set[DataEdge] = set()
        self._seen: set[DataEdge] = set()
        self._last: dict[Any, DataEdge] = {}
        self._asserted = {node: edge for edge, nodes in asserted.items() for node in nodes}

    def is_harmless(self, edge: DataEdge) -> bool:
        """Whether operators beside an edge are known, and compute nothing."""
        return edge in self._seen and edge not in self.active

    def run_node(self, n: Node) -> Any:
        """Run a node, and record edges."""
        result = super().run_node(n)
        edge = self._asserted.get(n)
        if edge is not None:
            # Statements in a loop belong to the edge of their iteration.
            self._last[edge.file, edge.body] = edge
            if not self.fetch_args_kwargs_from_env(n)[0][0]:
                self.reached.add(edge)
        beside = [one for one in self._last.values() if one not in self.active and _is_in_body(n, one)]
        self._seen.update(beside)
        if beside and not _is_harmless(n, (self.fetch_args_kwargs_from_env(n), result)):
            self.active.update(beside)
        return result


def _is_in_body(node: Node, edge: DataEdge) -> bool:
    """Whether the statements that run beside an edge call an operator, also in the functions that they call."""
    if edge.body is None or node.op != "call_function":
        return False
    first, last = edge.body
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    return any(file == edge.file and first <= int(line) <= last for file, line in frames)


def _is_harmless(node: Node, values: Any) -> bool:
    """Whether an operator computes nothing: for empty tensors, or as it moves values."""
    tensors = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    if not tensors or node.target is operator.getitem:
        return True
    if not isinstance(node.target, OpOverload):
        return False
    return any(tensor.numel() == 0 for tensor in tensors) or node.target._schema.name.partition("::")[2] in _HARMLESS
