"""Comparison of all values of a program, to find the first one that differs although its inputs agree."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fxonnx_translations._torch_compat import OpOverload

from ..._comparison import Tolerance
from ..._lower.inlining import inlined
from ..._prepare.captured_values import runnable_program
from ..._program.accuracy_level import full_float32_products
from ..._program.value_comparison import ValueDifference
from ..._provenance import VALUE_KEY
from .reference import (
    Evaluation,
    RuntimeValues,
    difference_of,
    in_same_layout,
    placeholder_values,
    replacement_of,
    values_by_fx_name,
)
from .subgraphs import CONTROL_FLOW, MainScope, locate_in_subgraph

__all__ = ["Located", "compare_values"]

_BUDGET = 2**30
"""Bytes of intermediate values that are held at once."""


@dataclass(frozen=True)
class Located:
    """The compared values, and those on the path from the first difference to each output."""

    values: tuple[ValueDifference, ...]
    paths: Mapping[str, Sequence[ValueDifference]]


def compare_values(
    runtime: RuntimeValues,
    exported_program: torch.export.ExportedProgram,
    call: tuple[Sequence[Any], Mapping[str, Any]],
    weights: Mapping[str, torch.Tensor],
    tolerance: Tolerance,
    wrong_outputs: Mapping[str, int],
) -> Located:
    """Compare the values of the captured program with the ONNX values that stand for them.

    Args:
        runtime: The model and its inputs.
        exported_program: The captured program.
        call: Positional and keyword arguments of the same call.
        weights: FQN to weights that replace the program's.
        tolerance: The tolerances.
        wrong_outputs: Names of the graph outputs that differ, with their positions.
    """
    return _Search(runtime, exported_program, call, weights, tolerance).run(wrong_outputs)


class _Search:
    """The state of one comparison."""

    def __init__(
        self,
        runtime: RuntimeValues,
        exported_program: torch.export.ExportedProgram,
        call: tuple[Sequence[Any], Mapping[str, Any]],
        weights: Mapping[str, torch.Tensor],
        tolerance: Tolerance,
    ) -> None:
        runtime.model = inlined(runtime.model) if runtime.model.functions else runtime.model
        self.runtime = runtime
        self.exported_program = exported_program
        self.module = runnable_program(exported_program)
        self.nodes = {node.meta[VALUE_KEY]: node for node in self.module.graph.nodes if VALUE_KEY in node.meta}
        self.values = values_by_fx_name(runtime.model.graph, self.nodes)
        self.call = call
        self.weights = weights
        self.tolerance = tolerance
        self.in_float = any(
            val.dtype in (torch.float16, torch.bfloat16)
            for node in self.nodes.values()
            if isinstance(val := node.meta.get("val"), torch.Tensor)
        )
        self.differences: dict[str, ValueDifference] = {}

    def run(self, wrong_outputs: Mapping[str, int]) -> Located:
        for names in self._chunks():
            found = self.runtime.compute(self.values[name] for name in (*names, *self._frontier(names)))
            actual = {name: found[value] for name, value in self.values.items() if value in found}
            self._compare_chunk(frozenset(names), actual)
        first = self._first()
        if first is not None:
            self._descend(first)
        return Located(tuple(self.differences.values()), self._paths(wrong_outputs))

    def _first(self) -> ValueDifference | None:
        return next((found for found in self.differences.values() if found.is_wrong), None)

    def _evaluate(self, on_value: Any, on_call: Any = None) -> None:
        given = placeholder_values(self.exported_program, *self.call, self.weights)
        weights = [value for value in self.exported_program.state_dict.values() if isinstance(value, torch.Tensor)]
        with torch.no_grad(), full_float32_products():
            Evaluation(self.module, on_value, on_call=on_call, in_float=self.in_float, weights=weights).run(
                *given, enable_io_processing=False
            )

    def _chunks(self) -> Iterator[list[str]]:
        """Names of the values to compare, in graph order, in parts that fit into memory."""
        sizes: dict[str, int] = {}

        def measure(node: torch.fx.Node, name: str, value: torch.Tensor) -> None:
            if name in self.values:
                sizes[name] = value.nbytes

        self._evaluate(measure)
        names: list[str] = []
        total = 0
        for name, size in sizes.items():
            if names and total + size > _BUDGET:
                yield names
                names, total = [], 0
            names.append(name)
            total += size
        if names:
            yield names

    def _frontier(self, names: Collection[str]) -> list[str]:
        """The nearest values before the given ones that the model has as well."""
        inside = {self.nodes[name] for name in names}
        pending = [source for node in inside for source in node.all_input_nodes]
        found: dict[str, None] = {}
        seen: set[torch.fx.Node] = set()
        while pending:
            node = pending.pop()
            if node in seen or node in inside:
                continue
            seen.add(node)
            name = node.meta.get(VALUE_KEY)
            if name in self.values:
                found[name] = None
            else:
                pending.extend(node.all_input_nodes)
        return list(found)

    def _compare_chunk(self, names: Collection[str], actual: Mapping[str, torch.Tensor]) -> None:
        errors: dict[str, float | None] = {}

        def record_error(node: torch.fx.Node, name: str, value: torch.Tensor) -> None:
            if name in names:
                expected, found = in_same_layout(value, actual[name])
                errors[name] = None if found is None else self.tolerance.difference(expected, found)[0]

        self._evaluate(record_error)

        def compare_and_replace(node: torch.fx.Node, name: str, value: torch.Tensor) -> torch.Tensor | None:
            if name not in actual:
                return None
            if name in names:
                self.differences[name] = difference_of(
                    node, name, self.values[name], value, actual[name], self.tolerance, error=errors.get(name)
                )
            return replacement_of(value, actual[name])

        self._evaluate(compare_and_replace)

    def _descend(self, first: ValueDifference) -> None:
        """If the first difference is the result of a loop or branch, find the first difference in its body."""
        call: Any = self.nodes[first.name]
        call = call.args[0] if call.target is operator.getitem else call
        if call.target not in CONTROL_FLOW:
            return
        arguments: list[Sequence[Any]] = []
        found = self.runtime.compute(self.values[name] for name in self._frontier([first.name]))
        actual = {name: found[value] for name, value in self.values.items() if value in found}

        def use_actual(node: torch.fx.Node, name: str, value: torch.Tensor) -> torch.Tensor | None:
            return replacement_of(value, actual[name]) if name in actual else None

        def record_arguments(node: torch.fx.Node, args: Sequence[Any]) -> None:
            if node is call:
                arguments.append(args)

        self._evaluate(use_actual, record_arguments)
        scope = MainScope(self.runtime)
        result, model = self.values[first.name], self.runtime.model
        inside = locate_in_subgraph(call, arguments[0], result, scope, model, self.tolerance)
        if inside is not None:
            # It precedes the result of the whole operator, which differs because of it.
            before = dict(self.differences)
            self.differences.clear()
            for name, difference in before.items():
                if name == first.name:
                    self.differences[inside.name] = inside
                self.differences[name] = difference

    def _paths(self, wrong_outputs: Mapping[str, int]) -> dict[str, list[ValueDifference]]:
        first = self._first()
        start = None if first is None else self.nodes.get(first.name)
        if start is None:
            return {}
        # In-place operators connect nodes that no edge connects.
        is_functional = not any(
            isinstance(node.target, OpOverload) and node.target._schema.is_mutable for node in self.nodes.values()
        )
        after = _reachable([start], lambda node: node.users)
        results: Any = self.module.graph.output_node().args[0]
        leaves = [leaf for leaf in results if isinstance(leaf, torch.fx.Node)]
        paths = {}
        for name, position in wrong_outputs.items():
            if position < len(leaves):
                before = _reachable([leaves[position]], lambda node: node.all_input_nodes)
                paths[name] = [
                    difference
                    for key, difference in self.differences.items()
                    if (node := self.nodes.get(key)) is not None
                    and ((node in after and node in before) or not (is_functional or node < start))
                ]
        return paths


def _reachable(start: Sequence[torch.fx.Node], following: Any) -> set[torch.fx.Node]:
    found: set[torch.fx.Node] = set()
    pending = list(start)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(following(node))
    return found
