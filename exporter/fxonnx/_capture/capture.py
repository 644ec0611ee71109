"""``capture``: the steps from the user's arguments to an ExportedProgram with named dims."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from ..errors import ArgumentError, CaptureError
from .autograd_functions import FunctionCall, called_functions
from .constraints.constraint import Limits, report_narrowed
from .constraints.constraint_solver import bounds_of
from .constraints.fixed_dims import capture_without_fixed, fixed_dims_error, with_fixed
from .constraints.guard_recorder import GuardLog
from .constraints.guard_translation import read_limits
from .inputs.example_inputs import Inputs, bind_inputs, check_model, inputs_of_program, user_inputs
from .inputs.input_names import input_paths, output_paths
from .inputs.loop_bounds import counted_inputs
from .inputs.more_inputs import Examples, add_examples
from .inputs.scalars import explain_branch, frozen_arguments, with_dynamic_ints, with_scalar_inputs
from .script import as_modules
from .shapes.dim_names import name_dims
from .shapes.dynamic_axes import Axes, AxisNames, name_computed_dims, name_output_dims, read_axes
from .shapes.dynamic_dims import Call
from .shapes.dynamic_shapes import Leaf, Shapes
from .shapes.shared_dim_names import differing_dims, shared_dims
from .shapes.spec_keys import read_keyed
from .torch_export import export_module

__all__ = ["ALIASES_KEY", "Capture", "capture"]

ALIASES_KEY = "pkg.fxonnx.dim_aliases"
"""Where the further names of dims are among the model's metadata: JSON, name to other names."""


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
        output_dims: Position among the user's outputs to axis to the user's name of a size computed from other sizes.
        limits: For which sizes the program stands for the model.
        more_inputs: Further examples, positional and keyword inputs each.
        frozen_arguments: Label to value of the numbers and strings that are part of the program.
        scalars: Positions among the leaves of the inputs of the numbers that were made tensors.
        functions: The autograd functions with a ``symbolic`` that the program calls by their positions here.
        counted: Position among the leaves of the inputs to the only value that the program is right for.
    """

    exported_program: ExportedProgram
    dim_names: Mapping[sympy.Symbol, str]
    dim_aliases: Mapping[str, tuple[str, ...]]
    limits: Limits = field(default_factory=Limits)
    input_paths: Mapping[str, str] = field(default_factory=dict)
    output_paths: Mapping[int, str] = field(default_factory=dict)
    objects: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None
    more_inputs: tuple[Call, ...] = ()
    frozen_arguments: Mapping[str, Any] = field(default_factory=dict)
    scalars: frozenset[int] = frozenset()
    functions: tuple[FunctionCall, ...] = ()
    counted: Mapping[int, int] = field(default_factory=dict)
    output_dims: Mapping[int, AxisNames] = field(default_factory=dict)


@dataclass(frozen=True)
class _Request:
    """What the user said of sizes and names; see ``capture``."""

    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None
    dynamic_axes: Mapping[str, Any] | None
    more_inputs: Examples | None
    input_names: Sequence[str]
    output_names: Sequence[str]

    def read(self, inputs: Inputs, graph: Sequence[str] | None = None) -> tuple[Shapes, Axes | None, tuple[Call, ...]]:
        """The sizes of the inputs, what ``dynamic_axes`` says of outputs, and the further examples."""
        if self.dynamic_axes is not None and self.dynamic_shapes is not None:
            raise ArgumentError("dynamic_axes", "dynamic_shapes is given, too", hint="say everything in one of them")
        axes = None
        if self.dynamic_axes is not None:
            axes = read_axes(inputs, self.dynamic_axes, self.input_names, graph)
            shapes = axes.shapes
        else:
            shapes = read_keyed(inputs, self.dynamic_shapes, self.input_names, graph)
        others: tuple[Call, ...] = ()
        if self.more_inputs:
            shapes, others = add_examples(shapes, self.more_inputs)
        return shapes, axes, others


def capture(
    model: torch.nn.Module | ExportedProgram,
    args: tuple[Any, ...] | torch.Tensor = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    dynamic_axes: Mapping[str, Any] | None = None,
    more_inputs: Examples | None = None,
    input_names: Sequence[str] = (),
    output_names: Sequence[str] = (),
    dynamic_scalars: Collection[str] = (),
    strict_shapes: bool = False,
    may_train: bool = False,
) -> Capture:
    """Captures a model with torch.export. The model and the example inputs stay as they are.

    Args:
        model: An ``nn.Module``; or an ``ExportedProgram``, which is used as it is: ``args`` and ``kwargs`` are then
            ignored, and ``dynamic_shapes`` and ``dynamic_axes`` only name dims.
        args: Positional example inputs; a bare tensor is one argument.
        kwargs: Keyword example inputs.
        dynamic_shapes: By name of ``forward``'s parameters, or in their order. The leaves are, per tensor, a dict
            from axis to spec or a sequence of specs; a spec is a name, a ``Dim``, ``Dim.AUTO``, ``Dim.DYNAMIC``,
            ``Dim.STATIC``, an int or None. What is left out is static. Tensors may also be given by the name of their
            graph input, or by a pattern for such names.
        dynamic_axes: Instead of it, by names of graph inputs and outputs: ``{name: {axis: dim}}``, ``{name: [axis]}``.
        more_inputs: Further examples, ``(args, kwargs)`` each; what is not of one size in all of them is dynamic.
        input_names: Names of the first graph inputs.
        output_names: Names of the first graph outputs.
        dynamic_scalars: The ints, floats and bools that are inputs, by parameter or path; others are part of the model.
        strict_shapes: Whether it is an error, not a warning, if the model can not be captured for all sizes asked for.
        may_train: Whether there is no need to warn of a model in training mode.

    Raises:
        ArgumentError: If an argument is wrong; it names the argument.
        CaptureError: If torch.export fails, a dim that was to be dynamic has only one possible size, or, with
            ``strict_shapes``, not all the sizes that were asked for.
    """
    check_model(model)
    request = _Request(dynamic_shapes, dynamic_axes, more_inputs, input_names, output_names)
    if isinstance(model, ExportedProgram):
        return _as_it_is(model, request, strict_shapes)
    with as_modules(model) as module:
        return _captured(module, args, kwargs, request, dynamic_scalars, strict_shapes, may_train)


def _captured(
    model: torch.nn.Module,
    args: Any,
    kwargs: Any,
    request: _Request,
    dynamic_scalars: Collection[str],
    strict_shapes: bool,
    may_train: bool,
) -> Capture:
    if model.training and not may_train:
        warnings.warn(
            "the model is in training mode and is exported as such: dropout and batch statistics stay active. "
            "Call model.eval() before the export if it is meant for inference",
            UserWarning,
            stacklevel=4,
        )
    inputs, scalars, ints = with_scalar_inputs(bind_inputs(model, args, kwargs), dynamic_scalars, model)
    shapes, axes, others = request.read(inputs)
    shapes = with_dynamic_ints(shapes, ints)
    shapes = replace(shapes, shared=shared_dims(shapes.leaves, others))
    numbers = [shapes.leaves[index].label for index in sorted(scalars)]
    traced, shapes, fixed = capture_without_fixed(
        lambda shapes: _traced(model, inputs, shapes, axes, request, numbers), shapes, strict=strict_shapes
    )
    _warn_of_differing(shapes.leaves, others)
    program, counted = traced.program, traced.counted
    limits = with_fixed(traced.limits, fixed, program, shapes.leaves)
    report_narrowed(limits.constraints, strict=strict_shapes, stacklevel=5)
    paths = input_paths(program, inputs, shapes.leaves), output_paths(program)
    dims = traced.names, traced.aliases
    output_dims = name_computed_dims(program, axes, request.output_names, dims, strict=strict_shapes)
    frozen = {**frozen_arguments(shapes.leaves), **_counted(counted, shapes.leaves)}
    return Capture(
        program,
        traced.names,
        traced.aliases,
        limits,
        *paths,
        inputs.objects,
        others,
        frozen,
        scalars,
        traced.calls,
        counted,
        output_dims,
    )


@dataclass(frozen=True)
class _Traced:
    """The captured program with the names and limits of its dims; see ``Capture``."""

    program: ExportedProgram
    names: Mapping[sympy.Symbol, str]
    aliases: Mapping[str, tuple[str, ...]]
    limits: Limits
    calls: tuple[FunctionCall, ...]
    counted: Mapping[int, int]


def _traced(
    model: torch.nn.Module,
    inputs: Inputs,
    shapes: Shapes,
    axes: Axes | None,
    request: _Request,
    scalars: Sequence[str],
) -> _Traced:
    """Captures the model once.

    Raises:
        FixedDimsError: If a dim that was to be dynamic has only one possible size.
    """
    log = GuardLog()
    calls: list[FunctionCall] = []
    try:
        with called_functions(calls), counted_inputs() as counted:
            program = export_module(model, inputs, shapes, log)
    except CaptureError as error:
        explain_branch(error, scalars)
        raise
    names, aliases = _names(program, shapes, axes, request, log)
    limits = read_limits(program, shapes, names, log)
    joined = _joined(names, limits)
    if joined != names:
        names, limits = joined, read_limits(program, shapes, joined, log)
    _check_fixed(limits, shapes.leaves, log)
    _check_example(limits, shapes.leaves)
    return _Traced(program, names, aliases, limits, tuple(calls), counted)


def _warn_of_differing(leaves: Sequence[Leaf], others: Sequence[Call]) -> None:
    differing = differing_dims(leaves, others)
    if differing:
        warnings.warn(
            "one name is given to dims of different sizes, which become separate dims with numbered names:\n"
            + "\n".join(f"  {text}" for text in differing)
            + "\nhint: use one name per size, or an example in which the dims are equal",
            UserWarning,
            stacklevel=5,
        )


def _counted(counted: Mapping[int, int], leaves: Sequence[Leaf]) -> dict[str, int]:
    """The inputs that the model counts with, by label; a warning names them."""
    values = {leaves[position].label: value for position, value in counted.items()}
    if values:
        text = ", ".join(f"{label} = {value}" for label, value in values.items())
        warnings.warn(
            f"the model counts in Python with the value of an input, and is exported for {text} only.\nhint: "
            "write the loop in a function with @torch.jit.script, which becomes a Loop",
            UserWarning,
            stacklevel=5,
        )
    return values


def _as_it_is(program: ExportedProgram, request: _Request, strict_shapes: bool) -> Capture:
    if request.more_inputs:
        raise ArgumentError(
            "more_inputs", "the dims of an ExportedProgram are what they are", hint="pass the nn.Module it was made of"
        )
    if not (request.dynamic_shapes or request.dynamic_axes):
        return Capture(program, {}, {}, read_limits(program, None, {}, None), output_paths=output_paths(program))
    shapes, axes, _ = request.read(inputs_of_program(program), user_inputs(program))
    shapes = replace(shapes, shared=shared_dims(shapes.leaves))
    names, aliases = _names(program, shapes, axes, request)
    limits = read_limits(program, shapes, names, None)
    output_dims = name_computed_dims(program, axes, request.output_names, (names, aliases), strict=strict_shapes)
    return Capture(program, names, aliases, limits, output_paths=output_paths(program), output_dims=output_dims)


def _names(
    program: ExportedProgram, shapes: Shapes, axes: Axes | None, request: _Request, log: GuardLog | None = None
) -> tuple[dict[sympy.Symbol, str], dict[str, tuple[str, ...]]]:
    names = name_dims(program, shapes, log)
    return names if axes is None else name_output_dims(program, axes, request.output_names, names)


def _joined(names: Mapping[sympy.Symbol, str], limits: Limits) -> dict[sympy.Symbol, str]:
    """The names, one for what the user gave one name to and the model needs to be equal."""
    firsts = dict(limits.twins)
    equal: dict[str, str] = {}
    for constraint in limits.constraints:
        sides = [str(side) for side in constraint.expression.args if side.is_Symbol]
        if isinstance(constraint.expression, sympy.Eq) and len(sides) == 2:
            one, other = sides
            if firsts.get(one, one) == firsts.get(other, other):
                equal |= {name: firsts[name] for name in sides if name in firsts}
    return {symbol: equal.get(name, name) for symbol, name in names.items()}


def _check_example(limits: Limits, leaves: Sequence[Leaf]) -> None:
    """Raises if the captured program is not valid for the example itself."""
    by_label = {leaf.label: leaf.value for leaf in leaves}
    inputs: list[Any] = [None] * (1 + max((place.input for place in limits.places), default=-1))
    for place in limits.places:
        inputs[place.input] = by_label.get(place.argument)
    sizes = limits.sizes(inputs)
    constraint = limits.violated(sizes)
    if constraint is not None:
        given = ", ".join(f"{name} = {sizes[name]}" for name in constraint.dims)
        at = f"\n  at: {constraint.line}" if constraint.line else ""
        raise CaptureError(
            f"the captured program needs {constraint.text}, the example has {given}{at}",
            hint="pass an example with another size, or leave the axis out of dynamic_shapes to fix its size",
        )


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
