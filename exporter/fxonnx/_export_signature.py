"""The signature of an ExportedProgram, read once into frozen records."""

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
        kind: What it is to the program.
        target: Qualified name of the parameter, buffer or constant (``fc.weight``).
        persistent: For buffers, whether the state_dict holds it.
        is_constant: A user input that was baked into the graph: an int, float, bool, str or None.
        constant: Its value.
    """

    name: str
    kind: InputKind
    target: str | None
    persistent: bool | None
    is_constant: bool = False
    constant: Any = None

    @property
    def is_weight(self) -> bool:
        """Whether it becomes an initializer."""
        return self.kind in WEIGHT_KINDS

    @property
    def is_user_input(self) -> bool:
        """Whether it becomes a graph input."""
        return self.kind == InputKind.USER_INPUT and not self.is_constant


@dataclass(frozen=True)
class OutputRecord:
    """One element of the captured graph's output.

    Attributes:
        kind: A user output, a mutation, ...
        name: Name of the FX node, or None for a constant output.
        target: What is mutated, for mutations.
        constant: The value of a constant output.
    """

    kind: OutputKind
    name: str | None
    target: str | None
    constant: Any = None


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of the captured graph in their order, and torch's own text of both."""

    inputs: tuple[InputRecord, ...]
    outputs: tuple[OutputRecord, ...]
    text: str


def read_signature(exported_program: torch.export.ExportedProgram) -> Signature:
    """Reads ``graph_signature``."""
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
