"""Assumptions of a capture about sizes: dropped where the program returns the results of the model without them.

torch assumes that a squeezed dim has not one element, and the capture that sizes are beside the edges of conditions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ..._capture import Capture
from ..._capture.constraints.constraint import Constraint, report_narrowed
from ..._capture.constraints.guard_recorder import line_of_node
from ..._capture.constraints.guard_sources import SQUEEZES, graphs_of
from ..._capture.rewriting import SIZE_BRANCH
from ..._capture.shapes.dim_names import dynamic_axes_of_results, keep_results, squeeze_results
from ..._capture.suspicions.departures import Departure, DepartureKind
from ..._cost import export_seconds, forward_seconds
from ..._prepare import unwrap_subclasses
from ...errors import CaptureError
from ..verification_inputs import auto_sizes, may_index_on_gpu, resize_inputs
from .coverage import CodePath
from .prove import Prover, obstacle
from .runs import Outcome
from .variations import Variation, with_other_values

__all__ = ["confirm_assumed_limits", "confirmed_limits", "fails_outside"]

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
            confirmed = _with_squeezed_results(candidate, model, prover, assumed, confirmed)
    remaining = [one for one in assumed if one not in confirmed]
    kept = tuple(one for one in limits.constraints if one not in confirmed)
    found = replace(capture, limits=replace(limits, constraints=kept, assumed=frozenset()))
    if remaining:
        found.limits.check_example(prover.example.inputs)
        report_narrowed(remaining, strict=strict)
    if confirmed:
        text = "squeeze of an axis that may have one element"
        lines = dict.fromkeys(str(line_of_node(one) or "") for one in squeezes)
        departures = (Departure(DepartureKind.INTROSPECTION, text, line) for line in lines)
        found = replace(found, departures=(*found.departures, *departures))
    return found


def _name_axes(program: ExportedProgram) -> list[Node]:
    """Make the axes that squeezes of dynamic axes remove explicit; return these squeezes."""
    found: list[Node] = []
    nodes = [node for graph in graphs_of(program) for node in graph.nodes if node.target in SQUEEZES]
    for node in nodes:
        value = node.args[0].meta.get("val")
        if not isinstance(value, torch.Tensor) or not value.dim():
            continue
        asked = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", range(value.dim()))
        axes = [axis % value.dim() for axis in (asked if isinstance(asked, Sequence) else [asked])]
        if all(isinstance(value.shape[axis], int) for axis in axes):
            continue
        removed = [axis for axis in axes if type(value.shape[axis]) is int and value.shape[axis] == 1]
        node.target, node.kwargs = torch.ops.aten.squeeze.dims, {}
        node.args = (node.args[0], removed)
        found.append(node)
    for part in program.graph_module.modules() if found else ():
        if isinstance(part, torch.fx.GraphModule):
            part.recompile()
    return found


def _with_squeezed_results(
    capture: Capture, model: Any, prover: Prover, assumed: Sequence[Constraint], confirmed: set[Constraint]
) -> set[Constraint]:
    """The confirmed limits with results of another rank at one element, if these are more than those before."""
    program = capture.exported_program
    axes: dict[int, set[int]] = defaultdict(set)
    for constraint in assumed:
        name = _dim_of(constraint)
        if name is not None and constraint not in confirmed:
            for number, missing in _missing_axes(capture, prover, name):
                axes[number].update(missing)
    added = squeeze_results(program, axes)
    found = _confirmed(capture, Prover(capture, model), assumed) if added else confirmed
    if len(found) > len(confirmed):
        return found
    keep_results(program, added)
    return confirmed


def _missing_axes(capture: Capture, prover: Prover, name: str) -> Iterator[tuple[int, list[int]]]:
    """The axes that results of the program have at one element of a dim, and those of the model do not."""
    names, given = capture.limits.shared_names, capture.limits.sizes(prover.example.inputs)
    if may_index_on_gpu(prover.example.inputs):
        return
    # Other dims have several elements, or their axes would be taken for those of this dim.
    ones = {each: names.get(each, each) == names.get(name, name) for each in given}
    sizes = {each: 1 if ones[each] else max(size, 2) for each, size in given.items()}
    model, program = prover.results(_resized(capture, prover, sizes))
    for number, dynamic in dynamic_axes_of_results(capture.exported_program).items():
        wanted, found = (results.get(f"output {number}") for results in (model, program))
        if isinstance(wanted, torch.Tensor) and isinstance(found, torch.Tensor) and found.dim() > wanted.dim():
            axes = [axis for axis in dynamic if found.shape[axis] == 1]
            yield number, axes[: found.dim() - wanted.dim()]


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
    ones = {name: limits.shared_names.get(name, name) in firsts for name in given}
    sizes = {name: 1 if ones[name] else size for name, size in given.items()}
    # One element of another dim may hide an axis too many.
    wide = {name: 1 if ones[name] else max(size, 2) for name, size in given.items()}
    example = Variation.of("example", call.args, call.kwargs, is_required=True)
    if sizes == wide == given:
        return _status_of_branches(capture, prover, example) == "equal"
    if may_index_on_gpu(call.inputs):
        return False
    path = CodePath()
    prover.has_path(example, path)
    others = [name for name, is_one in ones.items() if not is_one]
    first = [wide, sizes] if wide != sizes else [sizes]
    # No values of these sizes take the other branch of a condition on sizes: further sizes do.
    has_both = any(one.construct == SIZE_BRANCH for one in capture.rewrites)
    prover.coverage.begin()
    for count, each in enumerate([*first, *islice(_with_other_sizes(sizes, others), 1, None)], start=1):
        variation = _resized(capture, prover, each)
        _, outcome = prover.has_path(variation, path)
        if has_both:
            status = _status(prover, variation, outcome)
        else:
            status = _status_of_branches(capture, prover, variation, expected=outcome)
        if status == "different" or (status != "equal" and each == sizes):
            return False
        if path.is_decided and count >= len(first) and not (has_both and prover.coverage.has_untaken):
            return True
    return False


def _resized(capture: Capture, prover: Prover, sizes: Mapping[str, int]) -> Variation:
    """Inputs of other sizes."""
    args, kwargs = resize_inputs(capture.exported_program, capture.limits, prover.example, sizes)
    label = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    return Variation.of(label, args, kwargs, is_required=True)


def _status(prover: Prover, variation: Variation, expected: Outcome | BaseException | None = None) -> str:
    """The result of a comparison, with the outcome of the model if it has run."""
    try:
        done = prover.run(variation, expected)
    except CaptureError:
        return "different"
    return "not valid" if done is None else done.status


def confirmed_limits(capture: Capture, model: Any) -> frozenset[Constraint] | None:
    """The assumed relations of sizes without which a program returns the results of the model.

    The program is compared at the example, at sizes that satisfy them, at sizes that violate each of them, and at sizes
    that violate all. The model must run the same operators at all of these, except for those that only move values.

    Returns:
        The limits; None if the program is wrong at the example.
    """
    capture = replace(capture, exported_program=unwrap_subclasses(capture.exported_program))
    program = capture.exported_program
    assumed = [one for one in capture.limits.constraints if one in capture.limits.assumed]
    edges = [one for one in assumed if _dim_of(one) is None]
    plain = [one for one in assumed if _dim_of(one) is not None]
    if obstacle(capture, model) or forward_seconds(program) > export_seconds(program):
        return frozenset()
    if plain:
        _name_axes(program)
    candidate = _without(capture, edges)
    prover = Prover(candidate, model)
    call = prover.example
    is_assumed = capture.limits.violated(capture.limits.sizes(call.inputs)) is None
    if is_assumed and _status(prover, Variation.of("example", call.args, call.kwargs, is_required=True)) == "different":
        return None
    if not capture.limits.assumed:
        return frozenset()

    # A program with both branches runs other operators at other sizes.
    has_both = any(one.construct == SIZE_BRANCH for one in capture.rewrites)
    paths: defaultdict[str, CodePath] | None = None if has_both else defaultdict(partial(CodePath, at_edges=False))

    def is_right(violated: Collection[Constraint], **further: bool) -> bool:
        relations = [sympy.Not(one.expression) if one in violated else one.expression for one in edges]
        found = _is_right_at(candidate, prover, relations, paths=paths, **further)
        if found is None and len(violated) == 1:
            # Not without violating others.
            only = [sympy.Not(one.expression) for one in violated]
            found = _is_right_at(candidate, prover, only, paths=paths, **further)
        return len(violated) != 1 if found is None else found

    if not is_right(()):
        return frozenset()
    _set_at_edges(paths)
    confirmed: set[Constraint] = set()
    for one in edges:
        if is_right((one,)):
            confirmed.add(one)
        elif has_both:
            return frozenset()
    if len(confirmed) > 1 and not is_right(confirmed):
        confirmed = set()
    if paths is not None and not _is_decided(paths):
        # A cache of a library may have left out code at the sizes before.
        _set_at_edges(paths, at_edges=False)
        if not is_right((), has_other_sizes=True):
            return frozenset()
        _set_at_edges(paths)
    if paths is not None and not _is_decided(paths):
        confirmed = {one for one in confirmed if is_right((one,), has_other_sizes=True)}
        confirmed = confirmed if _is_decided(paths) else set()
    if paths is not None:
        confirmed = _right_at_many(candidate, prover, edges, confirmed, paths)
    if has_both and prover.coverage.missing():
        # Branches on values are left, which other values take.
        confirmed = {one for one in confirmed if is_right((one,), has_values=True)}
    if has_both and prover.coverage.missing():
        return frozenset()
    certain = _without(capture, [*edges, *plain])
    return frozenset(confirmed | _confirmed(certain, Prover(certain, model), plain))


def _set_at_edges(paths: Mapping[str, CodePath] | None, *, at_edges: bool = True) -> None:
    for path in () if paths is None else paths.values():
        path.at_edges = at_edges


def _without(capture: Capture, constraints: Iterable[Constraint]) -> Capture:
    """A capture without some constraints, and without assumed ones."""
    limits, dropped = capture.limits, set(constraints)
    kept = tuple(one for one in limits.constraints if one not in dropped)
    return replace(capture, limits=replace(limits, constraints=kept, assumed=frozenset()))


def _is_right_at(
    capture: Capture,
    prover: Prover,
    relations: Sequence[sympy.Basic],
    *,
    paths: Mapping[str, CodePath] | None,
    has_values: bool = False,
    has_other_sizes: bool = False,
) -> bool | None:
    """Whether program and model return the same at sizes that satisfy relations; None if no such sizes are found.

    Args:
        capture: The program.
        prover: Compares it with the model.
        relations: The relations.
        paths: The operators of the model by the values of the inputs; None if they depend on sizes.
        has_values: Whether inputs have other values as well.
        has_other_sizes: Whether the sizes that no relation has are changed.
    """
    limits, call = capture.limits, prover.example
    added = [Constraint("", one, tuple(sorted(symbol.name for symbol in one.free_symbols))) for one in relations]
    found = auto_sizes(replace(limits, constraints=(*limits.constraints, *added)), call.inputs)
    if may_index_on_gpu(call.inputs):
        found = [sizes for sizes in found if sizes == limits.sizes(call.inputs)]
    found = found[:_MOST_SIZES]
    if has_other_sizes:
        related = {name for one in added for name in one.dims}
        found = [each for sizes in found[:1] for each in _with_other_sizes(sizes, sizes.keys() - related)]
    program = capture.exported_program
    given = limits.sizes(call.inputs)
    longest = export_seconds(program) / max(forward_seconds(program), 1e-9)
    statuses = []
    for sizes in found:
        if max(size / max(given.get(name, size), 1) for name, size in sizes.items()) > longest:
            continue
        variation = _resized(capture, prover, sizes)
        if paths is not None:
            statuses.append(_status_of_branches(capture, prover, variation, paths))
            continue
        for one in with_other_values(capture, variation) if has_values else (variation,):
            statuses.append(_status(prover, one))
            if not prover.coverage.missing():
                break
    return "different" not in statuses and "equal" in statuses if statuses else None


_RANGE = 41
_MOST_FURTHER_SIZES = 24
_SHARE_OF_EXPORT = 0.3
_SECONDS_PER_NODE = 2e-4
"""Of a run of program and model with records of its calls."""


def _right_at_many(
    capture: Capture,
    prover: Prover,
    edges: Sequence[Constraint],
    confirmed: set[Constraint],
    paths: Mapping[str, CodePath],
) -> set[Constraint]:
    """The confirmed edges that are right at many sizes as well, as far as these take a small part of the export.

    Numbers that are other ones at the edge may decide later conditions, for which few sizes give another answer.
    """
    program, limits, right = capture.exported_program, capture.limits, set(confirmed)
    seconds = forward_seconds(program) + _SECONDS_PER_NODE * len(program.graph.nodes)
    budget = _SHARE_OF_EXPORT * export_seconds(program) / max(seconds * len(confirmed), 1e-9)
    given = limits.sizes(prover.example.inputs)
    if may_index_on_gpu(prover.example.inputs):
        return confirmed
    for edge in confirmed:
        kept = [one for one in edges if one not in confirmed]
        violated = Constraint("", sympy.Not(edge.expression), edge.dims)
        valid = replace(limits, constraints=(*limits.constraints, *kept, violated))
        found = (sizes for sizes in _many_sizes(given, edge.dims) if valid.violated(sizes) is None)
        for sizes in islice(found, min(_MOST_FURTHER_SIZES, int(budget))):
            if _status_of_branches(capture, prover, _resized(capture, prover, sizes), paths) == "different":
                right.discard(edge)
                break
    return right


def _many_sizes(given: Mapping[str, int], names: Collection[str]) -> Iterator[dict[str, int]]:
    """Sizes around those of the example, of some dims and of all, with all remainders of small numbers."""
    for number in range(1, _RANGE):
        for changed in (names, given) if len(given) > len(names) else (names,):
            # The range is a prime number: each dim has each size once, in another order.
            yield {**given} | {
                name: max(0, given[name] - _RANGE // 2) + (7 + 5 * at) * number % _RANGE
                for at, name in enumerate(given)
                if name in changed
            }


_LEAST_FAILURES = 8


def fails_outside(capture: Capture, model: Any, excluded: Iterable[Constraint]) -> bool:
    """Whether the model fails at many sizes that limits exclude, and at none of them returns a result.

    No program for these sizes could be compared with it. Without runs, the answer is no.
    """
    capture = replace(capture, exported_program=unwrap_subclasses(capture.exported_program))
    program, limits = capture.exported_program, capture.limits
    runs = min(
        _MOST_FURTHER_SIZES, int(_SHARE_OF_EXPORT * export_seconds(program) / max(forward_seconds(program), 1e-9))
    )
    if obstacle(capture, model) or runs < _LEAST_FAILURES:
        return False
    prover = Prover(capture, model)
    if may_index_on_gpu(prover.example.inputs):
        return False
    for one in excluded:
        outside = Constraint("", sympy.Not(one.expression), one.dims)
        others = tuple(other for other in limits.constraints if other is not one)
        found = [*_sizes_within(capture, prover, (*others, outside)), *_sizes_within(capture, prover, (outside,))]
        if len(found) < _LEAST_FAILURES:
            return False
        if not all(prover.fails(_resized(capture, prover, sizes)) for sizes in found[:runs]):
            return False
    return True


def _sizes_within(capture: Capture, prover: Prover, constraints: tuple[Constraint, ...]) -> Iterator[dict[str, int]]:
    """The sizes near the example that constraints allow: those of a verification first."""
    limits, inputs = replace(capture.limits, constraints=constraints), prover.example.inputs
    given = limits.sizes(inputs)
    yield from auto_sizes(limits, inputs)
    names = {name for one in constraints[-1:] for name in one.dims}
    yield from (sizes for sizes in _many_sizes(given, names) if limits.violated(sizes) is None)


_LARGEST_GROWTH = 16


def _with_other_sizes(sizes: Mapping[str, int], names: Collection[str]) -> Iterator[dict[str, int]]:
    """Sizes, then those with one small or divisible by many numbers, for which conditions have other answers.

    Caches of libraries are unlikely to have an entry for a larger prime number.
    """
    yield dict(sizes)
    for name in sorted(names):
        for size in (2, 11, *(-(-sizes[name] // divisor) * divisor for divisor in (64, 84))):
            if size <= sizes[name] * _LARGEST_GROWTH:
                yield {**sizes, name: size}


def _is_decided(paths: Mapping[str, CodePath]) -> bool:
    return all(path.is_decided for path in paths.values())


def _status_of_branches(
    capture: Capture,
    prover: Prover,
    variation: Variation,
    paths: Mapping[str, CodePath] | None = None,
    expected: Outcome | BaseException | None = None,
) -> str:
    """The result of comparisons at sizes, with values for which each branch of the program runs.

    What a branch asks about sizes is not seen at values that take the other one. ``expected`` is the outcome of the
    model at the first values, if it has run.
    """
    prover.coverage.begin()
    statuses = []
    for one in with_other_values(capture, variation):
        is_same, outcome = True, expected if one is variation else None
        if paths is not None:
            is_same, outcome = prover.has_path(one, paths[one.label.removeprefix(variation.label)])
        statuses.append(_status(prover, one, outcome) if is_same else "different")
        if statuses[-1] == "different" or not prover.coverage.has_untaken:
            break
    else:
        return "different" if "equal" in statuses else "not valid"
    return statuses[-1]
