"""Capture: run torch.export on the user's model and name the dims of the resulting ExportedProgram."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import sympy
import torch
from torch.export import Dim, ExportedProgram

from fxonnx_translations._torch_compat import pytree

from .._extensions import extended, stand_in
from .._request import Request
from .._warnings import warn_user
from ..errors import ArgumentError, CaptureError, did_you_mean, kind_of
from .constraints.constraint import Constraint, report_narrowed
from .constraints.guard_recorder import GuardLog
from .constraints.guard_translation import translate_guards
from .constraints.specialized_dims import SpecializedDimsError, with_specialized_dims
from .data_dependence.assumption import Assumption, AssumptionKind
from .data_dependence.concrete_values import following_example
from .inputs.converted_inputs import (
    freeze_inputs,
    frozen_arguments,
    reject_tensor_lists,
    scalars_to_tensors,
    stack_lists,
    with_dynamic_ints,
    with_scalars_as_tensors,
)
from .inputs.example_inputs import (
    BoundInputs,
    InputTable,
    bind_example_inputs,
    check_model,
    program_inputs,
    reject_quantized_inputs,
    repeated_tensors,
    user_input_names,
)
from .inputs.pytree_objects import flatten_objects
from .operand_types import check_operand_types
from .plan import AttemptLog, Capture, CapturePlan
from .shapes.dim_names import differing_dims, name_detections, shared_dims, warn_about_squeezed_dims
from .shapes.dynamic_dims import ExampleCall, add_examples
from .shapes.dynamic_shapes import DynamicShapes, Leaf
from .shapes.spec_keys import (
    DynamicAxes,
    input_paths,
    name_computed_dims,
    output_paths,
    read_dynamic_axes,
    read_dynamic_shapes,
)
from .state_inputs import capture_with_states
from .strategies import Confirm, capture_with_strategies
from .suspicions.attribute_changes import recorded_changes, state_changes
from .suspicions.introspection import eager_introspection, reject_cached_random_values
from .suspicions.process_state import reject_generators
from .torch_export import eager_error, reject_tracing
from .trace import CaptureTask, names_of_dims, reject_enabled_observers, results_depend_on_mode
from .traced_states import UnknownStates

__all__ = ["capture"]


def capture(
    request: Request,
    confirm: Callable[[Capture], frozenset[Constraint] | None] = lambda captured: frozenset(),
    attempts: AttemptLog | None = None,
    fails: Callable[[Capture, Sequence[Constraint]], bool] = lambda captured, limits: False,
) -> Capture:
    """Capture a model with torch.export, leaving the model and the example inputs unchanged.

    Args:
        request: The model, its example inputs and the options. An ``ExportedProgram`` is not traced again: ``args`` and
            ``kwargs`` must then be inputs that it takes, and ``dynamic_shapes`` and ``dynamic_axes`` only name dims.
        confirm: Runs the model, and returns the assumed limits that a capture does not need, or None if the capture is
            wrong at the example; by default, no limits.
        attempts: Receives the calls of torch.export.
        fails: Whether the model itself fails at the sizes that some limits of a capture exclude.

    Raises:
        ArgumentError: If an argument is invalid; the error names the argument.
        CaptureError: If torch traces a model already, torch.export fails, a dynamic dim is specialized to one size, or,
            with ``strict_shapes``, some of the requested sizes are not supported.
    """
    model = request.model
    check_model(model)
    reject_tracing()
    if isinstance(model, ExportedProgram):
        if request.frozen:
            raise ArgumentError(
                "frozen",
                "an ExportedProgram is already captured",
                hint="pass the nn.Module, or export its program again",
            )
        _check_program_arguments(model, request.args, request.kwargs)
        return _capture_program(model, request)
    with extended(model), stand_in(model) as module, eager_introspection(module):
        return _capture_module(module, request, confirm, AttemptLog() if attempts is None else attempts, fails)


def _read_shapes(
    request: Request, dynamic_shapes: Any, inputs: BoundInputs, graph: Sequence[str] | None = None
) -> tuple[DynamicShapes, DynamicAxes | None, tuple[ExampleCall, ...]]:
    """The shapes of the inputs, ``dynamic_axes``, and the additional examples."""
    axes = None
    if request.dynamic_axes is not None:
        axes = read_dynamic_axes(inputs, request.dynamic_axes, request.input_names, graph, legacy=request.legacy)
        shapes = axes.shapes
    else:
        shapes = read_dynamic_shapes(inputs, dynamic_shapes, request.input_names, graph)
    others: tuple[ExampleCall, ...] = ()
    if request.more_inputs:
        shapes, others = add_examples(shapes, request.more_inputs)
    return shapes, axes, others


def _capture_module(
    model: torch.nn.Module,
    request: Request,
    confirm: Callable[[Capture], frozenset[Constraint] | None],
    attempts: AttemptLog,
    fails: Callable[[Capture, Sequence[Constraint]], bool],
) -> Capture:
    """Capture a module; see ``capture``."""
    if model.training and request.training is None and results_depend_on_mode(model):
        _warn_about_training()
    reject_enabled_observers(model)
    bound = bind_example_inputs(model, request.args, request.kwargs, request.input_names, by_signature=request.legacy)
    inputs, dynamic_shapes = stack_lists(bound, request.dynamic_shapes)
    if inputs.table.lists and request.more_inputs:
        raise ArgumentError(
            "more_inputs", "dynamic_shapes has a TensorList", hint="specify all dynamic dims in dynamic_shapes"
        )
    inputs, ints = scalars_to_tensors(inputs, request.dynamic_scalars, model)
    inputs = freeze_inputs(inputs, request.frozen, request.input_names)
    shapes, axes, others = _read_shapes(request, dynamic_shapes, inputs)
    reject_quantized_inputs((leaf.label, leaf.value) for leaf in shapes.leaves)
    shapes = with_dynamic_ints(shapes, ints)
    names_are_labels = axes is not None and axes.legacy
    shapes = replace(shapes, shared=() if names_are_labels else shared_dims(shapes.leaves, others))
    numbers = [shapes.leaves[index].label for index in sorted(inputs.table.numbers)]

    task = CaptureTask(request, model, inputs, axes, numbers, attempts)
    plan = CapturePlan(request, UnknownStates(), None, None, shapes)

    def with_inputs(captured: Capture, plan: CapturePlan) -> Capture:
        return replace(captured, inputs=_input_table(captured, inputs, plan.shapes.leaves))

    def confirmed(captured: Capture, plan: CapturePlan) -> frozenset[Constraint] | None:
        return confirm(with_inputs(captured, plan))

    run = partial(
        capture_with_strategies,
        task.attempt,
        own_error=lambda error: with_scalars_as_tensors(eager_error(error, model, inputs, shapes), numbers),
        confirm=confirmed,
        fails=lambda captured, plan, limits: fails(with_inputs(captured, plan), limits),
    )
    is_followed = request.data_dependent == "example"
    with following_example(is_requested=is_followed), recorded_changes() as changes:
        try:
            traced, plan = capture_with_states(run, plan, model) if request.state == "io" else run(plan)
            traced, plan = _with_shared_tensors(task, inputs, (traced, plan), confirmed)
        except SpecializedDimsError as error:  # not a class that users know
            raise CaptureError(error.message, hint=error.hint) from error
    _warn_about_followed_example(traced.assumptions)
    shapes, strict = plan.shapes, request.strict_shapes
    if not names_are_labels:
        _warn_about_split_names(shapes.leaves, others)
    program = traced.exported_program
    limits = with_specialized_dims(traced.limits, plan.specialized, program, shapes.leaves)
    report_narrowed((one for one in limits.constraints if one not in limits.assumed), strict=strict)
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
            **name_computed_dims(program, axes, request.output_names, dims, strict=strict),
        },
        attribute_changes=state_changes(model, inputs, program, changes),
        attempts=tuple(attempts.attempts),
    )


def _with_shared_tensors(
    task: CaptureTask, inputs: BoundInputs, found: tuple[Capture, CapturePlan], confirm: Confirm
) -> tuple[Capture, CapturePlan]:
    """A capture that is right for equal inputs, of a model that asks whether they are one tensor, as in the example."""
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


def _capture_program(program: ExportedProgram, request: Request) -> Capture:
    """Name the dims of an ExportedProgram that is already captured; see ``capture``."""
    if request.more_inputs:
        raise ArgumentError(
            "more_inputs",
            "the dims of an ExportedProgram are already fixed or dynamic",
            hint="pass the nn.Module instead of the ExportedProgram",
        )
    reject_tensor_lists(request.dynamic_shapes)
    check_operand_types(program)
    if not (request.dynamic_shapes or request.dynamic_axes):
        limits = translate_guards(program, None, {}, None)
        return Capture(program, request, limits=limits, output_paths=output_paths(program))
    shapes, axes, _ = _read_shapes(request, request.dynamic_shapes, program_inputs(program), user_input_names(program))
    _check_program_shapes(program, shapes.leaves)
    shapes = replace(shapes, shared=() if axes is not None and axes.legacy else shared_dims(shapes.leaves))
    try:
        names, aliases = names_of_dims(program, shapes, axes, request.output_names)
    except SpecializedDimsError as error:
        raise CaptureError(
            error.message.replace("the model specializes", "the program was captured with a fixed size of", 1),
            hint="pass dynamic_shapes to torch.export.export, or pass the nn.Module instead of the program",
        ) from error
    limits = translate_guards(program, shapes, names, None)
    dims = name_computed_dims(program, axes, request.output_names, (names, aliases), strict=request.strict_shapes)
    paths = output_paths(program)
    return Capture(program, request, names, aliases, limits, output_paths=paths, output_dims=dims)


_HINT = "leave it out: the program has inputs of its own; or pass the nn.Module, to capture it for these"
_VARIABLE = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
_LOWEST = 2
"""torch leaves 0 and 1 out of the ranges of some sizes."""


def _check_program_arguments(program: ExportedProgram, args: Any, kwargs: Mapping[str, Any] | None) -> None:
    """Check that example inputs are ones that a program takes; their values have no effect.

    Raises:
        ArgumentError: If they have another structure, dtype or shape than the program takes.
    """
    given = (args,) if isinstance(args, torch.Tensor) else args
    if not given and not kwargs:
        return
    own = program_inputs(program)
    names = [*own.signature.parameters]
    if not isinstance(given, tuple | list):
        raise _error("args", f"expected a tuple or a tensor, got {kind_of(given)}")
    if len(given) > len(names):
        raise _error("args", f"the ExportedProgram takes {len(names)} inputs, got {len(given)} positional ones")
    bound = dict(zip(names, given, strict=False))
    for name, value in (kwargs or {}).items():
        if name not in names:
            taken = f"it takes {', '.join(names) or 'none'}"
            raise _error("kwargs", f"the ExportedProgram has no input {name!r}", did_you_mean(name, names, taken))
        if name in bound:
            raise _error("kwargs", f"{name!r} is also given by position")
        bound[name] = value
    expected = dict(zip(names, (*own.args, *own.kwargs.values()), strict=True))
    sizes: dict[sympy.Expr, int] = {}
    for name in names:
        if name in bound:
            argument = "kwargs" if name in (kwargs or {}) else "args"
            _check_input(program, argument, name, bound[name], expected[name], sizes)
        elif any(isinstance(leaf, _VARIABLE) for leaf in pytree.tree_leaves(expected[name])):
            raise _error("kwargs" if kwargs else "args", f"the input {name!r} of the ExportedProgram is missing")


def _check_program_shapes(program: ExportedProgram, leaves: Sequence[Leaf]) -> None:
    """Check that specs only name the dynamic dims of a program.

    Raises:
        ArgumentError: If a spec makes a dynamic dim static, or gives it another range.
    """
    for leaf in leaves:
        shape: Sequence[Any] = leaf.value.shape if isinstance(leaf.value, torch.Tensor) else ()
        for axis, size in enumerate(shape):
            if not isinstance(size, torch.SymInt):
                continue
            if axis in leaf.fixed:
                problem = f"{leaf.label} axis {axis} is dynamic in the ExportedProgram, not static"
                raise _error("dynamic_shapes", problem)
            spec, known = leaf.dims.get(axis), program.range_constraints.get(size.node.expr)
            if known is None or type(spec) is not Dim:
                continue
            ranges = [(max(int(spec.min), _LOWEST), spec.max), (max(int(known.lower), _LOWEST), known.upper)]
            is_named_only = int(spec.min) <= _LOWEST and not _is_finite(spec.max)
            if not is_named_only and ranges[0] != ranges[1]:
                problem = f"{leaf.label} axis {axis} is {known.lower} to {known.upper} in the ExportedProgram"
                raise _error("dynamic_shapes", f"{problem}, not {spec.min} to {spec.max}")


def _is_finite(size: Any) -> bool:
    return isinstance(size, int | sympy.Integer)


def _error(argument: str, problem: str, hint: str | None = None) -> ArgumentError:
    return ArgumentError(argument, problem, hint=_HINT if hint is None else f"{hint}; or {_HINT}")


def _check_input(
    program: ExportedProgram, argument: str, name: str, value: Any, expected: Any, sizes: dict[sympy.Expr, int]
) -> None:
    """Check one input; sizes of dynamic dims are collected."""
    given, structure = pytree.tree_flatten(flatten_objects(_with_tuples(value)))
    leaves, known = pytree.tree_flatten(expected)
    if structure != known or len(given) != len(leaves):
        raise _error(argument, f"{name!r} has another structure than in the ExportedProgram")
    for leaf, own in zip(given, leaves, strict=True):
        if isinstance(own, torch.Tensor):
            _check_tensor(program, argument, name, leaf, own, sizes)
        elif isinstance(own, _VARIABLE):
            continue
        elif isinstance(leaf, torch.Tensor) or repr(leaf) != repr(own):
            shown = kind_of(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf)
            raise _error(argument, f"{name!r} is {shown}, but the constant {own!r} in the ExportedProgram")


def _with_tuples(value: Any) -> Any:
    """The input with tuples in the place of sizes of tensors, as torch.export makes of them."""
    return pytree.tree_map(
        lambda part: tuple(part) if isinstance(part, torch.Size) else part,
        value,
        is_leaf=lambda part: isinstance(part, torch.Size),
    )


def _check_tensor(
    program: ExportedProgram, argument: str, name: str, given: Any, own: torch.Tensor, sizes: dict[sympy.Expr, int]
) -> None:
    if isinstance(given, bool | int | float) and not own.dim():
        return
    if not isinstance(given, torch.Tensor):
        raise _error(argument, f"{name!r} is {kind_of(given)}, but a tensor in the ExportedProgram")
    if given.dtype != own.dtype:
        raise _error(argument, f"{name!r} is {given.dtype}, but {own.dtype} in the ExportedProgram")
    matches = given.dim() == own.dim()
    for size, known in zip(given.shape, own.shape, strict=True) if matches else ():
        if isinstance(known, torch.SymInt):
            bounds = program.range_constraints.get(known.node.expr)
            matches &= isinstance(size, torch.SymInt) or sizes.setdefault(known.node.expr, size) == size
            matches &= bounds is None or isinstance(size, torch.SymInt) or bool(bounds.lower <= size <= bounds.upper)
        else:
            matches &= size == known
    if not matches:
        shape = ", ".join(map(str, own.shape))
        raise _error(argument, f"{name!r} has the shape {[*given.shape]}, but [{shape}] in the ExportedProgram")
