"""The loop of a capture: attempts with plans, which the strategies change after each outcome until none applies.

A capture for fewer sizes than requested is made again with other answers, if the model shows that they are right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from ..errors import CaptureError
from .constraints.constraint import Constraint
from .constraints.guard_recorder import Guard
from .constraints.specialized_dims import SpecializedDimsError, without_specialized
from .data_dependence.checks import is_data_dependent, may_be_data_dependent, unresolved_error
from .edges import edge_places
from .fewer_limits import (
    LIMITS,
    Attempted,
    Confirm,
    Outcome,
    Seen,
    excluded_share,
    excluded_shares,
    is_far,
    lines_of,
    may_be_limited_at,
    rare_edges,
    restricting,
    with_both_branches,
    with_fewer_limits,
)
from .function_transforms import RetryTransforms
from .patches.size_numbers import converting_files
from .plan import Capture, CapturePlan, Failure, LoopRewriting
from .rewriting import Rewriting, branches_at, functions_at, is_refusal
from .shapes.dynamic_shapes import root_name
from .suspicions.departures import refused
from .torch_export import is_limit, refined_dims

__all__ = ["STRATEGIES", "Confirm", "Strategy", "capture_with_strategies"]

Fails: TypeAlias = Callable[[Capture, CapturePlan, Sequence[Constraint]], bool]
"""Whether the model itself fails at the sizes that some limits of a capture exclude."""

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
    if may_be_limited_at(edge_places(seen.asked), outcome, last):
        outcome, last, seen = with_fewer_limits(outcome, last, seen, plan, attempts, confirm)
    if isinstance(outcome, Failure):
        return _plain_capture(attempt, plan, outcome.error, own_error)
    near = [item for item in restricting(outcome) if not is_far(item) and branches_at(lines_of([item]))[0]]
    if near and not last.specialized and fails(outcome, last, near):
        # Limits are dropped where program and model return the same.
        return outcome, last

    def with_sizes(sizes: Rewriting, known: frozenset[Guard]) -> Attempted:
        return attempts(replace(plan.with_answers(last, sizes=sizes), known=known))

    return with_both_branches(outcome, last, seen, with_sizes, confirm)


def _attempts(
    attempt: Callable[[CapturePlan], Outcome], plan: CapturePlan, *, keeps_rare_edges: bool = False
) -> Attempted:
    """Make attempts until no strategy has a plan for the next one; with the conditions on sizes that they ask.

    With ``keeps_rare_edges``, they end where answers of few sizes have led to conditions on data, which no attempt
    before has met.
    """
    seen = Seen()
    while True:
        decision: Decision = attempt(plan)
        seen.asked |= plan.log.asked
        seen.guards |= {*plan.log.guards}
        if isinstance(decision, Failure):
            is_led_to_data = keeps_rare_edges and _is_at_guard(decision, plan) and bool(rare_edges(plan))
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
    loops = LoopRewriting(captured, Rewriting(CaptureError(LIMITS)))
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
    excluded = excluded_share(last.limits.constraints) if isinstance(last, Capture) else None
    return before if excluded is None or excluded >= excluded_share(restricting(before)) else last


def _restricting_lines(captured: Capture) -> list[str]:
    return lines_of(restricting(captured))


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
        if best is not None and excluded_shares(outcome) >= excluded_shares(best):
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
