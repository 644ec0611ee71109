"""One attempt to capture a model: torch.export with a plan, and the names and limits of the dims of its program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from fxonnx_translations._optional_names import MissingNameError

from .._callers_autocast import callers_autocast
from .._request import Request
from ..errors import CaptureError, ExportError
from .attempts import AttemptLog
from .autograd_functions import FunctionCall, recorded_function_calls
from .constraints.constraint import SizeLimits
from .constraints.guard_recorder import GuardLog
from .constraints.guard_translation import translate_guards
from .constraints.specialized_dims import SpecializedDimsError, check_specialized
from .data_dependence.assumption import AssumptionLog
from .data_dependence.concrete_values import ConcreteValues, concrete_values
from .data_dependence.data_dependent_guards import inputs_of_guard
from .data_dependence.weight_reads import WeightReads
from .early_ends import EarlyEnd, EarlyEnds
from .function_transforms import TransformTracing
from .inputs.converted_inputs import with_scalar_branch
from .inputs.example_inputs import BoundInputs
from .inputs.tensor_memory import assumed_equal, reject_shared_writes, with_separate_inputs
from .operand_types import state_default_dtypes
from .patches.libraries import FullMasks, recorded_full_masks
from .patches.size_numbers import symbolic_integers
from .patches.tracing_state import CompilingState, recorded_compiling_state
from .plan import Capture, CapturePlan, Failure
from .rewriting import rewritten_functions
from .rewriting.operators.values import SharedMemory
from .shapes.dim_names import name_dims
from .shapes.dynamic_shapes import DynamicShapes, Leaf
from .shapes.spec_keys import DynamicAxes, name_output_dims
from .suspicions.departures import Departure, DepartureKind, record_departure, recorded_departures
from .suspicions.introspection import truth_values
from .tensor_lists import ListResults, recorded_list_results
from .torch_export import explained_error, export_module
from .traced_states import Reassignment, merge_tied_tensors
from .training_mode import training_modules

__all__ = ["CaptureTask", "names_of_dims"]

_EDGE = "a branch for single sizes that depend on data"


@dataclass(frozen=True)
class _Observations:
    """The facts about an attempt that its program does not contain.

    Attributes:
        values: The concrete values and the resolutions of guards by them; None without any.
        transforms: How ``torch.func`` transforms have to be traced.
        memory: The tensors that rewritten functions copy.
        masks: Whether the model asks for masks that hide nothing.
        compiling: Whether it asks if it is compiled.
        lists: The results that are lists of a dynamic number of tensors.
        departures: The places that depart from plain torch.export.
        calls: The calls of autograd functions.
        reassigned: The buffers that become tensors of another kind.
    """

    values: ConcreteValues | None
    transforms: TransformTracing
    memory: SharedMemory
    masks: FullMasks
    compiling: CompilingState
    lists: ListResults
    departures: Iterable[Departure]
    calls: Sequence[FunctionCall]
    reassigned: list[Reassignment] = field(default_factory=list)


@contextmanager
def _applied(plan: CapturePlan, model: torch.nn.Module) -> Iterator[_Observations]:
    """Apply a plan: to functions of the model and of libraries, to ``int`` and ``len``, and to values of tensors."""
    values = ConcreteValues(AssumptionLog(), follow_example=plan.follows_example) if plan.has_concrete_values else None
    calls: list[FunctionCall] = []
    with (
        recorded_function_calls(calls),
        recorded_list_results() as lists,
        recorded_departures() as departures,
        rewritten_functions(plan.rewritten) as memory,
        symbolic_integers(plan.integers.files, model),
        nullcontext() if values is None else concrete_values(values),
        # TorchDynamo traces the function that records masks.
        nullcontext(FullMasks()) if plan.strict else recorded_full_masks(are_skipped=plan.skips_masks) as masks,
        recorded_compiling_state(is_eager=plan.runs_eager_code) as compiling,
    ):
        if plan.plain:
            record_departure(DepartureKind.LAST, plan.change, line="")
        elif plan.strict:
            record_departure(DepartureKind.STRICT, "torch.export with strict=True")
        if plan.skips_masks:
            record_departure(DepartureKind.REPLACED, "masks that hide nothing")
        yield _Observations(values, replace(plan.transforms), memory, masks, compiling, lists, departures, calls)


@dataclass(frozen=True)
class CaptureTask:
    """The facts that all attempts share.

    Attributes:
        request: The export as it was asked for.
        model: Its model, or the module of an add-on that is captured in its place.
        inputs: The example inputs.
        axes: ``dynamic_axes``.
        scalars: Labels of the numbers that were converted to tensors.
        attempts: Receives the calls of torch.export.
    """

    request: Request
    model: torch.nn.Module
    inputs: BoundInputs
    axes: DynamicAxes | None
    scalars: Sequence[str]
    attempts: AttemptLog

    def attempt(self, plan: CapturePlan) -> Capture | Failure:
        """Run torch.export once, and name the dims of the program.

        Raises:
            ExportError: For an error of fxonnx that no other plan avoids.
        """
        end = EarlyEnds(plan.shapes.leaves, plan.unrolls_long_loops or plan.plain, self.request.strict_shapes)
        end.watch(plan.log)
        program: ExportedProgram | None = None
        error: Exception | None = None
        with _applied(plan, self.model) as seen:
            inputs, shared = with_separate_inputs(self.model, self.inputs, [leaf.label for leaf in plan.shapes.leaves])
            try:
                program = export_module(self.model, inputs, plan, seen.transforms, seen.reassigned, self.attempts)
            except EarlyEnd:
                pass
            except Exception as failure:
                if isinstance(failure, ExportError | MissingNameError) and not isinstance(failure, CaptureError):
                    raise
                error = failure
        if error is not None:
            return replace(self._failure(error, plan, seen), has_long_loop=end.is_long_loop)
        if end.found is not None or program is None:
            specialized = SpecializedDimsError([] if end.found is None else [end.found])
            return Failure(specialized, is_exported=True, has_long_loop=end.is_long_loop)
        state_default_dtypes(program)
        merge_tied_tensors(program)
        try:
            reject_shared_writes(program, shared)
            names, aliases, limits = self._named_dims(program, plan)
            if plan.rewritten is not None:
                plan.rewritten.check(program, seen.memory)
        except CaptureError as failure:
            return Failure(failure, is_exported=True)
        assumptions = () if seen.values is None else tuple(seen.values.log.assumptions)
        assumptions += tuple(assumed_equal(plan.shared, [leaf.label for leaf in plan.shapes.leaves]))
        rewritten = [] if plan.rewritten is None else plan.rewritten.departures
        refusal, edges = None if plan.beside is None else plan.beside.error, plan.log.data_edges
        beside = [
            Departure(DepartureKind.INTROSPECTION, _EDGE, str(edge.line or ""), refusal=refusal) for edge in edges
        ]
        departures = *seen.departures, *truth_values(program)
        return Capture(
            program,
            self.request,
            names,
            aliases,
            limits,
            functions=tuple(seen.calls),
            reassigned=tuple(seen.reassigned),
            inputs=self.inputs.table,
            training=training_modules(self.request.model),
            grad_mode=torch.is_grad_enabled(),
            autocast=callers_autocast(),
            assumptions=assumptions,
            weight_reads=WeightReads() if seen.values is None else seen.values.tape.found(),
            rewrites=() if plan.rewritten is None else tuple(plan.rewritten.log.constructs),
            departures=(*departures, *(one.departure for one in assumptions), *rewritten, *beside),
            output_lists=seen.lists.positions,
            data_edges=tuple(edges),
        )

    def _failure(self, error: Exception, plan: CapturePlan, seen: _Observations) -> Failure:
        """The failure of the call of torch.export."""
        explained = explained_error(error, self.model, plan)
        return Failure(
            with_scalar_branch(explained, self.scalars),
            None if isinstance(error, CaptureError) or isinstance(explained, SpecializedDimsError) else error,
            has_full_masks=seen.masks.exist,
            asks_compiling=seen.compiling.is_asked,
            transforms=seen.transforms,
            guard_inputs=inputs_of_guard(explained, seen.values),
        )

    def _named_dims(
        self, program: ExportedProgram, plan: CapturePlan
    ) -> tuple[dict[sympy.Symbol, str], dict[str, tuple[str, ...]], SizeLimits]:
        """The names and aliases of the dims of a program, and its limits.

        Raises:
            CaptureError: If a dynamic dim is specialized to one size, or the example violates a limit.
        """
        shapes, log = plan.shapes, plan.log
        names, aliases = names_of_dims(program, shapes, self.axes, self.request.output_names, log)
        limits = translate_guards(program, shapes, names, log)
        merged = _merge_equal_names(names, limits)
        if merged != names:
            names, limits = merged, translate_guards(program, shapes, merged, log)
        check_specialized(limits, shapes.leaves, log)
        _check_example(limits, shapes.leaves)
        return names, aliases, limits


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
    try:
        limits.check_example(inputs)
    except CaptureError as error:
        # With a cause: the model itself may fail on the example.
        raise CaptureError(error.message, hint=error.hint) from error
