"""The first difference in the body of a loop or branch, which is run alone on the inputs that PyTorch gives it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol

import onnx
import onnx_ir as ir
import torch

from ..._comparison import Tolerance
from ..._program.accuracy_level import full_float32_products
from ..._program.session import Session, as_tensor
from ..._program.value_comparison import ValueDifference
from ..._provenance import VALUE_KEY
from .reference import Evaluation, RuntimeValues, difference_of, replacement_of, values_by_fx_name

__all__ = ["CONTROL_FLOW", "MainScope", "Scope", "locate_in_subgraph"]


class Scope(Protocol):
    """A graph whose values a body may read."""

    def tensors(self, values: Sequence[ir.Value]) -> dict[ir.Value, torch.Tensor]:
        """Evaluate values of the graph and of those that enclose it."""


class MainScope:
    """The main graph.

    Args:
        runtime: The model and its inputs.
    """

    def __init__(self, runtime: RuntimeValues) -> None:
        self._runtime = runtime

    @property
    def model(self) -> ir.Model:
        """The model."""
        return self._runtime.model

    def tensors(self, values: Sequence[ir.Value]) -> dict[ir.Value, torch.Tensor]:
        """Evaluate graph inputs, initializers and results of nodes."""
        return self._runtime.compute(values)


@dataclass(frozen=True)
class _BodyScope:
    """The body of a loop or branch for given inputs.

    Attributes:
        model: The model, for its opsets.
        body: The body.
        inputs: A tensor for each of its inputs.
        outside: The graph that encloses it.
    """

    model: ir.Model
    body: ir.Graph
    inputs: Sequence[torch.Tensor]
    outside: Scope

    def tensors(self, values: Sequence[ir.Value]) -> dict[ir.Value, torch.Tensor]:
        """Evaluate values of the body and of the graphs that enclose it."""
        given = dict(zip(self.body.inputs, self.inputs, strict=True))
        own = [value for value in values if value.graph is self.body and value not in given]
        found = {value: given[value] for value in values if value in given}
        found |= self.outside.tensors(
            [value for value in values if value not in found and value.graph is not self.body]
        )
        return found | (self._compute(own) if own else {})

    def _compute(self, values: Sequence[ir.Value]) -> dict[ir.Value, torch.Tensor]:
        captured = self._captured()
        feeds = {**dict(zip(self.body.inputs, self.inputs, strict=True)), **self.outside.tensors(captured)}
        graph = ir.serde.serialize_graph(self.body)
        del graph.output[:], graph.input[:]
        graph.input.extend(_declared(value) for value in feeds)
        graph.output.extend(_declared(value) for value in values)
        opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in self.model.opset_imports.items()]
        proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=self.model.ir_version)
        session = Session(ir.serde.deserialize_model(proto))
        try:
            return dict(zip(values, session.run(list(feeds.values())), strict=True))
        finally:
            session.close()

    def _captured(self) -> list[ir.Value]:
        """The values of enclosing graphs that the body reads."""
        nodes = list(ir.traversal.RecursiveGraphIterator(self.body))
        read = {value: None for node in nodes for value in node.inputs if value is not None}
        read.update(dict.fromkeys(self.body.outputs))
        graphs = {self.body, *(node.graph for node in nodes)}
        return [value for value in read if value.graph not in graphs]


def _declared(value: ir.Value) -> onnx.ValueInfoProto:
    """The value with its element type, and without a shape, whose symbols have no meaning in another graph."""
    element_type = ir.DataType.UNDEFINED if value.dtype is None else value.dtype
    return onnx.helper.make_tensor_value_info(str(value.name), int(element_type), None)


@dataclass(frozen=True)
class _Step:
    """One run of a body, or of the condition of a loop.

    Attributes:
        module: The captured subgraph.
        args: Its arguments.
        iteration: The iteration of a loop.
        scope: The body in ONNX.
    """

    module: torch.fx.GraphModule
    args: Sequence[Any]
    iteration: int | None
    scope: _BodyScope


_Steps = Callable[[Sequence[Any], ir.Node, Callable[[ir.Graph, Sequence[Any]], _BodyScope]], Iterator[_Step]]


def _cond(args: Sequence[Any], node: ir.Node, scope: Callable[..., _BodyScope]) -> Iterator[_Step]:
    predicate, true_fn, false_fn, operands = args
    name, module = ("then_branch", true_fn) if bool(predicate) else ("else_branch", false_fn)
    yield _Step(module, operands, None, scope(node.attributes[name].as_graph(), []))


def _while_loop(args: Sequence[Any], node: ir.Node, scope: Callable[..., _BodyScope]) -> Iterator[_Step]:
    cond_fn, body_fn, carried, additional = args
    body = node.attributes["body"].as_graph()
    iteration = 0
    while bool(cond_fn(*carried, *additional)):
        inside = scope(body, [iteration, True, *carried])
        yield _Step(body_fn, (*carried, *additional), iteration, inside)
        carried = body_fn(*carried, *additional)
        # The body in ONNX computes the condition of the next iteration.
        yield _Step(cond_fn, (*carried, *additional), iteration, inside)
        iteration += 1


def _scan(args: Sequence[Any], node: ir.Node, scope: Callable[..., _BodyScope]) -> Iterator[_Step]:
    combine_fn, carried, xs, additional = args
    body = node.attributes["body"].as_graph()
    for iteration in range(xs[0].shape[0]):
        rows = [x[iteration] for x in xs]
        yield _Step(combine_fn, (*carried, *rows, *additional), iteration, scope(body, [*carried, *rows]))
        carried = combine_fn(*carried, *rows, *additional)[: len(carried)]


def _map(args: Sequence[Any], node: ir.Node, scope: Callable[..., _BodyScope]) -> Iterator[_Step]:
    function, xs, additional = args
    return _scan((function, [], xs, additional), node, scope)


_higher_order = torch.ops.higher_order

CONTROL_FLOW: Mapping[Any, _Steps] = MappingProxyType(
    {
        _higher_order.cond: _cond,
        _higher_order.while_loop: _while_loop,
        _higher_order.scan: _scan,
        _higher_order.map_impl: _map,
    }
)
"""Higher-order operators with subgraphs, each with the function that runs them step by step."""


def locate_in_subgraph(
    call: torch.fx.Node, args: Sequence[Any], result: ir.Value, scope: Scope, model: ir.Model, tolerance: Tolerance
) -> ValueDifference | None:
    """Find the first value that differs in the subgraphs of a loop or branch.

    Args:
        call: The captured operator.
        args: Its arguments.
        result: One of its results in ONNX.
        scope: The graph that it is in.
        model: The model.
        tolerance: The tolerances.

    Returns:
        The first difference; None if the difference is not in the subgraphs, or the model has no subgraphs for them.
    """
    node = _control_flow_node(result)
    if node is None:
        return None

    def body_scope(body: ir.Graph, values: Sequence[Any]) -> _BodyScope:
        inputs = [as_tensor(value, given) for value, given in zip(values, body.inputs, strict=True)]
        return _BodyScope(model, body, inputs, scope)

    for step in CONTROL_FLOW[call.target](args, node, body_scope):
        found = _locate_in_step(step, tolerance)
        if found is not None:
            return found
    return None


def _control_flow_node(value: ir.Value) -> ir.Node | None:
    """The If, Loop or Scan that computes a value, directly or before operators with one input."""
    node = value.producer()
    while node is not None and node.op_type not in ("If", "Loop", "Scan"):
        source = node.inputs[0] if node.inputs else None
        node = None if source is None else source.producer()
    return node


def _locate_in_step(step: _Step, tolerance: Tolerance) -> ValueDifference | None:
    names = {node.meta[VALUE_KEY]: node for node in step.module.graph.nodes if VALUE_KEY in node.meta}
    values = values_by_fx_name(step.scope.body, names)
    if not values:
        return None
    computed = step.scope.tensors(list(values.values()))
    actual = {name: computed[value] for name, value in values.items()}
    arguments: dict[torch.fx.Node, Sequence[Any]] = {}
    differences: list[ValueDifference] = []

    def compare_and_replace(node: torch.fx.Node, name: str, value: torch.Tensor) -> torch.Tensor | None:
        if name not in actual:
            return None
        found = difference_of(node, name, values[name], value, actual[name], tolerance)
        differences.append(replace(found, iteration=step.iteration))
        return replacement_of(value, actual[name])

    def record_arguments(node: torch.fx.Node, args: Sequence[Any]) -> None:
        if node.target in CONTROL_FLOW:
            arguments[node] = args

    with torch.no_grad(), full_float32_products():
        Evaluation(step.module, compare_and_replace, on_call=record_arguments).run(*step.args)
    first = next((found for found in differences if found.is_wrong), None)
    if first is None:
        return None
    call: Any = names[first.name]
    call = call.args[0] if call.target is operator.getitem else call
    if call in arguments:
        inside = locate_in_subgraph(call, arguments[call], values[first.name], step.scope, step.scope.model, tolerance)
        return first if inside is None else inside
    return first
