"""The loop of a capture: attempts with plans, which the strategies change after each outcome until none applies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from ..errors import CaptureError
from .constraints.specialized_dims import SpecializedDimsError, without_specialized
from .function_transforms import RetryTransforms
from .patches.python_sizes.integers import converting_files
from .plan import CapturePlan, Limited, LoopRewriting, Outcome
from .questions.data_dependent_guards import is_data_dependent, may_be_data_dependent, unresolved_error
from .result import Capture
from .rewriting import Rewriting, functions_at
from .torch_export import is_limit, refined_dims

__all__ = ["STRATEGIES", "Strategy", "capture_with_strategies"]


@dataclass(frozen=True)
class Strategy:
    """A change of the plan after an attempt that failed, or that is valid for fewer inputs than requested.

    Attributes:
        name: The change.
        after: The outcome after which it does.
        reports: The outcome that it reports when there is nothing left to change.
        applies_to: Whether it decides about an outcome.
        next_plan: The next plan, or the outcome to report.
    """

    name: str
    after: str
    reports: str
    applies_to: Callable[[Outcome, CapturePlan], bool]
    next_plan: Callable[[Outcome, CapturePlan], CapturePlan | Outcome]


def capture_with_strategies(
    attempt: Callable[[CapturePlan], Outcome], plan: CapturePlan
) -> tuple[Capture, CapturePlan]:
    """Capture a model: one attempt after the other, until no strategy has a plan for the next one.

    Args:
        attempt: Captures the model with a plan.
        plan: The first plan.

    Returns:
        The captured model, and the plan of the last attempt.

    Raises:
        CaptureError: If no attempt captures the model.
    """
    while True:
        outcome = attempt(plan)
        plan = replace(plan, has_long_loop=plan.has_long_loop or outcome.has_long_loop)
        decision = _decision(outcome, plan)
        if isinstance(decision, CapturePlan):
            plan = decision
        elif decision.captured is not None:
            return decision.captured, plan
        elif decision.failure is not None:
            raise decision.failure


def _decision(outcome: Outcome, plan: CapturePlan) -> CapturePlan | Outcome:
    """The plan of the innermost strategy that has one; the outcome of each is that of the next outer one."""
    for strategy in reversed(STRATEGIES):
        if strategy.applies_to(outcome, plan):
            decision = strategy.next_plan(outcome, plan)
            if isinstance(decision, CapturePlan):
                return decision
            outcome = decision
    return outcome


def _is_specialized(outcome: Outcome) -> bool:
    return isinstance(outcome.failure, SpecializedDimsError)


def _static_dims(outcome: Outcome, plan: CapturePlan) -> CapturePlan | Outcome:
    failure = outcome.failure
    if not isinstance(failure, SpecializedDimsError):
        return outcome
    try:
        shapes, specialized = without_specialized(plan.shapes, plan.specialized, failure, strict=plan.strict_shapes)
    except SpecializedDimsError as error:
        return Outcome(failure=error)
    change = "static dims: " + ", ".join(dim.label for dim in specialized)
    return plan.changed(change, shapes=shapes, specialized=specialized)


def _rewritten_loops(outcome: Outcome, plan: CapturePlan) -> CapturePlan | Outcome:
    """Rewrite the loops that specialize dims; or the loops that limit values, and then the loops that limit sizes."""
    loops, failure = plan.loops, outcome.failure
    if failure is None:
        return _limited_values(outcome, plan) if loops is None else _after_loops(loops, outcome, plan)
    loops = loops or LoopRewriting("dims", outcome, Rewriting(failure, failure))
    return _loop_plan(loops, partial(loops.rewriting.after, failure), plan)


def _loop_plan(
    loops: LoopRewriting, step: Callable[[], tuple[Rewriting, str]], plan: CapturePlan
) -> CapturePlan | Outcome:
    try:
        rewriting, change = step()
    except CaptureError as error:
        return _after_loops(loops, Outcome(failure=error), plan)
    return plan.changed(change, loops=replace(loops, rewriting=rewriting))


def _limiting_loops(
    limited: Limited, outcome: Outcome, lines: Iterable[str], plan: CapturePlan
) -> CapturePlan | Outcome | None:
    """The plan with the loops rewritten that begin at lines; None without such a loop."""
    functions = functions_at(lines)
    if not functions:
        return None
    failure = CaptureError("a loop limits the inputs of the model")
    loops = LoopRewriting(limited, outcome, Rewriting(failure, failure))
    return _loop_plan(loops, partial(loops.rewriting.with_functions, functions), plan)


def _limited_values(outcome: Outcome, plan: CapturePlan) -> CapturePlan | Outcome:
    captured = outcome.captured
    lines = captured.loop_bound_places if captured is not None and captured.loop_bounds else ()
    return _limiting_loops("values", outcome, lines, plan) or _limited_sizes(outcome, plan)


def _limited_sizes(outcome: Outcome, plan: CapturePlan) -> CapturePlan | Outcome:
    captured = outcome.captured
    lines = [] if captured is None or captured.rewrites else _restricting_lines(captured)
    return _limiting_loops("sizes", outcome, lines, plan) or outcome


def _after_loops(loops: LoopRewriting, last: Outcome, plan: CapturePlan) -> CapturePlan | Outcome:
    """Keep the capture with rewritten loops only if it is valid for more inputs."""
    before, first, found = loops.before, loops.before.captured, last.captured
    if loops.limited == "dims" or first is None:
        return last
    if loops.limited == "sizes":
        narrowing = [] if found is None else [item for item in found.limits.constraints if item.narrows]
        return before if found is None or len(narrowing) >= len(_restricting_lines(first)) else last
    if found is None:
        before = replace(before, captured=replace(first, loop_refusal=last.failure))
    elif found.loop_bounds.keys() < first.loop_bounds.keys():
        before = last
    return _limited_sizes(before, plan)


def _restricting_lines(captured: Capture) -> list[str]:
    """The lines of the model by which a capture is valid for fewer sizes than requested."""
    return [item.line for item in captured.limits.constraints if item.narrows and item.line is not None]


def _symbolic_integers(outcome: Outcome, plan: CapturePlan) -> CapturePlan | Outcome:
    """Keep sizes symbolic in further files; in the end, report the best capture, or else the first failure."""
    known = plan.integers
    # After another failure, the number may be required to be one, for example as the key of a dictionary.
    lines: list[str] = []
    if isinstance(outcome.failure, SpecializedDimsError):
        lines = [str(line) for dim in outcome.failure.specialized for line in dim.lines]
        known = replace(known, failure=known.failure or outcome)
    elif outcome.captured is not None:
        lines = _restricting_lines(outcome.captured)
        if known.best is not None and len(lines) >= known.restrictions:
            return known.best
        known = replace(known, best=outcome, restrictions=len(lines))
    added = converting_files(lines) - known.files
    if not added:
        return known.best or known.failure or outcome
    change = f"int and len keep sizes symbolic in {', '.join(sorted(added))}"
    return plan.changed(change, integers=replace(known, files=known.files | added))


def _is_at_guard(outcome: Outcome, plan: CapturePlan) -> bool:
    failure = outcome.failure
    return not plan.has_concrete_values and failure is not None and may_be_data_dependent(failure)


def _concrete_values(outcome: Outcome, plan: CapturePlan) -> CapturePlan:
    change = "values that depend on no input are known, and checks that only raise are assumed to pass"
    return plan.changed(change, resolves_guards=True)


def _followed_example(outcome: Outcome, plan: CapturePlan) -> CapturePlan | Outcome:
    guard = outcome.unresolved
    if plan.may_follow_example:
        return plan.changed("branches on data follow the example", follows_example=True)
    if guard is None or guard.failure is None or outcome.failure is None:
        return outcome
    return Outcome(failure=unresolved_error(guard.failure, guard.guard_inputs, outcome.failure))


def _has_control_flow(outcome: Outcome, plan: CapturePlan) -> bool:
    failure, is_possible = outcome.failure, plan.has_concrete_values and plan.loops is None and not plan.follows_example
    return is_possible and failure is not None and (plan.rewriting is not None or may_be_data_dependent(failure))


def _rewritten_control_flow(outcome: Outcome, plan: CapturePlan) -> CapturePlan | Outcome:
    guard, failure = plan.guard or outcome, outcome.failure
    if failure is None:
        return outcome
    try:
        rewriting, change = (plan.rewriting or Rewriting(failure, failure)).after(failure)
    except SpecializedDimsError as error:
        return Outcome(failure=error)
    except CaptureError as error:
        return Outcome(failure=error, unresolved=guard)
    return plan.changed(change, guard=guard, rewriting=rewriting)


def _has_full_masks(outcome: Outcome, plan: CapturePlan) -> bool:
    is_first = plan.export_failure is None and not plan.has_concrete_values
    return is_first and outcome.torch_error is not None and outcome.has_full_masks


def _omitted_masks(outcome: Outcome, plan: CapturePlan) -> CapturePlan:
    change = "masks that hide nothing are omitted"
    return plan.changed(change, export_failure=outcome.failure, skips_masks=True, log=plan.log)


def _fails_in_export(outcome: Outcome, plan: CapturePlan) -> bool:
    is_failure = outcome.torch_error is not None or (plan.export_failure is not None and not outcome.is_exported)
    return is_failure and not plan.has_concrete_values


def _strict_mode(outcome: Outcome, plan: CapturePlan) -> CapturePlan | Outcome:
    """Use strict mode; report the first failure, the one that refers to the user's code."""
    first = plan.export_failure or outcome.failure
    # To TorchDynamo, a boolean that depends on data is never identical to True or False: ``bool(x.any()) is True``.
    if first is None or plan.strict or is_data_dependent(first.__cause__) or not is_limit(first.__cause__):
        return Outcome(failure=first)
    return plan.changed("strict mode (TorchDynamo)", export_failure=first, strict=True, log=plan.log)


def _refined_dims(outcome: Outcome, plan: CapturePlan) -> CapturePlan | Outcome:
    refined = refined_dims(str(outcome.torch_error), plan.shapes)
    if not refined:
        return outcome
    return plan.changed("the ranges and relations of dims that torch suggests", refined=refined, log=plan.log)


def _has_other_transforms(outcome: Outcome, plan: CapturePlan) -> bool:
    return isinstance(outcome.torch_error, RetryTransforms) and outcome.transforms != plan.transforms


def _plain_transforms(outcome: Outcome, plan: CapturePlan) -> CapturePlan:
    change = "torch.func transforms are traced as plain operators"
    return plan.changed(change, transforms=outcome.transforms, refined=plan.refined)


STRATEGIES = (
    Strategy(
        "the dim is static",
        "a dynamic dim is always one size",
        "the specialized dims of all attempts",
        lambda outcome, plan: _is_specialized(outcome),
        _static_dims,
    ),
    Strategy(
        "the loop is unrolled",
        "a failure after a long loop over a dim, of which no operator could be made",
        "the failure with the unrolled loop",
        lambda outcome, plan: outcome.failure is not None and plan.has_long_loop and not plan.unrolls_long_loops,
        lambda outcome, plan: plan.changed("loops over large dims are unrolled", unrolls_long_loops=True),
    ),
    Strategy(
        "the loop is rewritten to an operator",
        "a loop specializes a dim, or limits the values or sizes of inputs",
        "the capture before it, unless fewer inputs are limited; a failure as for other control flow",
        lambda outcome, plan: (
            outcome.captured is not None or isinstance(outcome.failure, SpecializedDimsError) or plan.loops is not None
        ),
        _rewritten_loops,
    ),
    Strategy(
        "they keep sizes symbolic in the modules concerned",
        "`int` or `len` makes a size a number",
        "the capture with the fewest restricted sizes, or else the first failure",
        lambda outcome, plan: True,
        _symbolic_integers,
    ),
    Strategy(
        "values that depend on no input are known, checks that only raise are assumed to pass",
        "a data-dependent guard",
        "the failure at the next guard",
        _is_at_guard,
        _concrete_values,
    ),
    Strategy(
        'branches follow the example, with `data_dependent="example"`',
        "a data-dependent guard in control flow that cannot be rewritten",
        "the guard, with the inputs on which it depends",
        lambda outcome, plan: outcome.unresolved is not None,
        _followed_example,
    ),
    Strategy(
        "the control flow of the function is rewritten to `torch.cond` and loops, one function after the other",
        "a data-dependent guard, with concrete values",
        "the refused construct, specialized dims if they are new or fewer, or else the first failure",
        _has_control_flow,
        _rewritten_control_flow,
    ),
    Strategy(
        "strict mode (TorchDynamo)",
        "one of four limits of non-strict mode",
        "the failure in non-strict mode",
        _fails_in_export,
        _strict_mode,
    ),
    Strategy(
        "such masks are omitted",
        "any error, in a model that asks whether a mask hides nothing",
        "the failure with the masks",
        _has_full_masks,
        _omitted_masks,
    ),
    Strategy(
        "these ranges and relations",
        "torch suggests other ranges or relations of dims",
        "the failure with them",
        lambda outcome, plan: outcome.torch_error is not None and not plan.strict and not plan.refined,
        _refined_dims,
    ),
    Strategy(
        "these transforms are traced as plain operators",
        "a derivative or `vmap` over values above functorch",
        "the failure with them",
        lambda outcome, plan: (
            isinstance(outcome.torch_error, RetryTransforms) and outcome.transforms != plan.transforms
        ),
        _plain_transforms,
    ),
)
"""From the outermost to the innermost strategy: each one begins anew with a change of an outer one."""
