"""``capture``: the steps from the user's arguments to an ExportedProgram with named dims."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from ..errors import CaptureError
from .assumptions import read_limits
from .constraints import Constraint, Limits
from .exporting import export_module
from .guards import GuardLog
from .inputs import bind_inputs, check_model, inputs_of_program
from .naming import fixed_dims_error, name_dims
from .paths import input_paths, output_paths
from .relations import bounds_of
from .shapes import Leaf, read_shapes

__all__ = ["Capture", "capture"]


@dataclass(frozen=True)
class Capture:
    """What torch.export made of the model, and what its dims are called.

    Attributes:
        exported_program: The captured program, not decomposed.
        dim_names: torch's symbol (``s77``) to the user's name, for the dims the user named. Names are unique.
        input_paths: Placeholder to path for the inputs that are parts of objects.
        output_paths: Position among the user's outputs to path, for those in a dict, a dataclass or an object.
        objects: Positional and keyword inputs as they were given, if objects among them were taken apart.
        dim_aliases: A name in ``dim_names`` to the other names the user gave to dims that are always as large.
        limits: For which sizes the program stands for the model.
    """

    exported_program: ExportedProgram
    dim_names: Mapping[sympy.Symbol, str]
    dim_aliases: Mapping[str, tuple[str, ...]]
    limits: Limits = field(default_factory=Limits)
    input_paths: Mapping[str, str] = field(default_factory=dict)
    output_paths: Mapping[int, str] = field(default_factory=dict)
    objects: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None


def capture(
    model: torch.nn.Module | ExportedProgram,
    args: tuple[Any, ...] | torch.Tensor = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    strict_shapes: bool = False,
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
        strict_shapes: Whether it is an error, not a warning, if the model can not be captured for all sizes asked for.

    Raises:
        ArgumentError: If an argument is wrong; it names the argument.
        CaptureError: If torch.export fails, a dim that was to be dynamic has only one possible size, or, with
            ``strict_shapes``, not all the sizes that were asked for.
    """
    check_model(model)
    if isinstance(model, ExportedProgram):
        if not dynamic_shapes:
            return Capture(model, {}, {}, read_limits(model, (), {}, None), output_paths=output_paths(model))
        shapes = read_shapes(inputs_of_program(model), dynamic_shapes)
        names, aliases = name_dims(model, shapes.leaves)
        limits = read_limits(model, shapes.leaves, names, None)
        return Capture(model, names, aliases, limits, output_paths=output_paths(model))
    if model.training:
        warnings.warn(
            "the model is in training mode and is exported as such: dropout and batch statistics stay active. "
            "Call model.eval() before the export if it is meant for inference",
            UserWarning,
            stacklevel=3,
        )
    inputs = bind_inputs(model, args, kwargs)
    shapes = read_shapes(inputs, dynamic_shapes)
    log = GuardLog()
    program = export_module(model, inputs, shapes, log)
    names, aliases = name_dims(program, shapes.leaves, log)
    limits = read_limits(program, shapes.leaves, names, log)
    _check_fixed(limits, shapes.leaves, log)
    narrow = [constraint for constraint in limits.constraints if constraint.narrows]
    if narrow and strict_shapes:
        raise CaptureError(_narrowed(narrow), hint="pass strict_shapes=False to export for these sizes only")
    if narrow:
        warnings.warn(_narrowed(narrow), UserWarning, stacklevel=3)
    paths = input_paths(program, inputs, shapes.leaves), output_paths(program)
    return Capture(program, names, aliases, limits, *paths, inputs.objects)


def _narrowed(constraints: Sequence[Constraint]) -> str:
    lines = []
    for constraint in constraints:
        lines.append(f"  {constraint.text}")
        if constraint.line is not None:
            lines.append(f"    at: {constraint.line}")
    return "the model can not be exported for all sizes that were asked for, only for:\n" + "\n".join(lines)


def _check_fixed(limits: Limits, leaves: Sequence[Leaf], log: GuardLog) -> None:
    """Raises for a dim that was to be dynamic and is only right for one size, even if torch keeps a symbol for it."""
    sizes: dict[str, int] = {}
    for constraint in limits.constraints:
        limit = bounds_of(constraint.expression)
        if constraint.narrows and limit is not None and limit[1].low is not None and limit[1].low == limit[1].high:
            sizes[limit[0].name] = limit[1].low
    if not sizes:
        return
    labels = {place.label: sizes.get(str(place.expression)) for place in limits.places}
    fixed = []
    for leaf in leaves:
        for axis in leaf.dims:
            size = labels.get(leaf.label if axis is None else f"{leaf.label} axis {axis}")
            if size is not None:
                fixed.append((leaf, axis, size))
    raise fixed_dims_error(fixed, log)
