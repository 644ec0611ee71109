"""Mutations of parameters, buffers and inputs in ``forward``, and the report of lost updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.export.graph_signature import InputKind, OutputKind

from .._capture.suspicions.attribute_changes import AttributeChange
from .._capture.traced_states import Reassignment
from .._provenance import source_line
from .._request import State
from .._warnings import warn_user
from ..errors import StateError
from .pipeline import Prepared

__all__ = ["LOST_UPDATES_KEY", "Update", "find_updates", "report_changes", "report_updates"]

LOST_UPDATES_KEY = "pkg.fxonnx.lost_updates"
"""Metadata key of the model: JSON, a list of names of the tensors whose updates are lost."""


@dataclass(frozen=True)
class Update:
    """A mutation of a parameter, buffer or input.

    Attributes:
        placeholder: Name of its placeholder.
        name: FQN of the parameter or buffer, or the name of the input.
        is_input: Whether it is an input.
        value: The node of its final value.
        location: Source location of the last write.
        is_returned: Whether it is an input whose final value is already an output of the model.
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
        prepared: The prepared program.
        input_names: Placeholder to name of the user inputs.
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


def report_updates(updates: Sequence[Update], reassigned: Sequence[Reassignment], state: State) -> tuple[str, ...]:
    """Warn of lost updates, or raise.

    Args:
        updates: All updates of the program.
        reassigned: The buffers that become tensors of another kind.
        state: The requested treatment of updates.

    Returns:
        The names of the parameters, buffers and inputs whose updates are lost.

    Raises:
        StateError: If ``state`` is "error" and updates would be lost, or if an update cannot be an output, or an input
            of the next call.
    """
    lost = {update.name: update.location for update in updates if not update.is_returned}
    without_output = [one for one in reassigned if one.name not in lost]
    refused = {"io": reassigned, "outputs": without_output}.get(state)
    if refused:
        raise StateError(
            "forward assigns tensors to buffers that a graph cannot pass to the next call:"
            + "".join(f"\n  {one}" for one in refused),
            hint="assign a tensor of the same dtype and rank to one buffer, and give it a value before the export",
        )
    lost |= {one.name: one.line for one in without_output}
    if not lost or refused is not None:
        return ()
    names = ", ".join(map(repr, lost))
    lines = "".join(f"\n  {name!r} at {line}" for name, line in lost.items())
    text = (
        f"forward writes to {names}, but an ONNX model keeps no state between calls: every call starts from the inputs "
        f"and the exported weights, and the update is lost.{lines}"
    )
    hint = 'pass state="io" to make the updated tensors inputs and outputs, or state="outputs" to return them'
    if state == "error":
        raise StateError(text, hint=hint)
    warn_user(f"{text}\nhint: {hint}")
    return tuple(lost)


def report_changes(changes: Sequence[AttributeChange], state: State) -> tuple[str, ...]:
    """Warn of Python attributes that forward changes, or raise; warn of random numbers that have become constants.

    Args:
        changes: The changes.
        state: The requested treatment of updates.

    Returns:
        The paths of the attributes.

    Raises:
        StateError: If ``state`` is "error" and there are changes.
    """
    drawn = [change for change in changes if change.is_random]
    if drawn:
        lines = "".join(f"\n  {change}" for change in drawn)
        warn_user(
            "forward draws random numbers of Python or NumPy, which are constants in the ONNX model: every call "
            f"computes with the numbers of the export.{lines}\n"
            "hint: draw them with torch (torch.rand, torch.randint), or pass them to forward as inputs"
        )
    changes = [change for change in changes if not change.is_random]
    if not changes:
        return ()
    lines = "".join(f"\n  {change}" for change in changes)
    text = (
        "forward changes Python attributes that later calls read, but an ONNX model keeps no state between calls: "
        f"every call computes with the values at the export.{lines}"
    )
    hint = (
        'hold the value in a buffer (self.register_buffer(name, torch.tensor(value))) and pass state="io", '
        "or pass it to forward as an input"
    )
    if state == "error":
        raise StateError(text, hint=hint)
    warn_user(f"{text}\nhint: {hint}")
    return tuple(change.path for change in changes)
