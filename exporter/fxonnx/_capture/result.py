"""The result of a capture: the program, the names and limits of its dims, and the changes that the capture made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy
import torch
from torch.export import ExportedProgram

from .._callers_autocast import Autocast
from .._request import Request
from ..errors import CaptureError
from .assigned_buffers import Reassignment
from .attempts import Attempt
from .attribute_changes import AttributeChange
from .autograd_functions import FunctionCall
from .constraints.constraint import SizeLimits
from .constraints.guard_recorder import DataEdge
from .data_dependence.assumption import Assumption
from .data_dependence.weight_reads import WeightReads
from .departures import Departure
from .inputs.input_table import InputTable
from .rewriting import Rewrite
from .shapes.dynamic_axes import AxisNames
from .shapes.dynamic_dims import ExampleCall

__all__ = ["ALIASES_KEY", "Capture"]

ALIASES_KEY = "pkg.fxonnx.dim_aliases"
"""Key of the dim aliases in the model's metadata: JSON, dim name to list of aliases."""


@dataclass(frozen=True)
class Capture:
    """The captured program with the names of its dims, inputs and outputs.

    Attributes:
        exported_program: The captured program, not decomposed.
        request: The export as it was asked for.
        dim_names: torch's symbol (``s77``) to the user's dim name, for the dims the user named. Names are unique.
        inputs: The leaves of the example inputs that the program takes in another form than the model.
        output_paths: Index of the user output to path, for outputs in a dict, a dataclass or an object.
        dim_aliases: A name in ``dim_names`` to the user's other names for dims that are always equal to it.
        assumptions: The resolutions of guards on values of tensors.
        weight_reads: The values of weights that Python read, which are constants of the program.
        output_dims: Index of the user output to axis to the user's name of a size computed from other sizes.
        limits: The sizes for which the program is valid.
        more_inputs: The additional examples, positional and keyword inputs each.
        functions: The autograd functions with a ``symbolic``; the program refers to them by index.
        training: Names of the modules that were in training mode during the capture; None if they are not known.
        grad_mode: Whether gradients were enabled during the capture; None if it is not known.
        autocast: The caller's autocast during the capture.
        rewrites: The Python control flow that was captured as operators.
        departures: The places in which the capture departs from plain torch.export.
        output_lists: Indices of the user outputs that are lists of a dynamic number of tensors; the program returns the
            stacked tensors.
        attribute_changes: The Python attributes whose changes in one call affect the next.
        reassigned: The buffers that forward replaces by tensors of another kind, whose updates the program lacks.
        attempts: The calls of torch.export, of which the last one that captured the model gave the program.
        refusal: The error of the other attempts, if plain torch.export captured the model after them, or an attempt
            with ``data_edges``: it is raised unless the program is proved.
        data_edges: The conditions that were answered as for all sizes but one, until the proof confirms them.
    """

    exported_program: ExportedProgram
    request: Request = field(default_factory=Request)
    dim_names: Mapping[sympy.Symbol, str] = field(default_factory=dict)
    dim_aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    limits: SizeLimits = field(default_factory=SizeLimits)
    inputs: InputTable = field(default_factory=InputTable)
    output_paths: Mapping[int, str] = field(default_factory=dict)
    more_inputs: tuple[ExampleCall, ...] = ()
    functions: tuple[FunctionCall, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    weight_reads: WeightReads = field(default_factory=WeightReads)
    output_dims: Mapping[int, AxisNames] = field(default_factory=dict)
    training: frozenset[str] | None = None
    grad_mode: bool | None = None
    autocast: Autocast = ()
    rewrites: tuple[Rewrite, ...] = ()
    departures: tuple[Departure, ...] = ()
    output_lists: frozenset[int] = frozenset()
    attribute_changes: tuple[AttributeChange, ...] = ()
    reassigned: tuple[Reassignment, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    refusal: CaptureError | None = None
    data_edges: tuple[DataEdge, ...] = ()

    @property
    def source(self) -> torch.nn.Module | None:
        """The captured module; None for a scripted function or an ``ExportedProgram``."""
        return self.request.model if isinstance(self.request.model, torch.nn.Module) else None
