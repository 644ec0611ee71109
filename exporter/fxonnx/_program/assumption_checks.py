"""Check that the inputs of a call give the answers on which the captured program relies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind

from .._capture import AssumptionKind, Capture
from .._capture.eager_runs import copies_of_inputs
from ..errors import ArgumentError

__all__ = ["check_assumptions", "placeholder_values"]

_SYMBOL = re.compile(r"\b(?:u|zuf)\d+\b")


def check_assumptions(capture: Capture, inputs: Sequence[Any], weights: Mapping[str, torch.Tensor]) -> None:
    """Evaluate the conditions of a program that follows its example.

    Args:
        capture: The captured program.
        inputs: The inputs of the call that are not constants of the program, in order.
        weights: FQN to weight, for the weights that differ from those at export.

    Raises:
        ArgumentError: If a condition does not hold; the error shows the lines of the model that ask for the values.
    """
    followed = [assumption for assumption in capture.assumptions if assumption.kind is AssumptionKind.EXAMPLE]
    if not followed:
        return
    program = capture.exported_program
    graph = torch.fx.Graph()
    graph.graph_copy(program.graph, {})
    graph.output(())
    # The assertions remain, with the nodes that compute their conditions.
    graph.eliminate_dead_code()
    module = torch.fx.GraphModule(program.graph_module, graph)
    values = placeholder_values(program, inputs, weights)
    if any(getattr(getattr(node.target, "_schema", None), "is_mutable", False) for node in graph.nodes):
        values = copies_of_inputs(values)
    try:
        with torch.no_grad():
            torch.fx.Interpreter(module).run(*values)
    except Exception as error:
        # An operator may fail before an assertion does, of shapes that depend on an earlier answer.
        symbols = set(_SYMBOL.findall(str(error)))
        lines = [str(one) for one in followed if symbols & set(_SYMBOL.findall(one.condition))] or map(str, followed)
        raise ArgumentError(
            "args",
            "the model branches on the values of its inputs, and these inputs take another branch than the example:\n"
            + "\n".join(f"  {line}" for line in lines),
            hint="re-export with such inputs as the example",
        ) from error


def placeholder_values(
    program: torch.export.ExportedProgram, inputs: Sequence[Any], weights: Mapping[str, torch.Tensor]
) -> list[Any]:
    """A value for each placeholder of the program.

    Args:
        program: The captured program.
        inputs: The inputs that are not constants of the program, in order.
        weights: FQN to parameter, buffer or constant, for those that differ from the ones of the program.
    """
    given = iter(inputs)
    stored = {**program.constants, **program.state_dict, **weights}
    values: list[Any] = []
    for spec in program.graph_signature.input_specs:
        if isinstance(spec.arg, ConstantArgument):
            values.append(spec.arg.value)
        elif spec.kind == InputKind.USER_INPUT:
            values.append(next(given))
        else:
            values.append(stored[str(spec.target)])
    return values
