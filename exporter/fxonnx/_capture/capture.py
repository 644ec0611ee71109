"""Capture: run torch.export on the user's model and name the dims of the resulting ExportedProgram."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram

from .._callers_autocast import callers_autocast
from .._extensions import extended, stand_in
from .._warnings import warn_user
from ..errors import ArgumentError, CaptureError
from .constraints.constraint import Constraint, report_narrowed
from .constraints.guard_recorder import GuardLog
from .constraints.guard_translation import translate_guards
from .constraints.specialized_dims import SpecializedDimsError, with_specialized_dims
from .data_dependence.assumption import Assumption, AssumptionKind
from .data_dependence.concrete_values import following_example
from .data_dependence.data_dependent_guards import DataDependent
from .fewer_limits import Confirm
from .growing_states import UnknownStates
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
from .inputs.input_table import InputTable
from .inputs.list_inputs import reject_tensor_lists, stack_lists
from .inputs.more_inputs import Examples, add_examples
from .inputs.scalars import frozen_arguments, scalars_to_tensors, with_dynamic_ints, with_scalars_as_tensors
from .operand_types import check_operand_types
from .plan import CapturePlan
from .program_arguments import check_program_arguments, check_program_shapes
from .result import ALIASES_KEY, Capture
from .shapes.data_dependent_dims import name_detections, warn_about_squeezed_dims
from .shapes.dynamic_axes import DynamicAxes, name_computed_dims, read_dynamic_axes
from .shapes.dynamic_dims import ExampleCall
from .shapes.dynamic_shapes import DynamicShapes, Leaf
from .shapes.shared_dim_names import differing_dims, shared_dims
from .shapes.spec_keys import read_dynamic_shapes
from .state_inputs import capture_with_states
from .strategies import capture_with_strategies
from .suspicions.attribute_changes import recorded_changes, state_changes
from .suspicions.function_caches import reject_cached_random_values
from .suspicions.introspection import eager_introspection
from .suspicions.random_seeds import reject_generators
from .torch_export import eager_error, reject_tracing
from .trace import CaptureTask, names_of_dims
from .training_mode import reject_enabled_observers, results_depend_on_mode, training_modules

__all__ = ["ALIASES_KEY", "Capture", "capture"]


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
    state_inputs: bool = False,
    confirm: Callable[[Capture], frozenset[Constraint] | None] | None = None,
) -> Capture:
    """Capture a model with torch.export, leaving the model and the example inputs unchanged.

    Args:
        model: An ``nn.Module``; or an ``ExportedProgram``, which is not traced again: ``args`` and ``kwargs`` must
            then be inputs that it takes, and ``dynamic_shapes`` and ``dynamic_axes`` only name dims.
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
        state_inputs: Whether the parameters and buffers that forward writes become inputs.
        confirm: Runs the model, and returns the assumed limits that a capture does not need, or None if the capture is
            wrong at the example; by default, no limits.

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
        check_program_arguments(model, args, kwargs)
        return replace(_capture_program(model, options, strict_shapes), model=model)
    complete = partial(
        replace,
        model=model,
        training=training_modules(model),
        grad_mode=torch.is_grad_enabled(),
        autocast=callers_autocast(),
    )

    def confirmed(captured: Capture) -> frozenset[Constraint] | None:
        return frozenset() if confirm is None else confirm(complete(captured))

    with extended(model), stand_in(model) as module, eager_introspection(module):
        captured = _capture_module(
            module,
            args,
            kwargs,
            options,
            dynamic_scalars,
            strict_shapes,
            may_train,
            frozen,
            data_dependent,
            state_inputs,
            confirmed,
        )
    return complete(captured)


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
    state_inputs: bool,
    confirm: Callable[[Capture], frozenset[Constraint] | None],
) -> Capture:
    """Capture a module; see ``capture``."""
    if model.training and not may_train and results_depend_on_mode(model):
        _warn_about_training()
    reject_enabled_observers(model)
    bound = bind_example_inputs(model, args, kwargs, options.input_names, by_signature=options.legacy)
    inputs, options = _with_stacked_lists(bound, options)
    inputs, ints = scalars_to_tensors(inputs, dynamic_scalars, model)
    inputs = freeze_inputs(inputs, frozen, options.input_names)
    shapes, axes, others = options.read(inputs)
    reject_quantized_inputs((leaf.label, leaf.value) for leaf in shapes.leaves)
    shapes = with_dynamic_ints(shapes, ints)
    names_are_labels = axes is not None and axes.legacy
    shapes = replace(shapes, shared=() if names_are_labels else shared_dims(shapes.leaves, others))
    numbers = [shapes.leaves[index].label for index in sorted(inputs.table.numbers)]

    task = CaptureTask(model, inputs, axes, options.output_names, numbers)
    plan = CapturePlan(strict_shapes, data_dependent == "example", bool(frozen), UnknownStates(), None, shapes)

    def confirmed(captured: Capture, plan: CapturePlan) -> frozenset[Constraint] | None:
        return confirm(replace(captured, inputs=_input_table(captured, inputs, plan.shapes.leaves)))

    run = partial(
        capture_with_strategies,
        task.attempt,
        own_error=lambda error: with_scalars_as_tensors(eager_error(error, model, inputs, shapes), numbers),
        confirm=confirmed,
    )
    with following_example(is_requested=plan.may_follow_example), recorded_changes() as changes:
        try:
            traced, plan = capture_with_states(run, plan, model) if state_inputs else run(plan)
            traced, plan = _with_shared_tensors(task, inputs, (traced, plan), confirmed)
        except SpecializedDimsError as error:  # not a class that users know
            raise CaptureError(error.message, hint=error.hint) from error
    _warn_about_followed_example(traced.assumptions)
    shapes = plan.shapes
    if not names_are_labels:
        _warn_about_split_names(shapes.leaves, others)
    program = traced.exported_program
    limits = with_specialized_dims(traced.limits, plan.specialized, program, shapes.leaves)
    report_narrowed((one for one in limits.constraints if one not in limits.assumed), strict=strict_shapes)
    dims, paths = (traced.dim_names, traced.dim_aliases), output_paths(program)
    check_operand_types(program, shapes.leaves)
    reject_generators(program)
    if plan.strict:
        reject_cached_random_values(program)
    warn_about_squeezed_dims(program)
    return replace(
        traced,
        limits=limits,
        inputs=_input_table(traced, inputs, shapes.leaves),
        output_paths=paths,
        more_inputs=others,
        output_dims={
            **name_detections(program, paths, dims[0]),
            **name_computed_dims(program, axes, options.output_names, dims, strict=strict_shapes),
        },
        attribute_changes=state_changes(model, inputs, program, changes),
    )


def _with_shared_tensors(
    task: CaptureTask, inputs: BoundInputs, found: tuple[Capture, CapturePlan], confirm: Confirm
) -> tuple[Capture, CapturePlan]:
    """A capture of a model that asks whether two inputs are one tensor, as they are in the example.

    Args:
        task: Captures the model.
        inputs: The example inputs.
        found: The capture with separate inputs, and its plan.
        confirm: Runs the model.

    Returns:
        The capture as it is if it is right at the example, or else that for equal inputs, if there is one.
    """
    shared = repeated_tensors(inputs)
    captured, plan = found
    asks_identity = any(one.detail in ("is", "is not") for one in captured.departures)
    if not shared or plan.strict or not asks_identity or confirm(captured, plan) is not None:
        return found
    plan = replace(plan, shared=shared, log=GuardLog(), change="inputs are one tensor, as in the example")
    again = task.attempt(plan)
    return (again, plan) if isinstance(again, Capture) and confirm(again, plan) is not None else found


def _input_table(traced: Capture, inputs: BoundInputs, leaves: tuple[Leaf, ...]) -> InputTable:
    """The table of the inputs, with their names and constants in the captured program."""
    constants = {
        **frozen_arguments(leaves),
        **{leaves[index].label: value for index, value in inputs.table.frozen.items()},
    }
    paths = input_paths(traced.exported_program, inputs, leaves)
    return replace(inputs.table, constants=constants, repeated=repeated_tensors(inputs), paths=paths)


def _warn_about_training() -> None:
    warn_user(
        "the model is in training mode and is exported as such: dropout and batch statistics stay active. "
        "Call model.eval() before the export if it is meant for inference",
    )


def _with_stacked_lists(inputs: BoundInputs, options: _ShapeOptions) -> tuple[BoundInputs, _ShapeOptions]:
    """Inputs and specs with stacked tensors in the place of lists of a dynamic number of tensors."""
    inputs, shapes = stack_lists(inputs, options.dynamic_shapes)
    if inputs.table.lists and options.more_inputs:
        raise ArgumentError(
            "more_inputs", "dynamic_shapes has a TensorList", hint="specify all dynamic dims in dynamic_shapes"
        )
    return inputs, replace(options, dynamic_shapes=shapes)


def _warn_about_followed_example(assumptions: Sequence[Assumption]) -> None:
    followed = [one for one in assumptions if one.kind is AssumptionKind.EXAMPLE]
    if followed:
        warn_user(
            "the model branches on the values of its inputs; the export is valid for inputs that take the same "
            "branches as the example:\n" + "\n".join(f"  {assumption}" for assumption in followed)
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
    check_program_shapes(program, shapes.leaves)
    shapes = replace(shapes, shared=() if axes is not None and axes.legacy else shared_dims(shapes.leaves))
    try:
        names, aliases = names_of_dims(program, shapes, axes, options.output_names)
    except SpecializedDimsError as error:
        raise CaptureError(
            error.message.replace("the model specializes", "the program was captured with a fixed size of", 1),
            hint="pass dynamic_shapes to torch.export.export, or pass the nn.Module instead of the program",
        ) from error
    limits = translate_guards(program, shapes, names, None)
    output_dims = name_computed_dims(program, axes, options.output_names, (names, aliases), strict=strict_shapes)
    return Capture(program, names, aliases, limits, output_paths=output_paths(program), output_dims=output_dims)
