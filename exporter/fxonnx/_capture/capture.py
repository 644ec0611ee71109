"""Capture: run torch.export on the user's model and name the dims of the resulting ExportedProgram."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from .._callers_autocast import Autocast, callers_autocast
from .._extensions import extended, stand_in
from .._warnings import warn_user
from ..errors import ArgumentError, CaptureError
from .attempts import Attempt, next_attempt
from .attribute_changes import AttributeChange, recorded_changes, state_changes
from .autograd_functions import FunctionCall, recorded_function_calls
from .constraints.constraint import SizeLimits, report_narrowed
from .constraints.guard_recorder import GuardLog
from .constraints.guard_translation import translate_guards
from .constraints.long_loops import LongLoopFound, LongLoops
from .constraints.specialized_dims import (
    SpecializedDimsError,
    capture_with_fallback_to_static,
    check_specialized,
    with_specialized_dims,
)
from .departures import Departure, DepartureKind, recorded_departures
from .inputs.example_inputs import (
    BoundInputs,
    bind_example_inputs,
    check_model,
    program_inputs,
    reject_quantized_inputs,
    repeated_tensors,
    user_input_names,
)
from .inputs.frozen import freeze_inputs
from .inputs.input_names import input_paths, output_paths
from .inputs.list_inputs import reject_tensor_lists, stack_lists
from .inputs.loop_bounds import recorded_loop_bounds
from .inputs.more_inputs import Examples, add_examples
from .inputs.preserve import training_modules
from .inputs.scalars import explain_scalar_branch, frozen_arguments, scalars_to_tensors, with_dynamic_ints
from .introspection import eager_introspection
from .observers import reject_enabled_observers
from .operand_types import check_operand_types
from .patches.python_sizes.integers import capture_with_symbolic_integers
from .questions.assumption import Assumption, AssumptionLog
from .questions.known_values import KnownValues, following_example
from .questions.ladder import DataDependent, answer_questions
from .rewriting import Rewrite, Rewritten, capture_with_loops, capture_with_rewrites
from .shapes.dim_names import name_dims
from .shapes.dynamic_axes import AxisNames, DynamicAxes, name_computed_dims, name_output_dims, read_dynamic_axes
from .shapes.dynamic_dims import ExampleCall
from .shapes.dynamic_shapes import DynamicShapes, Leaf
from .shapes.shared_dim_names import differing_dims, shared_dims
from .shapes.spec_keys import read_dynamic_shapes
from .tensor_lists import recorded_list_results
from .torch_export import export_module, reject_tracing

__all__ = ["ALIASES_KEY", "Capture", "capture"]

ALIASES_KEY = "pkg.fxonnx.dim_aliases"
"""Key of the dim aliases in the model's metadata: JSON, dim name to list of aliases."""


@dataclass(frozen=True)
class Capture:
    """The captured program with the names of its dims, inputs and outputs.

    Attributes:
        exported_program: The captured program, not decomposed.
        dim_names: torch's symbol (``s77``) to the user's dim name, for the dims the user named. Names are unique.
        input_paths: Placeholder name to path, for inputs inside of objects.
        output_paths: Index of the user output to path, for outputs in a dict, a dataclass or an object.
        objects: The original positional and keyword inputs, if objects among them were flattened.
        dim_aliases: A name in ``dim_names`` to the user's other names for dims that are always equal to it.
        frozen_tensors: Leaf index to value of the frozen inputs.
        assumptions: The answers to the questions that the model asked about values of tensors.
        output_dims: Index of the user output to axis to the user's name of a size computed from other sizes.
        limits: The sizes for which the program is valid.
        more_inputs: The additional examples, positional and keyword inputs each.
        frozen_arguments: Label to value of the numbers and strings that are constants of the program.
        scalars: Leaf indices of the numbers that were converted to tensors.
        functions: The autograd functions with a ``symbolic``; the program refers to them by index.
        loop_bounds: Leaf index to value of the inputs used as Python loop bounds, for which only this value is valid.
        loop_bound_places: The lines that use them.
        loop_refusal: The failure of the capture with these loops as operators.
        model: The object that the caller passed: a module, a scripted function or an ``ExportedProgram``; None if it is
            not known.
        training: Names of the modules that were in training mode during the capture; None if they are not known.
        grad_mode: Whether gradients were enabled during the capture; None if it is not known.
        autocast: The caller's autocast during the capture.
        repeated: Leaf index of an example input that is the same tensor as an earlier one, to the index of that one.
        rewrites: The Python control flow that was captured as operators.
        departures: The places in which the capture departs from plain torch.export.
        input_lists: Leaf indices of the inputs that are lists of a dynamic number of tensors; the program takes the
            stacked tensors.
        output_lists: Indices of the user outputs that are lists of a dynamic number of tensors; the program returns the
            stacked tensors.
        attribute_changes: The Python attributes whose changes in one call affect the next.
        attempts: The calls of torch.export, of which the last one that captured the model gave the program.
    """

    exported_program: ExportedProgram
    dim_names: Mapping[sympy.Symbol, str] = field(default_factory=dict)
    dim_aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    limits: SizeLimits = field(default_factory=SizeLimits)
    input_paths: Mapping[str, str] = field(default_factory=dict)
    output_paths: Mapping[int, str] = field(default_factory=dict)
    objects: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None
    more_inputs: tuple[ExampleCall, ...] = ()
    frozen_arguments: Mapping[str, Any] = field(default_factory=dict)
    scalars: frozenset[int] = frozenset()
    functions: tuple[FunctionCall, ...] = ()
    loop_bounds: Mapping[int, int] = field(default_factory=dict)
    loop_bound_places: tuple[str, ...] = ()
    loop_refusal: CaptureError | None = None
    frozen_tensors: Mapping[int, torch.Tensor] = field(default_factory=dict)
    assumptions: tuple[Assumption, ...] = ()
    output_dims: Mapping[int, AxisNames] = field(default_factory=dict)
    model: torch.nn.Module | ExportedProgram | Callable[..., Any] | None = None
    training: frozenset[str] | None = None
    grad_mode: bool | None = None
    autocast: Autocast = ()
    repeated: Mapping[int, int] = field(default_factory=dict)
    rewrites: tuple[Rewrite, ...] = ()
    departures: tuple[Departure, ...] = ()
    input_lists: frozenset[int] = frozenset()
    output_lists: frozenset[int] = frozenset()
    attribute_changes: tuple[AttributeChange, ...] = ()
    attempts: tuple[Attempt, ...] = ()

    @property
    def source(self) -> torch.nn.Module | None:
        """The captured module; None for a scripted function or an ``ExportedProgram``."""
        return self.model if isinstance(self.model, torch.nn.Module) else None


@dataclass(frozen=True)
class _ShapeOptions:
    """The user's options for shapes and names; see ``capture``."""

    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None
    dynamic_axes: Mapping[str, Any] | None
    more_inputs: Examples | None
    input_names: Sequence[str]
    output_names: Sequence[str]
    legacy: bool = False

    def read(
        self, inputs: BoundInputs, graph: Sequence[str] | None = None
    ) -> tuple[DynamicShapes, DynamicAxes | None, tuple[ExampleCall, ...]]:
        """Parse the options: the shapes of the inputs, ``dynamic_axes``, and the additional examples."""
        if self.dynamic_axes is not None and self.dynamic_shapes is not None:
            raise ArgumentError(
                "dynamic_axes", "dynamic_shapes is also given", hint="specify all dynamic dims in one of them"
            )
        axes = None
        if self.dynamic_axes is not None:
            axes = read_dynamic_axes(inputs, self.dynamic_axes, self.input_names, graph, legacy=self.legacy)
            shapes = axes.shapes
        else:
            shapes = read_dynamic_shapes(inputs, self.dynamic_shapes, self.input_names, graph)
        others: tuple[ExampleCall, ...] = ()
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
    frozen: Collection[str] = (),
    data_dependent: DataDependent = "error",
    legacy: bool = False,
) -> Capture:
    """Capture a model with torch.export, leaving the model and the example inputs unchanged.

    Args:
        model: An ``nn.Module``; or an ``ExportedProgram``, which is not traced again: ``args`` and ``kwargs`` are then
            ignored, and ``dynamic_shapes`` and ``dynamic_axes`` only name dims.
        args: Positional example inputs; a bare tensor is one argument.
        kwargs: Keyword example inputs.
        dynamic_shapes: Specs by name of ``forward``'s parameters, or in their order. The leaves are, per tensor, a dict
            from axis to spec or a sequence of specs; a spec is a name, a ``Dim``, ``Dim.AUTO``, ``Dim.DYNAMIC``,
            ``Dim.STATIC``, an int or None. A ``TensorList`` stands for a list of tensors. Dims without a spec are
            static. A key may also be the name of a graph input, or a pattern that matches such names.
        dynamic_axes: The alternative, by names of graph inputs and outputs: ``{name: {axis: dim}}``,
            ``{name: [axis]}``.
        more_inputs: Additional examples, ``(args, kwargs)`` each; sizes that differ between examples are dynamic.
        input_names: Names of the first graph inputs.
        output_names: Names of the first graph outputs.
        dynamic_scalars: The ints, floats and bools that become graph inputs, by parameter or path; others become
            constants.
        strict_shapes: Raise an error instead of a warning if the model cannot be captured for all requested sizes.
        may_train: Do not warn about a model in training mode.
        frozen: Names or patterns of the tensors whose example values become constants.
        data_dependent: "example" to follow the example where the model branches on the values of its inputs.
        legacy: Read keyword inputs and the names of ``dynamic_axes`` as the TorchScript exporter of torch.onnx does.

    Raises:
        ArgumentError: If an argument is invalid; the error names the argument.
        CaptureError: If torch traces a model already, torch.export fails, a dynamic dim is specialized to one size, or,
            with ``strict_shapes``, some of the requested sizes are not supported.
    """
    check_model(model)
    reject_tracing()
    options = _ShapeOptions(dynamic_shapes, dynamic_axes, more_inputs, input_names, output_names, legacy)
    if isinstance(model, ExportedProgram):
        if frozen:
            raise ArgumentError(
                "frozen",
                "an ExportedProgram is already captured",
                hint="pass the nn.Module, or export its program again",
            )
        return replace(_capture_program(model, options, strict_shapes), model=model)
    with extended(model), stand_in(model) as module, eager_introspection(module):
        captured = _capture_module(
            module, args, kwargs, options, dynamic_scalars, strict_shapes, may_train, frozen, data_dependent
        )
    return replace(
        captured,
        model=model,
        training=training_modules(model),
        grad_mode=torch.is_grad_enabled(),
        autocast=callers_autocast(),
    )


def _capture_module(
    model: torch.nn.Module,
    args: Any,
    kwargs: Any,
    options: _ShapeOptions,
    dynamic_scalars: Collection[str],
    strict_shapes: bool,
    may_train: bool,
    frozen: Collection[str],
    data_dependent: DataDependent,
) -> Capture:
    """Capture a module; see ``capture``."""
    if model.training and not may_train:
        _warn_about_training()
    reject_enabled_observers(model)
    bound = bind_example_inputs(model, args, kwargs, options.input_names, by_signature=options.legacy)
    inputs, options = _with_stacked_lists(bound, options)
    inputs, scalars, ints = scalars_to_tensors(inputs, dynamic_scalars, model)
    inputs = freeze_inputs(inputs, frozen, options.input_names)
    shapes, axes, others = options.read(inputs)
    reject_quantized_inputs((leaf.label, leaf.value) for leaf in shapes.leaves)
    shapes = with_dynamic_ints(shapes, ints)
    names_are_labels = axes is not None and axes.legacy
    shapes = replace(shapes, shared=() if names_are_labels else shared_dims(shapes.leaves, others))
    numbers = [shapes.leaves[index].label for index in sorted(scalars)]

    def trace(shapes: DynamicShapes, loops: LongLoops | None) -> Capture:
        def attempt(values: KnownValues | None) -> Capture:
            return _trace_model(model, inputs, shapes, axes, options, numbers, values, loops)

        def again() -> Capture:
            return capture_with_symbolic_integers(
                lambda: attempt(KnownValues(AssumptionLog())), model, _restricting_lines
            )

        try:
            found = capture_with_symbolic_integers(
                lambda: answer_questions(attempt, _rewritten, from_start=bool(frozen), data_dependent=data_dependent),
                model,
                _restricting_lines,
            )
        except SpecializedDimsError as error:
            return _rewritten(again, error)
        return _with_size_loops(again, _with_value_loops(again, found))

    with following_example(is_requested=data_dependent == "example"), recorded_changes() as changes:
        traced, shapes, specialized = capture_with_fallback_to_static(
            partial(_with_long_loops, trace), shapes, strict=strict_shapes
        )
    if not names_are_labels:
        _warn_about_split_names(shapes.leaves, others)
    program = traced.exported_program
    limits = with_specialized_dims(traced.limits, specialized, program, shapes.leaves)
    report_narrowed(limits.constraints, strict=strict_shapes)
    dims = traced.dim_names, traced.dim_aliases
    check_operand_types(program, shapes.leaves)
    return replace(
        traced,
        limits=limits,
        input_paths=input_paths(program, inputs, shapes.leaves),
        output_paths=output_paths(program),
        objects=inputs.objects,
        more_inputs=others,
        frozen_arguments={
            **frozen_arguments(shapes.leaves),
            **_loop_bound_values(traced, shapes.leaves),
            **{shapes.leaves[index].label: value for index, value in inputs.frozen.items()},
        },
        scalars=scalars,
        input_lists=inputs.lists,
        repeated=repeated_tensors(inputs),
        output_dims=name_computed_dims(program, axes, options.output_names, dims, strict=strict_shapes),
        attribute_changes=state_changes(model, inputs, program, changes),
    )


def _warn_about_training() -> None:
    warn_user(
        "the model is in training mode and is exported as such: dropout and batch statistics stay active. "
        "Call model.eval() before the export if it is meant for inference",
    )


def _with_stacked_lists(inputs: BoundInputs, options: _ShapeOptions) -> tuple[BoundInputs, _ShapeOptions]:
    """Inputs and specs with stacked tensors in the place of lists of a dynamic number of tensors."""
    inputs, shapes = stack_lists(inputs, options.dynamic_shapes)
    if inputs.lists and options.more_inputs:
        raise ArgumentError(
            "more_inputs", "dynamic_shapes has a TensorList", hint="specify all dynamic dims in dynamic_shapes"
        )
    return inputs, replace(options, dynamic_shapes=shapes)


def _with_long_loops(trace: Callable[[DynamicShapes, LongLoops | None], Capture], shapes: DynamicShapes) -> Capture:
    """Capture a model; where a long loop over a dim cannot be an operator, capture it again with the loop unrolled."""
    loops = LongLoops(shapes.leaves)
    try:
        return trace(shapes, loops)
    except CaptureError:
        if not loops.any_found:
            raise
    next_attempt("loops over large dims are unrolled")
    return trace(shapes, None)


def _rewritten(attempt: Callable[[], Capture], failure: CaptureError) -> Capture:
    """Capture a model with rewritten control flow after a failure."""
    return _with_rewrites(*capture_with_rewrites(attempt, failure))


def _with_rewrites(captured: Capture, rewritten: Rewritten) -> Capture:
    """The capture of a model with rewritten functions, each of which is a departure."""
    departures = [
        *(Departure(DepartureKind.REWRITTEN, one.construct, one.place) for one in rewritten.constructs),
        *(Departure(DepartureKind.REWRITTEN, "function", place) for place in rewritten.functions),
    ]
    return replace(captured, rewrites=rewritten.constructs, departures=(*captured.departures, *departures))


def _with_value_loops(attempt: Callable[[], Capture], captured: Capture) -> Capture:
    """Capture a model with rewritten loops if fewer inputs are then limited to the values of the example."""
    if not captured.loop_bounds:
        return captured
    try:
        found = capture_with_loops(attempt, captured.loop_bound_places)
    except CaptureError as error:
        return replace(captured, loop_refusal=error)
    if found is None or not found[0].loop_bounds.keys() < captured.loop_bounds.keys():
        return captured
    return _with_rewrites(*found)


def _restricting_lines(captured: Capture) -> list[str]:
    """The lines of the model by which a capture is valid for fewer sizes than requested."""
    return [item.line for item in captured.limits.constraints if item.narrows and item.line is not None]


def _with_size_loops(attempt: Callable[[], Capture], captured: Capture) -> Capture:
    """Capture a model with rewritten loops if this makes it valid for more of the requested sizes."""
    lines = _restricting_lines(captured)
    if not lines or captured.rewrites:
        return captured
    try:
        found = capture_with_loops(attempt, lines)
    except CaptureError:
        return captured
    if found is None or sum(item.narrows for item in found[0].limits.constraints) >= len(lines):
        return captured
    return _with_rewrites(*found)


def _trace_model(
    model: torch.nn.Module,
    inputs: BoundInputs,
    shapes: DynamicShapes,
    axes: DynamicAxes | None,
    options: _ShapeOptions,
    scalars: Sequence[str],
    values: KnownValues | None,
    loops: LongLoops | None,
) -> Capture:
    """Run torch.export once: the program with the names and limits of its dims.

    Args:
        model: The model.
        inputs: The example inputs.
        shapes: The dynamic dims.
        axes: ``dynamic_axes``.
        options: The user's options for shapes and names.
        scalars: Labels of the numbers that were converted to tensors.
        values: Answers questions about the values of tensors; None raises an error for each.
        loops: Ends the capture at a loop over a dim that has a large size in the example.

    Raises:
        SpecializedDimsError: If a dynamic dim is specialized to one size.
    """
    log = GuardLog()
    if loops is not None:
        loops.watch(log)
    calls: list[FunctionCall] = []
    try:
        with (
            recorded_function_calls(calls),
            recorded_loop_bounds() as bounds,
            recorded_list_results() as lists,
            recorded_departures() as departures,
            suppress(LongLoopFound),
        ):
            program = export_module(model, inputs, shapes, log, values)
    except CaptureError as error:
        explain_scalar_branch(error, scalars)
        raise
    if loops is not None and loops.found is not None:
        raise SpecializedDimsError([loops.found])
    names, aliases = _name_dims(program, shapes, axes, options, log)
    limits = translate_guards(program, shapes, names, log)
    merged = _merge_equal_names(names, limits)
    if merged != names:
        names, limits = merged, translate_guards(program, shapes, merged, log)
    check_specialized(limits, shapes.leaves, log)
    _check_example(limits, shapes.leaves)
    assumptions = () if values is None else tuple(values.log.assumptions)
    return Capture(
        program,
        names,
        aliases,
        limits,
        functions=tuple(calls),
        loop_bounds=bounds.used,
        loop_bound_places=tuple(bounds.places),
        frozen_tensors=inputs.frozen,
        assumptions=assumptions,
        departures=(*departures, *(one.departure for one in assumptions)),
        output_lists=lists.positions,
    )


def _warn_about_split_names(leaves: Sequence[Leaf], others: Sequence[ExampleCall]) -> None:
    """Warn about names that become several dims because the sizes differ in an example."""
    differing = differing_dims(leaves, others)
    if differing:
        warn_user(
            "dims of different sizes have the same name and become separate dims with numbered names:\n"
            + "\n".join(f"  {text}" for text in differing)
            + "\nhint: use one name per size, or an example with equal sizes",
        )


def _loop_bound_values(captured: Capture, leaves: Sequence[Leaf]) -> dict[str, int]:
    """Values of the inputs that the model uses as Python loop bounds, by label; warn about them."""
    values = {leaves[position].label: value for position, value in captured.loop_bounds.items()}
    if values:
        text = ", ".join(f"{label} = {value}" for label, value in values.items())
        refusal = captured.loop_refusal
        reason, hint = "", "move the loop to a function decorated with @torch.jit.script, which becomes an ONNX Loop"
        if refusal is not None and refusal.hint is not None:
            reason, hint = f"\n  {refusal.message}", refusal.hint
        names = ", ".join(f'"{label}"' for label in values)
        warn_user(
            f"the model uses the value of an input as a Python loop bound; the export is valid for {text} only.{reason}"
            f"\nhint: {hint}; frozen=[{names}] keeps the loop unrolled without this warning",
        )
    return values


def _capture_program(program: ExportedProgram, options: _ShapeOptions, strict_shapes: bool) -> Capture:
    """Name the dims of an ExportedProgram that is already captured; see ``capture``."""
    if options.more_inputs:
        raise ArgumentError(
            "more_inputs",
            "the dims of an ExportedProgram are already fixed or dynamic",
            hint="pass the nn.Module instead of the ExportedProgram",
        )
    reject_tensor_lists(options.dynamic_shapes)
    check_operand_types(program)
    if not (options.dynamic_shapes or options.dynamic_axes):
        return Capture(program, {}, {}, translate_guards(program, None, {}, None), output_paths=output_paths(program))
    shapes, axes, _ = options.read(program_inputs(program), user_input_names(program))
    shapes = replace(shapes, shared=() if axes is not None and axes.legacy else shared_dims(shapes.leaves))
    names, aliases = _name_dims(program, shapes, axes, options)
    limits = translate_guards(program, shapes, names, None)
    output_dims = name_computed_dims(program, axes, options.output_names, (names, aliases), strict=strict_shapes)
    return Capture(program, names, aliases, limits, output_paths=output_paths(program), output_dims=output_dims)


def _name_dims(
    program: ExportedProgram,
    shapes: DynamicShapes,
    axes: DynamicAxes | None,
    options: _ShapeOptions,
    log: GuardLog | None = None,
) -> tuple[dict[sympy.Symbol, str], dict[str, tuple[str, ...]]]:
    """Assign the user's names to the symbols of inputs and of output dims."""
    names = name_dims(program, shapes, log)
    return names if axes is None else name_output_dims(program, axes, options.output_names, names)


def _merge_equal_names(names: Mapping[sympy.Symbol, str], limits: SizeLimits) -> dict[sympy.Symbol, str]:
    """Give one name to dims that share the user's name and that a guard requires to be equal."""
    firsts = dict(limits.shared_names)
    equal: dict[str, str] = {}
    for constraint in limits.constraints:
        sides = [str(side) for side in constraint.expression.args if side.is_Symbol]
        if isinstance(constraint.expression, sympy.Eq) and len(sides) == 2:
            one, other = sides
            if firsts.get(one, one) == firsts.get(other, other):
                equal |= {name: firsts[name] for name in sides if name in firsts}
    return {symbol: equal.get(name, name) for symbol, name in names.items()}


def _check_example(limits: SizeLimits, leaves: Sequence[Leaf]) -> None:
    """Raise a CaptureError if the example inputs violate a constraint of the captured program."""
    by_label = {leaf.label: leaf.value for leaf in leaves}
    inputs: list[Any] = [None] * (1 + max((place.input for place in limits.places), default=-1))
    for place in limits.places:
        inputs[place.input] = by_label.get(place.argument)
    limits.check_example(inputs)
