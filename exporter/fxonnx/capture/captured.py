"""``capture``: the steps from the user's arguments to an ExportedProgram with named dims."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from .exporting import export_module
from .inputs import bind_inputs, check_model, inputs_of_program
from .naming import name_dims
from .shapes import read_shapes

__all__ = ["Capture", "capture"]


@dataclass(frozen=True)
class Capture:
    """What torch.export made of the model, and what its dims are called.

    Attributes:
        exported_program: The captured program, not decomposed.
        dim_names: torch's symbol (``s77``) to the user's name, for the dims the user named. Names are unique.
        dim_aliases: A name in ``dim_names`` to the other names the user gave to dims that are always as large.
    """

    exported_program: ExportedProgram
    dim_names: Mapping[sympy.Symbol, str]
    dim_aliases: Mapping[str, tuple[str, ...]]


def capture(
    model: torch.nn.Module | ExportedProgram,
    args: tuple[Any, ...] | torch.Tensor = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None,
) -> Capture:
    """Captures a model with torch.export. The model and the example inputs stay as they are.

    Args:
        model: An ``nn.Module``; or an ``ExportedProgram``, which is used as it is: ``args`` and ``kwargs`` are then
            ignored and ``dynamic_shapes`` only names dims.
        args: Positional example inputs; a bare tensor is one argument.
        kwargs: Keyword example inputs.
        dynamic_shapes: By name of ``forward``'s parameters, or in their order. The leaves are, per tensor, a dict
            from axis to spec or a sequence of specs; a spec is a name, a ``Dim``, ``Dim.AUTO``, ``Dim.DYNAMIC``,
            ``Dim.STATIC``, an int or None. What is left out is static.

    Raises:
        ArgumentError: If an argument is wrong; it names the argument.
        CaptureError: If torch.export fails, or a dim that was to be dynamic has only one possible size.
    """
    check_model(model)
    if isinstance(model, ExportedProgram):
        if not dynamic_shapes:
            return Capture(model, {}, {})
        shapes = read_shapes(inputs_of_program(model), dynamic_shapes)
        return Capture(model, *name_dims(model, shapes.leaves))
    if model.training:
        warnings.warn(
            "the model is in training mode and is exported as such: dropout and batch statistics stay active. "
            "Call model.eval() before the export if it is meant for inference",
            UserWarning,
            stacklevel=3,
        )
    inputs = bind_inputs(model, args, kwargs)
    shapes = read_shapes(inputs, dynamic_shapes)
    program = export_module(model, inputs, shapes)
    return Capture(program, *name_dims(program, shapes.leaves))
