"""The loop of a capture: attempts with plans, which the strategies change after each outcome until none applies.

A capture for fewer sizes than requested is made again with other answers, if the model shows that they are right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import sympy

from ..errors import CaptureError
from .constraints.constraint import Constraint, share_excluded
from .constraints.guard_recorder import Guard
from .constraints.specialized_dims import SpecializedDimsError, without_specialized
from .data_dependence.checks import is_data_dependent, may_be_data_dependent, unresolved_error
from .edges import edge_places
from .evaluating_code import Asking
from .function_transforms import RetryTransforms
from .patches.size_numbers import converting_files
from .plan import Capture, CapturePlan, Failure, LoopRewriting
from .rewriting import Rewriting, branches_at, functions_at, is_refusal
from .shapes.dynamic_shapes import root_name
from .suspicions.departures import Departure, DepartureKind, refused
from .torch_export import is_limit, refined_dims

__all__ = ["STRATEGIES", "Confirm", "Strategy", "capture_with_strategies"]

Confirm: TypeAlias = Callable[[Capture, CapturePlan], frozenset[Constraint] | None]
"""Runs the model, and returns the assumed limits that a capture does not need; None if it is wrong at the example."""

Outcome: TypeAlias = Capture | Failure
Fails: TypeAlias = Callable[[Capture, CapturePlan, Sequence[Constraint]], bool]
"""Whether the model itself fails at the sizes that some limits of a capture exclude."""

_MOST_ATTEMPTS = 3
_LEAST_SHARE = 1 / 1024
"""Of a constraint that excludes larger sizes only."""


def _may_be_limited_at(places: Collection[str], capture: Outcome, plan: CapturePlan) -> bool:
    """Whether a model was captured for fewer sizes than requested, perhaps because of the conditions at some places."""
    if isinstance(capture, Failure):
        # All dims may be specialized by what an attribute keeps of a call at the sizes of the example.
        return bool(places) and isinstance(capture.error, SpecializedDimsError)
    limits = [one for one in capture.limits.constraints if one.narrows]
    if plan.specialized or any(one.line is None for one in limits):
        return bool(places)
    # A line without source has no text after its place.
    return any(f"{place}:" in f"{one.line}:" for one in limits for place in places)


@dataclass
class _Seen:
    """The conditions and guards on sizes of a series of attempts.

    Attributes:
        asked: The conditions of the model.
        guards: All guards.
    """

    asked: dict[sympy.Basic, Asking] = field(default_factory=dict)
    guards: set[Guard] = field(default_factory=set)

    def guards_at(self, places: Collection[str]) -> frozenset[Guard]:
        """The guards at lines (``file.py:12``): an attempt that has all of them again has no fewer limits."""
        return frozenset(one for one in self.guards if f"{one.line}".partition(" in ")[0] in places)


Attempted: TypeAlias = tuple[Outcome, CapturePlan, _Seen]


def _with_fewer_limits(
    found: Outcome,
    last: CapturePlan,
    asked: _Seen,
    first: CapturePlan,
    attempts: Callable[..., Attempted],
    confirm: Confirm,
) -> Attempted:
    """Capture a model again with the answers beside the edges of its conditions, for a capture with fewer limits."""
    limiting = _limiting_lines(found, last) if isinstance(found, Capture) else ()
    places = {line.partition(" in ")[0] for line in (*edge_places(asked.asked), *limiting)}
    kept: frozenset[str] = frozenset()
    for _ in range(_MOST_ATTEMPTS):
        answered = first.with_answers(last, edges=kept, keeps_signs=isinstance(found, Capture))
        capture, plan, seen = attempts(
            replace(answered, known=asked.guards_at(places)), keeps_rare_edges=not last.resolves_guards
        )
        edges, rare = plan.log.edges, _rare_edges(plan)
        if isinstance(capture, Failure) and rare:
            kept |= rare
            continue
        if isinstance(capture, Failure):
            break
        if not edges or (isinstance(found, Capture) and _count(capture, plan) >= _count(found, last)):
            break
        confirmed = confirm(capture, plan)
        if confirmed is None:
            break
        lines = {str(line) for line in edges.values()}
        wrong = {str(one.line) for one in capture.limits.assumed - confirmed} & lines
        if not wrong:
            return _without(capture, confirmed, sorted(lines)), plan, seen
        if wrong == lines and rare in (set(), wrong):
            break
        kept |= rare if wrong == lines else wrong
    return found, last, asked


def _with_both_branches(
    found: Capture,
    last: CapturePlan,
    asked: _Seen,
    attempts: Callable[[Rewriting, frozenset[Guard]], Attempted],
    confirm: Confirm,
) -> tuple[Capture, CapturePlan]:
    """Capture a model again with both branches of the conditions on sizes that limit it."""
    best, plan, capture = (found, last), last, found
    rewriting = Rewriting(CaptureError(_LIMITS))
    for _ in range(_MOST_ATTEMPTS):
        functions, places = branches_at(_limiting_lines(capture, plan, is_near=True))
        if not functions or places <= rewriting.sizes:
            break
        try:
            rewriting = rewriting.with_sizes(functions, places)
        except CaptureError:
            # Functions without the source code that runs keep their limits.
            break
        outcome, plan, _seen = attempts(rewriting, asked.guards_at(places) if capture is found else frozenset())
        if isinstance(outcome, Failure):
            break
        confirmed = confirm(outcome, plan) if plan.log.edges else frozenset()
        if confirmed is None:
            break
        capture = _without(outcome, confirmed, ())
        if not capture.limits.assumed and _costs(capture, plan) < _costs(*best):
            best = capture, plan
    return best


def _limiting_lines(capture: Capture, plan: CapturePlan, *, is_near: bool = False) -> list[str]:
    """The lines at which a capture is limited, or those without limits that exclude only large sizes."""
    limits = (item for item in _restricting(capture) if not (is_near and _is_far(item)))
    return _lines_of(limits) + [str(line) for dim in plan.specialized for line in dim.lines]


_FAR = 64


def _is_far(limit: Constraint) -> bool:
    """Whether a limit excludes only large sizes, as those of another memory layout or type of index do.

    Both branches would take several captures and runs at these sizes.
    """
    return len(limit.dims) == 1 and all(limit.holds({limit.dims[0]: size}) for size in range(1, _FAR))


def _count(capture: Capture, plan: CapturePlan) -> float:
    """The number of specialized dims and the share of sizes that is excluded by more than an assumption."""
    limits = capture.limits
    return len(plan.specialized) + _excluded_share(one for one in limits.constraints if one not in limits.assumed)


def _costs(capture: Capture, plan: CapturePlan) -> tuple[float, float]:
    """The count, then the share of sizes that the limits exclude: ``m != n or n > 3`` is less than ``m != n``."""
    return _count(capture, plan), _excluded_shares(capture)[1]


def _excluded_share(constraints: Iterable[Constraint]) -> float:
    """The sum of the shares of sizes that constraints exclude of the requested ones; 1 for those of several dims."""
    return sum((1 if len(one.dims) > 1 else share_excluded(one)) + _LEAST_SHARE for one in constraints if one.narrows)


_MOST_RARE = 0.25


def _is_rare(relation: sympy.Basic) -> bool:
    """Whether few sizes have the answer beside an edge, as for ``max(0, 5 - n) > 0``."""
    return share_excluded(Constraint("", relation, tuple(map(str, relation.free_symbols)))) > 1 - _MOST_RARE


def _without(capture: Capture, confirmed: frozenset[Constraint], lines: Iterable[str]) -> Capture:
    """A capture without the limits that it does not need."""
    limits = capture.limits
    kept = tuple(one for one in limits.constraints if one not in confirmed)
    departures = (Departure(DepartureKind.INTROSPECTION, "a branch for single sizes", line) for line in lines)
    return replace(
        capture,
        limits=replace(limits, constraints=kept, assumed=limits.assumed - confirmed),
        departures=(*capture.departures, *departures),
    )


_LIMITS = "a loop or a branch limits the inputs of the model"

Decision: TypeAlias = CapturePlan | Capture | Failure


@dataclass(frozen=True)
class Strategy:
    """A change of the plan after an attempt that failed, or that is valid for fewer inputs than requested.

    Attributes:
        name: The change, as in the report.
        applies_to: Whether the strategy decides about an outcome.
        next_plan: The next plan, or the outcome to report.
    """

    name: str
    applies_to: Callable[[Any, CapturePlan], bool]
    next_plan: Callable[[Any, CapturePlan], Decision]


def capture_with_strategies(
    attempt: Callable[[CapturePlan], Outcome],
    plan: CapturePlan,
    own_error: Callable[[CaptureError], CaptureError | None],
    confirm: Confirm,
    fails: Fails,
) -> tuple[Capture, CapturePlan]:
    """Capture a model: one attempt after the other, until no strategy has a plan for the next one.

    Then plain torch.export is tried, whose program is exported only if the proof confirms it.

    Args:
        attempt: Captures the model with a plan.
        plan: The first plan.
        own_error: The error of the model itself, if that is the cause of the error of an attempt.
        confirm: Returns the assumed limits that a capture does not need.
        fails: Whether the model itself fails at the sizes that limits exclude.

    Returns:
        The captured model, and the plan of the last attempt.

    Raises:
        CaptureError: If no attempt captures the model.
    """
    attempts = partial(_attempts, attempt)
    outcome, last, seen = attempts(plan)
    if _may_be_limited_at(edge_places(seen.asked), outcome, last):
        outcome, last, seen = _with_fewer_limits(outcome, last, seen, plan, attempts, confirm)
    if isinstance(outcome, Failure):
        return _plain_capture(attempt, plan, outcome.error, own_error)
    near = [item for item in _restricting(outcome) if not _is_far(item) and branches_at(_lines_of([item]))[0]]
    if near and not last.specialized and fails(outcome, last, near):
        # Limits are dropped where program and model return the same.
        return outcome, last

    def with_sizes(sizes: Rewriting, known: frozenset[Guard]) -> Attempted:
        return attempts(replace(plan.with_answers(last, sizes=sizes), known=known))

    return _with_both_branches(outcome, last, seen, with_sizes, confirm)


def _rare_edges(plan: CapturePlan) -> set[str]:
    """The lines with an answer of few sizes, which the next attempt may answer for the example."""
    return {str(line) for relation, line in plan.log.edges.items() if _is_rare(relation)} - (plan.edges or frozenset())


def _attempts(
    attempt: Callable[[CapturePlan], Outcome], plan: CapturePlan, *, keeps_rare_edges: bool = False
) -> Attempted:
    """Make attempts until no strategy has a plan for the next one; with the conditions on sizes that they ask.

    With ``keeps_rare_edges``, they end where answers of few sizes have led to conditions on data, which no attempt
    before has met.
    """
    seen = _Seen()
    while True:
        decision: Decision = attempt(plan)
        seen.asked |= plan.log.asked
        seen.guards |= {*plan.log.guards}
        if isinstance(decision, Failure):
            is_led_to_data = keeps_rare_edges and _is_at_guard(decision, plan) and bool(_rare_edges(plan))
            if decision.has_no_fewer_limits or is_led_to_data:
                return decision, plan, seen
        if isinstance(decision, Failure) and decision.has_long_loop:
            plan = replace(plan, has_long_loop=True)
        if plan.log.has_data_edges:
            plan = replace(plan, has_data_edges=True)
        for strategy in reversed(STRATEGIES):
            if strategy.applies_to(decision, plan):
                decision = strategy.next_plan(decision, plan)
            if isinstance(decision, CapturePlan):
                plan = replace(decision, change=decision.change or strategy.name)
                break
        if not isinstance(decision, CapturePlan):
            return decision, plan, seen


def _plain_capture(
    attempt: Callable[[CapturePlan], Outcome],
    first: CapturePlan,
    error: CaptureError,
    own_error: Callable[[CaptureError], CaptureError | None],
) -> tuple[Capture, CapturePlan]:
    """Capture a model as torch.export does by itself, which may succeed where a strategy refuses or fails.

    Raises:
        CaptureError: The error of the model itself, or ``error`` if torch.export fails as well.
    """
    own = own_error(error)
    if own is not None:
        raise own
    if is_refusal(error):
        # The proof may not have a run that tells.
        raise error
    for strict in (False, True):
        change = "plain torch.export, strict mode" if strict else "plain torch.export"
        plan = first.changed(change, strict=strict, plain=True)
        outcome = attempt(plan)
        if isinstance(outcome, Capture):
            return replace(outcome, departures=refused(outcome.departures, error)), plan
    raise error


def _reported(first: CaptureError, last: CaptureError) -> CaptureError:
    """The failure to report, of the one before any function was rewritten and the last one.

    It is a refused construct, specialized dims if they are new or fewer, or else the first failure.
    """
    if isinstance(last, SpecializedDimsError):
        if not isinstance(first, SpecializedDimsError) or len(last.specialized) < len(first.specialized):
            return last
        return SpecializedDimsError(first.specialized, last.refusal)
    if is_refusal(last):
        return SpecializedDimsError(first.specialized, last) if isinstance(first, SpecializedDimsError) else last
    return first


def _is_specialized(outcome: Outcome, plan: CapturePlan) -> bool:
    return isinstance(outcome, Failure) and isinstance(outcome.error, SpecializedDimsError)


def _static_dims(failure: Failure, plan: CapturePlan) -> Decision:
    error = failure.error
    if not isinstance(error, SpecializedDimsError):
        return failure
    try:
        shapes, specialized = without_specialized(
            plan.shapes, plan.specialized, error, strict=plan.request.strict_shapes
        )
    except SpecializedDimsError as last:
        return Failure(last)
    change = "static dims: " + ", ".join(dim.label for dim in specialized)
    return plan.changed(change, shapes=shapes, specialized=specialized)


def _has_met_long_loop(outcome: Outcome, plan: CapturePlan) -> bool:
    return isinstance(outcome, Failure) and plan.has_long_loop and not plan.unrolls_long_loops


def _unrolled(failure: Failure, plan: CapturePlan) -> Decision:
    return plan.changed(unrolls_long_loops=True)


def _may_have_loop(outcome: Outcome, plan: CapturePlan) -> bool:
    return isinstance(outcome, Capture) or _is_specialized(outcome, plan) or plan.loops is not None


def _rewritten_loops(outcome: Outcome, plan: CapturePlan) -> Decision:
    """Rewrite the loops that specialize dims, or that limit sizes."""
    loops = plan.loops
    if isinstance(outcome, Capture):
        return _limited_sizes(outcome, plan) if loops is None else _after_loops(loops, outcome, plan)
    loops = loops or LoopRewriting(outcome, Rewriting(outcome.error))
    return _loop_plan(loops, partial(loops.rewriting.after, outcome.error), plan)


def _limited_sizes(captured: Capture, plan: CapturePlan) -> Decision:
    """The plan with those loops rewritten that limit sizes; the capture itself without any."""
    functions = functions_at(() if captured.rewrites else _restricting_lines(captured))
    loops = LoopRewriting(captured, Rewriting(CaptureError(_LIMITS)))
    return _loop_plan(loops, partial(loops.rewriting.with_functions, functions), plan) if functions else captured


def _loop_plan(loops: LoopRewriting, step: Callable[[], tuple[Rewriting, str]], plan: CapturePlan) -> Decision:
    try:
        rewriting, change = step()
    except CaptureError as error:
        return _after_loops(loops, Failure(error), plan)
    return plan.changed(change, loops=replace(loops, rewriting=rewriting))


def _after_loops(loops: LoopRewriting, last: Outcome, plan: CapturePlan) -> Decision:
    """Keep a capture with rewritten loops only if it is valid for more inputs than the one before."""
    before = loops.before
    if isinstance(before, Failure):
        return last if isinstance(last, Capture) else Failure(_reported(before.error, last.error))
    excluded = _excluded_share(last.limits.constraints) if isinstance(last, Capture) else None
    return before if excluded is None or excluded >= _excluded_share(_restricting(before)) else last


def _restricting(captured: Capture) -> list[Constraint]:
    """The limits by which a capture is valid for fewer sizes than requested, and which have lines of the model."""
    return [item for item in captured.limits.constraints if item.narrows and item.line is not None]


def _excluded_shares(captured: Capture) -> tuple[float, float]:
    """The share of sizes that its limits exclude, then that of those of several dims, such as ``h*w == 108``."""
    limits = _restricting(captured)
    return _excluded_share(limits), sum(map(share_excluded, limits))


def _restricting_lines(captured: Capture) -> list[str]:
    return _lines_of(_restricting(captured))


def _lines_of(limits: Iterable[Constraint]) -> list[str]:
    return [line for item in limits for line in str(item.line).split("; ")]


def _specialized_count(failure: Failure) -> float:
    error = failure.error
    if not isinstance(error, SpecializedDimsError):
        return math.inf
    # A name at several axes is one dim.
    names = {dim.spec if isinstance(dim.spec, str) else root_name(dim.spec) or dim.label for dim in error.specialized}
    return len(names)


def _symbolic_integers(outcome: Outcome, plan: CapturePlan) -> Decision:
    """Keep sizes symbolic in further files; report the best capture, or else the failure of fewest dims."""
    known = plan.integers
    # After another failure, the number may be required to be one, for example as the key of a dictionary.
    added: set[str] = set()
    if isinstance(outcome, Capture):
        lines = _restricting_lines(outcome)
        best = known.best
        if best is not None and _excluded_shares(outcome) >= _excluded_shares(best):
            return best
        known = replace(known, best=outcome, fewer_files=None)
        added = (converting_files(lines) | (plan.log.converted if lines else set())) - known.files
    elif isinstance(outcome.error, SpecializedDimsError):
        # The static dims of the next plan: those that symbolic integers do not make dynamic.
        is_better = known.failure is None or _specialized_count(outcome) < _specialized_count(known.failure)
        known = replace(known, failure=outcome if is_better else known.failure)
        added = converting_files(str(line) for dim in outcome.error.specialized for line in dim.lines) - known.files
        if added:
            # The error is about dims of one size. Conversions that only restrict sizes would need another attempt.
            known = replace(known, fewer_files=known.files | added)
            added |= (converting_files(plan.log.equality_lines()) | plan.log.converted) - known.files
    if not added and known.fewer_files not in (None, known.files) and known.best is None:
        known = replace(known, files=frozenset(), fewer_files=None)
        added = set(plan.integers.fewer_files or ())
    if not added:
        return known.best or known.failure or outcome
    change = f"int, float and len keep sizes symbolic in {', '.join(sorted(added))}"
    signs = plan.unsigned if isinstance(outcome, Capture) else None
    return plan.changed(change, integers=replace(known, files=known.files | added), unsigned=signs)


def _has_unsigned_slices(outcome: Outcome, plan: CapturePlan) -> bool:
    is_new = plan.unsigned is not None or plan.log.has_unsigned_slices
    return isinstance(outcome, Failure) and plan.loops is None and is_new


def _with_signed_slices(failure: Failure, plan: CapturePlan) -> Decision:
    """Begin and end slices as at the example; report the failure before it, or dims of one size."""
    return plan.changed(unsigned=failure) if plan.unsigned is None else _reported_beside(plan.unsigned, failure)


def _reported_beside(before: Failure, last: Failure) -> Failure:
    is_new = isinstance(last.error, SpecializedDimsError) and not isinstance(before.error, SpecializedDimsError)
    return last if is_new else before


def _is_at_guard(outcome: Outcome, plan: CapturePlan) -> bool:
    return isinstance(outcome, Failure) and not plan.has_concrete_values and may_be_data_dependent(outcome.error)


def _may_have_data_edges(outcome: Outcome, plan: CapturePlan) -> bool:
    if not isinstance(outcome, Failure) or not plan.has_concrete_values or plan.loops or plan.sizes:
        return False
    if plan.beside is None and not plan.has_data_edges:
        return False
    return plan.beside is not None or plan.guard is not None or may_be_data_dependent(outcome.error)


def _beside_data_edges(failure: Failure, plan: CapturePlan) -> Decision:
    """Answer conditions on single sizes as for the other ones; report the failure before it, or dims of one size."""
    return plan.changed(beside=failure) if plan.beside is None else _reported_beside(plan.beside, failure)


def _is_unresolved(outcome: Outcome, plan: CapturePlan) -> bool:
    return isinstance(outcome, Failure) and outcome.guard is not None


def _followed_example(failure: Failure, plan: CapturePlan) -> Decision:
    if plan.request.data_dependent == "example":
        return plan.changed(follows_example=True)
    guard = failure.guard or failure
    return Failure(unresolved_error(guard.error, guard.guard_inputs, failure.error, plan.states.names))


def _has_control_flow(outcome: Outcome, plan: CapturePlan) -> bool:
    if isinstance(outcome, Capture) or not plan.has_concrete_values or plan.loops is not None or plan.follows_example:
        return False
    has_refused_sizes = plan.sizes is not None and is_refusal(outcome.error)
    return plan.rewriting is not None or has_refused_sizes or may_be_data_dependent(outcome.error)


def _rewritten_control_flow(failure: Failure, plan: CapturePlan) -> Decision:
    guard = plan.guard or failure
    try:
        rewriting, change = (plan.rewriting or plan.sizes or Rewriting(failure.error)).after(failure.error)
    except CaptureError as last:
        error = _reported(guard.error, last)
        return Failure(error, guard=None if isinstance(error, SpecializedDimsError) else guard)
    return plan.changed(change, guard=guard, rewriting=rewriting)


def _fails_in_export(outcome: Outcome, plan: CapturePlan) -> bool:
    if isinstance(outcome, Capture) or outcome.is_exported or plan.has_concrete_values:
        return False
    if plan.runs_eager_code and isinstance(outcome.error, SpecializedDimsError):
        return False
    return outcome.torch_error is not None or plan.export_failure is not None


def _strict_mode(failure: Failure, plan: CapturePlan) -> Decision:
    """Use strict mode; report the first failure, the one that refers to the user's code."""
    first = plan.export_failure or failure
    # To TorchDynamo, a boolean that depends on data is never identical to True or False: ``bool(x.any()) is True``.
    if plan.strict or is_data_dependent(first.torch_error) or not is_limit(first.torch_error):
        return Failure(first.error)
    return plan.changed(export_failure=first, strict=True, log=plan.log)


def _has_code_for_export(outcome: Outcome, plan: CapturePlan) -> bool:
    if not isinstance(outcome, Failure) or not outcome.asks_compiling or plan.runs_eager_code or plan.strict:
        return False
    return _fails_in_export(outcome, plan) and not is_data_dependent(outcome.torch_error)


def _has_full_masks(outcome: Outcome, plan: CapturePlan) -> bool:
    is_first = plan.export_failure is None and _fails_in_export(outcome, plan)
    return isinstance(outcome, Failure) and is_first and outcome.has_full_masks


def _is_torch_error(outcome: Outcome, plan: CapturePlan) -> bool:
    return isinstance(outcome, Failure) and outcome.torch_error is not None and not plan.strict and not plan.refined


def _refined_dims(failure: Failure, plan: CapturePlan) -> Decision:
    refined = refined_dims(str(failure.torch_error), plan.shapes)
    return plan.changed(refined=refined, log=plan.log) if refined else failure


def _has_transform(outcome: Outcome, plan: CapturePlan) -> bool:
    if not isinstance(outcome, Failure) or not isinstance(outcome.torch_error, RetryTransforms):
        return False
    return outcome.transforms != plan.transforms


STRATEGIES = (
    Strategy("static dims", _is_specialized, _static_dims),
    Strategy("loops over large dims are unrolled", _has_met_long_loop, _unrolled),
    Strategy("control flow is rewritten, of loops that limit the inputs", _may_have_loop, _rewritten_loops),
    Strategy("int, float and len keep sizes symbolic", lambda outcome, plan: True, _symbolic_integers),
    Strategy(
        "slices between sizes of unknown sign have the signs of the example", _has_unsigned_slices, _with_signed_slices
    ),
    Strategy(
        "values that depend on no input are known, and checks that only raise are assumed to pass",
        _is_at_guard,
        lambda failure, plan: plan.changed(resolves_guards=True),
    ),
    Strategy("branches for single sizes that depend on data are left out", _may_have_data_edges, _beside_data_edges),
    Strategy("branches on data follow the example", _is_unresolved, _followed_example),
    Strategy("control flow is rewritten to `torch.cond` and loops", _has_control_flow, _rewritten_control_flow),
    Strategy("strict mode (TorchDynamo)", _fails_in_export, _strict_mode),
    Strategy(
        "the model runs its code for eager mode: `torch.compiler.is_compiling` is false",
        _has_code_for_export,
        lambda failure, plan: plan.changed(
            export_failure=plan.export_failure or failure, runs_eager_code=True, log=plan.log
        ),
    ),
    Strategy(
        "masks that hide nothing are omitted",
        _has_full_masks,
        lambda failure, plan: plan.changed(export_failure=failure, skips_masks=True, log=plan.log),
    ),
    Strategy(
        "torch.func transforms are traced as plain operators",
        _has_transform,
        lambda failure, plan: plan.changed(transforms=failure.transforms, refined=plan.refined),
    ),
    Strategy("the ranges and relations of dims that torch suggests", _is_torch_error, _refined_dims),
)
"""From the outermost to the innermost strategy, each of which begins anew with a change of an outer one.

docs/architecture.md lists them with the outcomes after which they apply, and with those that they report.
"""
