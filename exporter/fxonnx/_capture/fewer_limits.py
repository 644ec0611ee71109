"""Further captures of a model that was captured for fewer sizes than requested, because of conditions on its sizes.

They have the answers beside the edges of conditions, or both branches, and are kept if the model shows that they are
right.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import sympy

from ..errors import CaptureError
from .constraints.constraint import Constraint, share_excluded
from .constraints.guard_recorder import Guard
from .constraints.specialized_dims import SpecializedDimsError
from .edges import edge_places
from .evaluating_code import Asking
from .plan import Capture, CapturePlan, Failure
from .rewriting import Rewriting, branches_at
from .suspicions.departures import Departure, DepartureKind

__all__ = [
    "LIMITS",
    "Attempted",
    "Confirm",
    "Outcome",
    "Seen",
    "excluded_share",
    "excluded_shares",
    "is_far",
    "lines_of",
    "may_be_limited_at",
    "rare_edges",
    "restricting",
    "with_both_branches",
    "with_fewer_limits",
]

Confirm: TypeAlias = Callable[[Capture, CapturePlan], frozenset[Constraint] | None]
"""Runs the model, and returns the assumed limits that a capture does not need; None if it is wrong at the example."""

Outcome: TypeAlias = Capture | Failure

_MOST_ATTEMPTS = 3
_LEAST_SHARE = 1 / 1024
"""Of a constraint that excludes larger sizes only."""


def may_be_limited_at(places: Collection[str], capture: Outcome, plan: CapturePlan) -> bool:
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
class Seen:
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


Attempted: TypeAlias = tuple[Outcome, CapturePlan, Seen]


def with_fewer_limits(
    found: Outcome,
    last: CapturePlan,
    asked: Seen,
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
        edges, rare = plan.log.edges, rare_edges(plan)
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


def with_both_branches(
    found: Capture,
    last: CapturePlan,
    asked: Seen,
    attempts: Callable[[Rewriting, frozenset[Guard]], Attempted],
    confirm: Confirm,
) -> tuple[Capture, CapturePlan]:
    """Capture a model again with both branches of the conditions on sizes that limit it."""
    best, plan, capture = (found, last), last, found
    rewriting = Rewriting(CaptureError(LIMITS))
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
    limits = (item for item in restricting(capture) if not (is_near and is_far(item)))
    return lines_of(limits) + [str(line) for dim in plan.specialized for line in dim.lines]


_FAR = 64


def is_far(limit: Constraint) -> bool:
    """Whether a limit excludes only large sizes, as those of another memory layout or type of index do.

    Both branches would take several captures and runs at these sizes.
    """
    return len(limit.dims) == 1 and all(limit.holds({limit.dims[0]: size}) for size in range(1, _FAR))


def _count(capture: Capture, plan: CapturePlan) -> float:
    """The number of specialized dims and the share of sizes that is excluded by more than an assumption."""
    limits = capture.limits
    return len(plan.specialized) + excluded_share(one for one in limits.constraints if one not in limits.assumed)


def _costs(capture: Capture, plan: CapturePlan) -> tuple[float, float]:
    """The count, then the share of sizes that the limits exclude: ``m != n or n > 3`` is less than ``m != n``."""
    return _count(capture, plan), excluded_shares(capture)[1]


def excluded_share(constraints: Iterable[Constraint]) -> float:
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


LIMITS = "a loop or a branch limits the inputs of the model"


def rare_edges(plan: CapturePlan) -> set[str]:
    """The lines with an answer of few sizes, which the next attempt may answer for the example."""
    return {str(line) for relation, line in plan.log.edges.items() if _is_rare(relation)} - (plan.edges or frozenset())


def restricting(captured: Capture) -> list[Constraint]:
    """The limits by which a capture is valid for fewer sizes than requested, and which have lines of the model."""
    return [item for item in captured.limits.constraints if item.narrows and item.line is not None]


def excluded_shares(captured: Capture) -> tuple[float, float]:
    """The share of sizes that its limits exclude, then that of those of several dims, such as ``h*w == 108``."""
    limits = restricting(captured)
    return excluded_share(limits), sum(map(share_excluded, limits))


def lines_of(limits: Iterable[Constraint]) -> list[str]:
    return [line for item in limits for line in str(item.line).split("; ")]
