"""Limits that a capture assumes: dropped where the program computes what the model computes without them.

torch assumes that a squeezed dim has not one element, and the capture that sizes are beside the edges of conditions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from ..._capture import Capture
from ..._capture.constraints.constraint import Constraint, report_narrowed
from ..._capture.constraints.guard_recorder import line_of_node
from ..._capture.constraints.guard_sources import SQUEEZES
from ..._capture.departures import Departure, DepartureKind
from ..._capture.shapes.squeezed_results import DynamicSqueeze, keep_results, squeeze_results
from ..._cost import export_seconds, forward_seconds
from ..._prepare import unwrap_subclasses
from ...errors import CaptureError
from ..verification_inputs import auto_sizes, may_index_on_gpu, resize_inputs
from .code_paths import CodePath
from .prove import Prover, obstacle
from .variations import Variation

__all__ = ["confirm_assumed_limits", "confirmed_limits"]

_MOST_SIZES = 3


def confirm_assumed_limits(capture: Capture, model: Any, *, strict: bool) -> Capture:
    """Drop the assumed limits that the program does not need: at one element, it returns the results of the model.

    ``squeeze`` removes axes of one element only, so that Python sees another rank there; the captured program keeps a
    dynamic axis. ``if x.squeeze().dim() == 1: x = x.squeeze(1)`` returns the same in both ways. Results that keep such
    an axis lose it at the end of the program.

    Args:
        capture: The captured program; its squeezes get the numbers of the axes that they remove.
        model: The user's model.
        strict: Whether a remaining limit of the requested sizes is an error.

    Raises:
        CaptureError: If the example violates a remaining limit.
    """
    limits = capture.limits
    if not limits.assumed:
        return capture
    squeezes = _name_axes(capture.exported_program)
    assumed = [one for one in limits.constraints if one in limits.assumed]
    candidate = _without(capture, assumed)
    prover = Prover(candidate, model)
    confirmed = set()
    if not obstacle(capture, model):
        confirmed = _confirmed(candidate, prover, assumed)
        if len(confirmed) < len(assumed):
            confirmed = _with_squeezed_results(candidate, model, squeezes, assumed, confirmed)
    remaining = [one for one in assumed if one not in confirmed]
    kept = tuple(one for one in limits.constraints if one not in confirmed)
    found = replace(capture, limits=replace(limits, constraints=kept, assumed=frozenset()))
    if remaining:
        found.limits.check_example(prover.example.inputs)
        report_narrowed(remaining, strict=strict)
    if confirmed:
        text = "squeeze of an axis that may have one element"
        lines = dict.fromkeys(str(line_of_node(one.node) or "") for one in squeezes)
        departures = (Departure(DepartureKind.INTROSPECTION, text, line) for line in lines)
        found = replace(found, departures=(*found.departures, *departures))
    return found


def _name_axes(program: ExportedProgram) -> list[DynamicSqueeze]:
    """Make the axes that squeezes of dynamic axes remove explicit; return these squeezes."""
    found: list[DynamicSqueeze] = []
    for node in program.graph.nodes:
        value = node.args[0].meta.get("val") if node.target in SQUEEZES else None
        if not isinstance(value, torch.Tensor) or not value.dim():
            continue
        asked = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", range(value.dim()))
        axes = [axis % value.dim() for axis in (asked if isinstance(asked, Sequence) else [asked])]
        dynamic = [axis for axis in axes if not isinstance(value.shape[axis], int)]
        if not dynamic:
            continue
        removed = [axis for axis in axes if type(value.shape[axis]) is int and value.shape[axis] == 1]
        node.target, node.kwargs = torch.ops.aten.squeeze.dims, {}
        node.args = (node.args[0], removed)
        kept = frozenset(axis - sum(other < axis for other in removed) for axis in dynamic)
        found.append(DynamicSqueeze(node, kept))
    program.graph_module.recompile()
    return found


def _with_squeezed_results(
    capture: Capture,
    model: Any,
    squeezes: Iterable[DynamicSqueeze],
    assumed: Sequence[Constraint],
    confirmed: set[Constraint],
) -> set[Constraint]:
    """The confirmed limits with results of another rank at one element, if these are more than those before."""
    program = capture.exported_program
    added = squeeze_results(program, squeezes)
    found = _confirmed(capture, Prover(capture, model), assumed) if added else confirmed
    if len(found) > len(confirmed):
        return found
    keep_results(program, added)
    return confirmed


def _confirmed(capture: Capture, prover: Prover, assumed: Iterable[Constraint]) -> set[Constraint]:
    """The limits without which the program returns the results of the model, at one element of their dims."""
    confirmed: dict[str, Constraint] = {}
    for constraint in assumed:
        name = _dim_of(constraint)
        if name is None or not _is_right(capture, prover, [name]):
            continue
        if not confirmed or _is_right(capture, prover, [*confirmed, name]):
            confirmed[name] = constraint
    return set(confirmed.values())


def _dim_of(constraint: Constraint) -> str | None:
    """The name of a dim that must not be 1; None for other constraints."""
    relation = constraint.expression
    is_plain = isinstance(relation, sympy.Ne) and relation.rhs == 1 and relation.lhs.is_Symbol
    return constraint.dims[0] if is_plain else None


def _is_right(capture: Capture, prover: Prover, names: Sequence[str]) -> bool:
    """Whether program and model return the same at one element of some dims, the others as in the example."""
    limits, call = capture.limits, prover.example
    given = limits.sizes(call.inputs)
    firsts = {limits.shared_names.get(name, name) for name in names}
    sizes = {name: 1 if limits.shared_names.get(name, name) in firsts else size for name, size in given.items()}
    args, kwargs, label = call.args, call.kwargs, "example"
    if sizes != given:
        if may_index_on_gpu(call.inputs):
            return False
        args, kwargs = resize_inputs(capture.exported_program, limits, call, sizes)
        label = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    return _status(prover, Variation.of(label, args, kwargs, is_required=True)) == "equal"


def _status(prover: Prover, variation: Variation) -> str:
    """The result of a comparison."""
    try:
        done = prover.run(variation)
    except CaptureError:
        return "different"
    return "not valid" if done is None else done.status


def confirmed_limits(capture: Capture, model: Any) -> frozenset[Constraint] | None:
    """The assumed relations of sizes without which a program returns the results of the model.

    The program is compared at the example, at sizes that satisfy them, at sizes that violate each of them, and at sizes
    that violate all. The model must run the same operators at all of these, except for those that only move values.

    Args:
        capture: The captured program.
        model: The user's model.

    Returns:
        The limits; None if the program is wrong at the example.
    """
    capture = replace(capture, exported_program=unwrap_subclasses(capture.exported_program))
    program = capture.exported_program
    edges = [one for one in capture.limits.assumed if _dim_of(one) is None]
    plain = [one for one in capture.limits.assumed if _dim_of(one) is not None]
    if obstacle(capture, model) or forward_seconds(program) > export_seconds(program):
        return frozenset()
    candidate = _without(capture, edges)
    prover = Prover(candidate, model)
    call = prover.example
    is_assumed = capture.limits.violated(capture.limits.sizes(call.inputs)) is None
    if is_assumed and _status(prover, Variation.of("example", call.args, call.kwargs, is_required=True)) == "different":
        return None
    if not capture.limits.assumed:
        return frozenset()

    path = CodePath()

    def is_right(violated: Collection[Constraint]) -> bool:
        relations = [sympy.Not(one.expression) if one in violated else one.expression for one in edges]
        found = _is_right_at(candidate, prover, relations, path)
        if found is None and len(violated) == 1:
            # Not without violating others.
            found = _is_right_at(candidate, prover, [sympy.Not(one.expression) for one in violated], path)
        return len(violated) != 1 if found is None else found

    if not is_right(()):
        return frozenset()
    confirmed = {one for one in edges if is_right((one,))}
    if len(confirmed) > 1 and not is_right(confirmed):
        confirmed = set()
    certain = _without(capture, [*edges, *plain])
    return frozenset(confirmed | _confirmed(certain, Prover(certain, model), plain))


def _without(capture: Capture, constraints: Iterable[Constraint]) -> Capture:
    """A capture without some constraints, and without assumed ones."""
    limits, dropped = capture.limits, set(constraints)
    kept = tuple(one for one in limits.constraints if one not in dropped)
    return replace(capture, limits=replace(limits, constraints=kept, assumed=frozenset()))


def _is_right_at(capture: Capture, prover: Prover, relations: Sequence[sympy.Basic], path: CodePath) -> bool | None:
    """Whether program and model return the same at sizes that satisfy relations; None if no such sizes are found.

    Args:
        capture: The captured program.
        prover: Compares both.
        relations: The relations.
        path: The operators that the model runs.
    """
    limits, call = capture.limits, prover.example
    added = [Constraint("", one, tuple(sorted(symbol.name for symbol in one.free_symbols))) for one in relations]
    found = auto_sizes(replace(limits, constraints=(*limits.constraints, *added)), call.inputs)
    if may_index_on_gpu(call.inputs):
        found = [sizes for sizes in found if sizes == limits.sizes(call.inputs)]
    statuses = []
    for sizes in found[:_MOST_SIZES]:
        args, kwargs = resize_inputs(capture.exported_program, limits, call, sizes)
        label = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        variation = Variation.of(label, args, kwargs, is_required=True)
        statuses.append(_status(prover, variation) if prover.has_path(variation, path) else "different")
    return "different" not in statuses and "equal" in statuses if statuses else None
