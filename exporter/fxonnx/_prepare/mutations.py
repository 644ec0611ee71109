"""What forward writes to: parameters, buffers and inputs, and whether the caller gets to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch.export.graph_signature import InputKind, OutputKind

from .._provenance import source_line
from .._warnings import warn_user
from ..errors import StateError
from .pipeline import Prepared

__all__ = ["LOST_UPDATES_KEY", "State", "Update", "find_updates", "report_updates"]

State: TypeAlias = Literal["warn", "io", "outputs", "error"]
"""What becomes of the updates: a warning, a graph input and output each, an output each, or an error."""
LOST_UPDATES_KEY = "pkg.fxonnx.lost_updates"
"""Metadata of the model: JSON, a list of names."""


@dataclass(frozen=True)
class Update:
    """A tensor that outlives the call, and that forward writes to.

    Attributes:
        placeholder: Name of its placeholder.
        name: Qualified name of the parameter or buffer, or the label of the input.
        is_input: Whether the caller brings it.
        value: The node that holds its final content.
        location: The line that wrote to it last.
        is_returned: Whether it is an input whose final content is an output of the model anyway.
    """

    placeholder: str
    name: str
    is_input: bool
    value: torch.fx.Node
    location: str
    is_returned: bool


def find_updates(prepared: Prepared, input_names: Mapping[str, str]) -> tuple[Update, ...]:
    """The updates of a prepared program, in the order of its inputs.

    Args:
        prepared: The program.
        input_names: Placeholder to label of the user inputs.
    """
    records = {record.name: record for record in prepared.signature.inputs}
    (output,) = [node for node in prepared.graph.nodes if node.op == "output"]
    returned = {
        argument
        for record, argument in zip(prepared.signature.outputs, output.args[0], strict=False)
        if record.kind == OutputKind.USER_OUTPUT
    }
    found = []
    for mutation in prepared.mutations:
        record = records[mutation.target]
        is_input = record.kind == InputKind.USER_INPUT
        name = input_names.get(record.name, record.name) if is_input else str(record.target)
        location = source_line(mutation.writer)
        found.append(
            Update(record.name, name, is_input, mutation.value, location, is_input and mutation.value in returned)
        )
    return tuple(found)


def report_updates(updates: Sequence[Update], state: State) -> tuple[str, ...]:
    """Warns of updates that the caller does not get to know, or raises.

    Args:
        updates: What forward writes to.
        state: What is wanted.

    Returns:
        The names of the parameters, buffers and inputs whose updates are lost.

    Raises:
        StateError: If ``state`` is "error" and there are any.
    """
    lost = [update for update in updates if not update.is_returned]
    if not lost or state in ("io", "outputs"):
        return ()
    names = ", ".join(repr(update.name) for update in lost)
    lines = "".join(f"\n  {update.name!r} at {update.location}" for update in lost)
    text = (
        f"forward writes to {names}, and an ONNX model keeps nothing from one call to the next: every call starts from "
        f"what it is given or was exported with, and the update is not returned.{lines}"
    )
    hint = 'pass state="io" to have what changes as inputs and outputs, or state="outputs" to have it returned'
    if state == "error":
        raise StateError(text, hint=hint)
    warn_user(f"{text}\nhint: {hint}")
    return tuple(update.name for update in lost)
