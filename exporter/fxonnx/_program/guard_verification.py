"""Verification of the guards: at sizes outside of its limits, the model has to fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._capture.constraints.constraint import Constraint, SizeLimits
from .._capture.constraints.constraint_solver import Bounds
from .._lower.guards import name_of_constraint
from ..errors import ArgumentError, RuntimeSessionError, VerificationError
from .call_binding import BoundCall, bind_call
from .references import VerifiableProgram
from .session import Session
from .verification_inputs import may_index_on_gpu, resize_inputs

__all__ = ["verify_guards"]

_MAX_DISTANCE = 64


def verify_guards(program: VerifiableProgram, call: BoundCall) -> None:
    """Run a model at sizes that each of its limits excludes.

    Args:
        program: The program.
        call: Inputs within the limits.

    Raises:
        VerificationError: If it computes outputs.
    """
    capture = program.record.capture
    limits = capture.limits
    outside = list(_sizes_outside(limits, program.record.guards, call.inputs))
    if not outside or may_index_on_gpu(call.inputs):
        return
    session = Session(program.model, program.interface.session_factory)
    try:
        for constraint, sizes in outside:
            resized = resize_inputs(program.exported_program, limits, call, sizes)
            bound = bind_call(program.exported_program, *resized, program.record.forward, capture.inputs.frozen)
            try:
                session.run(bound.inputs)
            except (RuntimeSessionError, ArgumentError):
                continue
            shown = ", ".join(f"{name} = {sizes[name]}" for name in constraint.dims)
            raise VerificationError(
                f"the model requires {constraint}, but it computes outputs for {shown}",
                hint="the file has to fail outside of its limits: please report this",
            )
    finally:
        session.close()


def _sizes_outside(
    limits: SizeLimits, guards: Sequence[str], inputs: Sequence[Any]
) -> Iterator[tuple[Constraint, Mapping[str, int]]]:
    """The nearest sizes to the inputs' that violate each guarded constraint, if some are near."""
    given = limits.sizes(inputs)
    for constraint in limits.constraints:
        if name_of_constraint(constraint) in guards and all(name in given for name in constraint.dims):
            near = (sizes for sizes in _near(limits, constraint, given) if not constraint.holds(sizes))
            found = next(near, None)
            if found is not None:
                yield constraint, found


def _near(limits: SizeLimits, constraint: Constraint, given: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
    """Sizes that differ from the given ones in one dim of a constraint, the nearest first."""
    for distance in range(1, _MAX_DISTANCE):
        for name in constraint.dims:
            bounds = limits.user_bounds.get(name, Bounds())
            for size in (given[name] + distance, given[name] - distance):
                if size >= max(bounds.low or 1, 1) and (bounds.high is None or size <= bounds.high):
                    equal = {other: size for other, first in limits.shared_names.items() if first == name}
                    yield {**given, **equal, name: size}
