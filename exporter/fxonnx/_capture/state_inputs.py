"""State that becomes graph inputs: parameters and buffers whose values, before a call, are those that the last one left.

Their values at the export are not known to the capture: what Python reads from them is read in each call. Nor are the
sizes of those that grow. Which ones forward writes is known after a capture only; another one follows if it may have
computed with a value or a size of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from .._export_signature import read_signature
from .._written_parameters import written_placeholders
from ..errors import CaptureError, StateError
from .constraints.constraint_solver import Bounds, is_implied, normal_forms
from .constraints.copy_guards import copy_guards
from .constraints.guard_recorder import Guard, GuardLog, line_of_node
from .constraints.slice_guards import slice_guards
from .growing_states import UnknownStates
from .plan import CapturePlan
from .result import Capture

__all__ = ["capture_with_states"]

_HINT = "let the tensor keep its shape: write to a buffer of the largest size, and count its entries in another one"


def capture_with_states(
    run: Callable[[CapturePlan], tuple[Capture, CapturePlan]], plan: CapturePlan, model: torch.nn.Module
) -> tuple[Capture, CapturePlan]:
    """Capture a model until it computes with no value, or size, at the export of a tensor that it changes.

    Tensors that the captured program does not write keep their values, so that these may be known: no program that
    follows from them writes the tensors either.

    Args:
        run: Captures the model with a plan, and returns the plan of the last attempt.
        plan: The first plan.
        model: The model.

    Raises:
        StateError: If a buffer changes its shape, and the program is not valid for all of its shapes.
    """
    refusal: StateError | None = None
    while True:
        try:
            traced, last = run(plan)
        except CaptureError:
            if refusal is not None:
                raise refusal from None
            raise
        program, states = traced.exported_program, plan.states
        names = states.names | _written(program, model)
        axes = {name: found | states.axes.get(name, frozenset()) for name, found in _changed_axes(program)}
        axes = {**states.axes, **axes}
        is_computed = last.has_concrete_values or traced.assumptions
        if axes != states.axes or (names != states.names and is_computed):
            plan = replace(plan, states=replace(states, names=names, axes=axes))
            continue
        try:
            return _with_checked_sizes(traced, last.log, states), last
        except StateError as error:
            if states.branches_on_sizes:
                raise refusal or error from None
            refusal = error
        plan = replace(plan, states=UnknownStates(names, axes, branches_on_sizes=True))


def _written(program: ExportedProgram, model: torch.nn.Module) -> frozenset[str]:
    """FQNs of the tensors of a model that a program may write, and of those that share memory with them."""
    placeholders = written_placeholders(program.graph)
    if not placeholders:
        return frozenset()
    names = [str(one.target) for one in read_signature(program).inputs if one.name in placeholders and one.target]
    tensors = dict(_tensors_of(model, names))
    memory = {key for key in map(_memory, tensors.values()) if key}
    return frozenset(tensors) | {name for name, tensor in _weights(model).items() if _memory(tensor) in memory}


def _tensors_of(model: torch.nn.Module, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters, buffers and tensor attributes of a model with some FQNs."""
    for name in names:
        try:
            value = attrgetter(name)(model)
        except AttributeError:
            # A tensor that forward creates.
            continue
        if isinstance(value, torch.Tensor):
            yield name, value


def _weights(model: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    """The parameters and buffers by FQN, also the further names of one tensor."""
    return dict([*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)])


def _memory(tensor: torch.Tensor) -> int:
    """An id of the memory of a tensor; 0 for tensors without memory of their own, such as sparse ones."""
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else 0


def _resized(program: ExportedProgram) -> Iterator[tuple[str, torch.fx.Node, torch.fx.Node]]:
    """FQN and placeholder of the buffers that become tensors of another shape, and the nodes of these."""
    targets = {spec.arg.name: str(spec.target) for spec in program.graph_signature.input_specs if spec.target}
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.set_.source_Tensor):
        old, new = node.args
        if isinstance(old, torch.fx.Node) and old.name in targets:
            yield targets[old.name], old, new


def _changed_axes(program: ExportedProgram) -> Iterator[tuple[str, frozenset[int]]]:
    """FQN of the buffers that become tensors of another shape, and the axes of another size."""
    for name, old, new in _resized(program):
        pairs = zip(_sizes(old), _sizes(new), strict=False)
        if len(_sizes(old)) == len(_sizes(new)):
            yield name, frozenset(axis for axis, (before, after) in enumerate(pairs) if before != after)


def _sizes(node: torch.fx.Node) -> list[sympy.Expr]:
    return [
        size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size) for size in node.meta["val"].shape
    ]


def _with_checked_sizes(traced: Capture, log: GuardLog, states: UnknownStates) -> Capture:
    """Name the dims of the buffers that grow, and check that the program is valid for all of their sizes.

    Args:
        traced: The captured program.
        log: The guards of its capture.
        states: The buffers that grow.

    Raises:
        StateError: If a condition on such a size holds for the sizes at the export, and may not hold in another call.
    """
    if not states.axes:
        return traced
    program, after = traced.exported_program, dict[sympy.Symbol, sympy.Expr]()
    environment: Any = None
    names = dict(traced.dim_names)
    for name, old, new in _resized(program):
        for axis in sorted(states.axes[name]):
            size, following = _sizes(old)[axis], _sizes(new)[axis]
            if not size.is_Symbol or size in traced.dim_names or after.setdefault(size, following) != following:
                raise StateError(
                    f"forward changes the shape of {name!r}, and its size {size} of axis {axis} is not independent of "
                    f"other sizes\n  at: {line_of_node(new) or new.name}",
                    hint=_HINT,
                )
            names.setdefault(size, f"{name.replace('.', '_')}_{axis}")
            environment = old.meta["val"].shape[axis].node.shape_env
    if environment is None:
        return traced
    example = environment.backed_var_to_val
    bounds = {symbol: _bounds(symbol, after, int(example.get(symbol, 0))) for symbol in after}
    guards = [
        *log.guards,
        *copy_guards(program, example, log.layouts),
        *slice_guards(program, example),
        *(Guard(sympy.Ne(total, 0), line) for total, line in log.nonzero.items()),
    ]
    for guard in guards:
        expression = guard.expression.xreplace({one: environment.replace(one) for one in guard.expression.free_symbols})
        if not expression.free_symbols.isdisjoint(after) and not _holds_always(expression, after, bounds):
            raise StateError(
                f"forward changes the shape of the buffer {' and '.join(sorted(states.axes))}, and the program is valid "
                f"for {expression.xreplace({key: sympy.Symbol(name) for key, name in names.items()})} only"
                + (f"\n  at: {guard.line}" if guard.line is not None else ""),
                hint=_HINT,
            )
    return replace(traced, dim_names=names)


def _bounds(symbol: sympy.Symbol, after: Mapping[sympy.Symbol, sympy.Expr], size: int) -> Bounds:
    """The bounds of a size: one that never becomes smaller is at least that of the export."""
    growth = sympy.expand(after[symbol] - symbol)
    return Bounds(size if growth.is_nonnegative else 0)


def _holds_always(
    expression: sympy.Basic, after: Mapping[sympy.Symbol, sympy.Expr], bounds: Mapping[sympy.Symbol, Bounds]
) -> bool:
    """Whether a condition holds for all sizes, or is an equation that remains true from one call to the next."""
    if isinstance(expression, sympy.Eq):
        difference = expression.lhs - expression.rhs
        if sympy.expand(difference.xreplace(dict(after)) - difference) == 0:
            return True
    return all(is_implied(form, bounds) for form in normal_forms(expression))
