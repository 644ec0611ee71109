"""Captures that are valid for more sizes than the first one, if the model itself shows that they are right there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeAlias

from .constraints.constraint import Constraint
from .plan import CapturePlan, Failure
from .result import Capture
from .suspicions.departures import Departure, DepartureKind

__all__ = ["Confirm", "has_fewer_sizes", "with_fewer_limits"]

Confirm: TypeAlias = Callable[[Capture, CapturePlan], frozenset[Constraint] | None]
"""Runs the model, and returns those of the assumed limits of a capture that it does not need.

The result is None if the capture is wrong at the example.
"""

_MOST_ATTEMPTS = 3


def has_fewer_sizes(capture: Capture, plan: CapturePlan) -> bool:
    """Whether a model was captured for fewer sizes than requested."""
    return _count(capture, plan) > 0


def with_fewer_limits(
    found: Capture,
    last: CapturePlan,
    attempts: Callable[[frozenset[str]], tuple[Capture | Failure, CapturePlan, Any]],
    confirm: Confirm,
) -> tuple[Capture, CapturePlan]:
    """Capture a model again with the answers beside the edges of its conditions on sizes.

    Args:
        found: The capture that is limited.
        last: The plan of its last attempt.
        attempts: Captures the model so, but with the answers for the example at some lines.
        confirm: Runs the model.

    Returns:
        The new capture if it has fewer limits, or else the one before, with the plan of its last attempt.
    """
    kept: frozenset[str] = frozenset()
    for _ in range(_MOST_ATTEMPTS):
        capture, plan, _asked = attempts(kept)
        edges = plan.log.edges
        if isinstance(capture, Failure) or not edges or _count(capture, plan) >= _count(found, last):
            break
        confirmed = confirm(capture, plan)
        if confirmed is None:
            break
        lines = {str(line) for line in edges.values()}
        wrong = {str(one.line) for one in capture.limits.assumed - confirmed} & lines
        if not wrong:
            return _without(capture, confirmed, sorted(lines)), plan
        if wrong == lines:
            break
        kept |= wrong
    return found, last


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
