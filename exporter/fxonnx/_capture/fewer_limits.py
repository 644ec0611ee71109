"""Captures that are valid for more sizes than the first one, if the model itself shows that they are right there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeAlias

from .constraints.constraint import Constraint
from .departures import Departure, DepartureKind
from .plan import CapturePlan, Failure
from .result import Capture

__all__ = ["Confirm", "excluded_share", "has_fewer_sizes", "with_fewer_limits"]

Confirm: TypeAlias = Callable[[Capture, CapturePlan], frozenset[Constraint] | None]
"""Runs the model, and returns those of the assumed limits of a capture that it does not need.

The result is None if the capture is wrong at the example.
"""

_MOST_ATTEMPTS = 3
_SIZES = range(1, 129)
_LEAST_SHARE = 1 / 1024
"""Of a constraint that excludes larger sizes only."""


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


def _count(capture: Capture, plan: CapturePlan) -> float:
    """The number of specialized dims and the share of sizes that is excluded by more than an assumption."""
    limits = capture.limits
    return len(plan.specialized) + excluded_share(one for one in limits.constraints if one not in limits.assumed)


def excluded_share(constraints: Iterable[Constraint]) -> float:
    """The sum of the shares of sizes that constraints exclude of the requested ones; 1 for those of several dims."""
    return sum(_excluded(one) + _LEAST_SHARE for one in constraints if one.narrows)


def _excluded(constraint: Constraint) -> float:
    if len(constraint.dims) > 1:
        return 1
    return sum(not constraint.holds(dict.fromkeys(constraint.dims, size)) for size in _SIZES) / len(_SIZES)


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
