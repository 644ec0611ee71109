"""Captures that are valid for more sizes than the first one, if the model itself shows that they are right there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

import sympy

from .constraints.constraint import Constraint
from .constraints.edges import has_edges
from .constraints.guard_recorder import GuardLog
from .departures import Departure, DepartureKind
from .plan import CapturePlan, Failure
from .result import Capture

__all__ = ["Attempted", "Confirm", "is_limited", "with_fewer_limits"]

Confirm: TypeAlias = Callable[[Capture, CapturePlan], frozenset[Constraint]]
"""Runs the model, and returns those of the assumed limits of a capture that it does not need."""

_MOST_ATTEMPTS = 3
_CHANGE = "branches for single sizes are left out"


@dataclass(frozen=True)
class Attempted:
    """The end of a series of attempts.

    Attributes:
        outcome: The capture, or the failure to report.
        plan: The plan of the last attempt.
        asked: The conditions on sizes that the model has asked for in all attempts.
    """

    outcome: Capture | Failure
    plan: CapturePlan
    asked: frozenset[sympy.Basic]


def is_limited(attempted: Attempted) -> bool:
    """Whether a model was captured for fewer sizes than requested."""
    return isinstance(attempted.outcome, Capture) and _count(attempted.outcome, attempted.plan) > 0


def with_fewer_limits(
    found: Attempted, first: CapturePlan, attempts: Callable[[CapturePlan], Attempted], confirm: Confirm
) -> Attempted:
    """Capture a model again with the answers beside the edges of its conditions on sizes.

    Args:
        found: The capture that is limited.
        first: The plan of its first attempt.
        attempts: Makes the attempts that begin with a plan.
        confirm: Runs the model.

    Returns:
        The new capture if it has fewer limits, or else the one before.
    """
    if not isinstance(found.outcome, Capture) or not has_edges(found.asked):
        return found
    kept: frozenset[str] = frozenset()
    for _ in range(_MOST_ATTEMPTS):
        again = attempts(replace(first, edges=kept, log=GuardLog(), change=_CHANGE))
        capture, edges = again.outcome, again.plan.log.edges
        if not isinstance(capture, Capture) or not edges:
            break
        if _count(capture, again.plan) >= _count(found.outcome, found.plan):
            break
        confirmed = confirm(capture, again.plan)
        lines = {str(line) for line in edges.values()}
        wrong = {str(one.line) for one in capture.limits.assumed - confirmed} & lines
        if not wrong:
            return replace(again, outcome=_without(capture, confirmed, sorted(lines)))
        kept |= wrong
    return found


def _count(capture: Capture, plan: CapturePlan) -> int:
    """The number of limits of the requested sizes that are not only assumed."""
    limits = capture.limits
    return len(plan.specialized) + sum(one.narrows and one not in limits.assumed for one in limits.constraints)


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
