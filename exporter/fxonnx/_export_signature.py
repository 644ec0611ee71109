"""The graph signature of an ExportedProgram as frozen records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
)

__all__ = ["InputRecord", "OutputRecord", "Signature", "read_signature"]

WEIGHT_KINDS = frozenset({InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR})


@dataclass(frozen=True)
class InputRecord:
    """One placeholder of the captured graph.

    Attributes:
        name: Placeholder name (``p_fc_weight``).
        kind: User input, parameter, buffer, constant tensor, ...
        target: FQN of the parameter, buffer or constant (``fc.weight``); None for user inputs.
        persistent: For buffers, whether the state_dict contains it.
        is_constant: Whether it is a user input baked into the graph: an int, float, bool, str or None.
        constant: The value of that constant.
    """

    name: str
    kind: InputKind
    target: str | None
    persistent: bool | None
    is_constant: bool = False
    constant: Any = None

    @property
    def is_weight(self) -> bool:
        """Whether the placeholder becomes an initializer."""
        return self.kind in WEIGHT_KINDS

    @property
    def is_user_input(self) -> bool:
        """Whether the placeholder becomes a graph input."""
        return self.kind == InputKind.USER_INPUT and not self.is_constant


@dataclass(frozen=True)
class OutputRecord:
    """One element of the captured graph's output.

    Attributes:
        kind: User output, buffer mutation, user input mutation, ...
        name: Name of the FX node, or None for a constant output.
        target: FQN of the mutated buffer, parameter or input; None for other outputs.
        constant: The value of a constant output.
    """

    kind: OutputKind
    name: str | None
    target: str | None
    constant: Any = None


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of the captured graph in order, and their text as torch prints it."""

    inputs: tuple[InputRecord, ...]
    outputs: tuple[OutputRecord, ...]
    text: str


def read_signature(exported_program: torch.export.ExportedProgram) -> Signature:
    """Read the ``graph_signature`` of an ExportedProgram."""
    signature = exported_program.graph_signature
    inputs = []
    for spec in signature.input_specs:
        constant = isinstance(spec.arg, ConstantArgument)
        inputs.append(
            InputRecord(
                name=spec.arg.name,
                kind=spec.kind,
                target=spec.target,
                persistent=spec.persistent,
                is_constant=constant,
                constant=spec.arg.value if isinstance(spec.arg, ConstantArgument) else None,
            )
        )
    outputs = []
    for output in signature.output_specs:
        argument = output.arg
        if isinstance(argument, ConstantArgument):
            outputs.append(OutputRecord(output.kind, None, output.target, argument.value))
        else:
            outputs.append(OutputRecord(output.kind, argument.name, output.target))
    return Signature(tuple(inputs), tuple(outputs), str(signature))
