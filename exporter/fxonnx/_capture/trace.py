"""One attempt to capture a model: torch.export with a plan, and the names and limits of the dims of its program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from fxonnx_translations._optional_names import MissingNameError

from ..errors import CaptureError, ExportError
from .autograd_functions import FunctionCall, recorded_function_calls
from .constraints.constraint import SizeLimits
from .constraints.guard_recorder import GuardLog
from .constraints.guard_translation import translate_guards
from .constraints.long_loops import LongLoopFound, LongLoops
from .constraints.specialized_dims import SpecializedDimsError, check_specialized
from .departures import Departure, DepartureKind, record_departure, recorded_departures
from .function_transforms import TransformTracing
from .inputs.example_inputs import BoundInputs
from .inputs.loop_bounds import ExampleIntegers, recorded_loop_bounds
from .inputs.scalars import with_scalar_branch
from .inputs.shared_memory import reject_shared_writes, with_separate_inputs
from .patches.functional import FullMasks, recorded_full_masks
from .patches.python_sizes.integers import symbolic_integers
from .plan import CapturePlan, Outcome
from .questions.assumption import AssumptionLog
from .questions.data_dependent_guards import inputs_of_guard
from .questions.known_values import KnownValues, known_values
from .result import Capture
from .rewriting import Rewrite, rewritten_functions
from .rewriting.operators.memory import SharedMemory
from .shapes.dim_names import name_dims
from .shapes.dynamic_axes import DynamicAxes, name_output_dims
from .shapes.dynamic_shapes import DynamicShapes, Leaf
from .tensor_lists import ListResults, recorded_list_results
from .torch_export import explained_error, export_module

__all__ = ["CaptureTask", "names_of_dims"]


@dataclass
class _Records:
    """The records of one attempt, filled while it runs."""

    transforms: TransformTracing
    masks: FullMasks
    values: KnownValues | None
    long_loops: LongLoops
    memory: SharedMemory
    bounds: ExampleIntegers
    lists: ListResults
    departures: dict[Departure, None]
    calls: list[FunctionCall] = field(default_factory=list)


@contextmanager
def _applied(plan: CapturePlan, model: torch.nn.Module) -> Iterator[_Records]:
    """Apply a plan: the functions of the model, the values of its tensors, and the recorders of an attempt."""
    values = None
    if plan.has_concrete_values:
        values = KnownValues(AssumptionLog(), follow_example=plan.follows_example)
    calls: list[FunctionCall] = []
    loops = LongLoops(plan.shapes.leaves)
    if not plan.unrolls_long_loops:
        loops.watch(plan.log)
    with (
        rewritten_functions(plan.rewritten) as memory,
        symbolic_integers(plan.integers.files, model),
        recorded_function_calls(calls),
        recorded_loop_bounds() as bounds,
        recorded_list_results() as lists,
        recorded_departures() as departures,
        nullcontext() if values is None else known_values(values),
        # TorchDynamo traces the function that records them.
        nullcontext(FullMasks()) if plan.strict else recorded_full_masks(are_skipped=plan.skips_masks) as masks,
    ):
        if plan.export_failure is not None:
            kind = DepartureKind.STRICT if plan.strict else DepartureKind.REPLACED
            record_departure(kind, "torch.export with strict=True" if plan.strict else "masks that hide nothing")
        yield _Records(replace(plan.transforms), masks, values, loops, memory, bounds, lists, departures, calls)


@dataclass(frozen=True)
class CaptureTask:
    """The model and the options of all attempts.

    Attributes:
        model: The model.
        inputs: The example inputs.
        axes: ``dynamic_axes``.
        output_names: The user's names of outputs.
        scalars: Labels of the numbers that were converted to tensors.
    """

    model: torch.nn.Module
    inputs: BoundInputs
    axes: DynamicAxes | None
    output_names: Sequence[str]
    scalars: Sequence[str]

    def attempt(self, plan: CapturePlan) -> Outcome:
        """Run torch.export once, and name the dims of the program.

        Raises:
            ExportError: For an error of fxonnx that no other plan avoids.
        """
        with _applied(plan, self.model) as records:
            inputs, shared = with_separate_inputs(self.model, self.inputs, [leaf.label for leaf in plan.shapes.leaves])
            outcome, program = self._exported(inputs, plan, records)
        found = records.long_loops.found
        if outcome.failure is not None:
            return replace(outcome, has_long_loop=found is not None)
        if program is None or found is not None:
            specialized = SpecializedDimsError([] if found is None else [found])
            return Outcome(failure=specialized, is_exported=True, has_long_loop=True)
        try:
            reject_shared_writes(program, shared)
            return Outcome(self._captured(program, plan, records))
        except CaptureError as error:
            return Outcome(failure=error, is_exported=True)

    def _exported(
        self, inputs: BoundInputs, plan: CapturePlan, records: _Records
    ) -> tuple[Outcome, ExportedProgram | None]:
        """The program, or the failure of torch.export."""
        torch_error: Exception | None = None
        try:
            return Outcome(), export_module(self.model, inputs, plan, records.transforms)
        except LongLoopFound:
            return Outcome(), None
        except CaptureError as error:
            failure = error
        except (ExportError, MissingNameError):
            raise
        except Exception as error:  # noqa: BLE001 - raised unless another plan works
            failure = explained_error(error, self.model, plan)
            torch_error = None if isinstance(failure, SpecializedDimsError) else error
        return Outcome(
            failure=with_scalar_branch(failure, self.scalars),
            torch_error=torch_error,
            has_full_masks=records.masks.exist,
            transforms=records.transforms,
            guard_inputs=inputs_of_guard(failure, records.values),
        ), None

    def _captured(self, program: ExportedProgram, plan: CapturePlan, records: _Records) -> Capture:
        shapes, log, rewriting = plan.shapes, plan.log, plan.rewritten
        names, aliases = names_of_dims(program, shapes, self.axes, self.output_names, log)
        limits = translate_guards(program, shapes, names, log)
        merged = _merge_equal_names(names, limits)
        if merged != names:
            names, limits = merged, translate_guards(program, shapes, merged, log)
        check_specialized(limits, shapes.leaves, log)
        _check_example(limits, shapes.leaves)
        assumptions = () if records.values is None else tuple(records.values.log.assumptions)
        departures = (*records.departures, *(one.departure for one in assumptions))
        rewrites: tuple[Rewrite, ...] = ()
        if rewriting is not None:
            rewriting.check(program, records.memory)
            rewrites, departures = tuple(rewriting.log.constructs), (*departures, *rewriting.departures)
        return Capture(
            program,
            names,
            aliases,
            limits,
            functions=tuple(records.calls),
            loop_bounds=records.bounds.used,
            loop_bound_places=tuple(records.bounds.places),
            frozen_tensors=self.inputs.frozen,
            assumptions=assumptions,
            rewrites=rewrites,
            departures=departures,
            output_lists=records.lists.positions,
        )


def names_of_dims(
    program: ExportedProgram,
    shapes: DynamicShapes,
    axes: DynamicAxes | None,
    output_names: Sequence[str],
    log: GuardLog | None = None,
) -> tuple[dict[sympy.Symbol, str], dict[str, tuple[str, ...]]]:
    """Assign the user's names to the symbols of inputs and of output dims."""
    names = name_dims(program, shapes, log)
    return names if axes is None else name_output_dims(program, axes, output_names, names)


def _merge_equal_names(names: Mapping[sympy.Symbol, str], limits: SizeLimits) -> dict[sympy.Symbol, str]:
    """Give one name to dims that share the user's name and that a guard requires to be equal."""
    firsts = dict(limits.shared_names)
    equal: dict[str, str] = {}
    for constraint in limits.constraints:
        sides = [str(side) for side in constraint.expression.args if side.is_Symbol]
        if isinstance(constraint.expression, sympy.Eq) and len(sides) == 2:
            one, other = sides
            if firsts.get(one, one) == firsts.get(other, other):
                equal |= {name: firsts[name] for name in sides if name in firsts}
    return {symbol: equal.get(name, name) for symbol, name in names.items()}


def _check_example(limits: SizeLimits, leaves: Sequence[Leaf]) -> None:
    """Raise a CaptureError if the example inputs violate a constraint of the captured program."""
    by_label = {leaf.label: leaf.value for leaf in leaves}
    inputs: list[Any] = [None] * (1 + max((place.input for place in limits.places), default=-1))
    for place in limits.places:
        inputs[place.input] = by_label.get(place.argument)
    limits.check_example(inputs)
