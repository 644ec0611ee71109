"""One attempt to capture a model: torch.export with a plan, and the names and limits of the dims of its program.

An attempt ends early where it is certain that a dynamic dim has one size. Modules in training mode are found here.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import BuiltinFunctionType, CellType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from fxonnx_translations._optional_names import MissingNameError

from .._callers_autocast import callers_autocast
from .._request import Request
from ..errors import ArgumentError, CaptureError, ExportError
from .constraints.constraint import SizeLimits
from .constraints.guard_recorder import Guard, GuardLog
from .constraints.guard_translation import translate_guards
from .constraints.specialized_dims import SpecializedDim, SpecializedDimsError, check_specialized, input_source
from .data_dependence.assumption import AssumptionLog, asking_frame
from .data_dependence.checks import inputs_of_guard, raises_otherwise
from .data_dependence.concrete_values import ConcreteValues, concrete_values
from .data_dependence.weight_reads import WeightReads
from .function_transforms import FunctionCall, TransformTracing, recorded_function_calls
from .inputs.converted_inputs import ListResults, recorded_list_results, with_scalar_branch
from .inputs.example_inputs import BoundInputs
from .inputs.tensor_memory import assumed_equal, reject_shared_writes, with_separate_inputs
from .operand_types import state_default_dtypes
from .patches.libraries import FullMasks, recorded_full_masks
from .patches.size_numbers import symbolic_integers
from .patches.tracing_state import CompilingState, recorded_compiling_state
from .plan import AttemptLog, Capture, CapturePlan, Failure
from .rewriting import rewritten_functions
from .rewriting.analysis import begins_loop
from .rewriting.operators.values import SharedMemory
from .shapes.dim_names import name_dims
from .shapes.dynamic_shapes import DynamicShapes, Leaf, is_auto
from .shapes.spec_keys import DynamicAxes, name_output_dims
from .suspicions.departures import Departure, DepartureKind, record_departure, recorded_departures
from .suspicions.introspection import truth_values
from .torch_export import explained_error, export_module
from .traced_states import Reassignment, merge_tied_tensors

__all__ = [
    "CaptureTask",
    "EarlyEnd",
    "EarlyEnds",
    "names_of_dims",
    "reject_enabled_observers",
    "results_depend_on_mode",
    "training_modules",
]


_EDGE = "a branch for single sizes that depend on data"
_KNOWN = "it has the limits of the capture before it"
_MANY = "it has many limits"
_MOST_GUARDS = 64
"""Of a capture with the signs of the example: a search that compares costs of sizes is the example's."""
_LONG = "it has limits of more dims than the capture before it"


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
        rewritten_functions(plan.rewritten, plan.log, model) as memory,
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
        end = EarlyEnds(
            plan.shapes.leaves,
            plan.unrolls_long_loops or plan.plain,
            self.request.strict_shapes,
            {*plan.known},
            has_kept_edges=bool(plan.edges),
            most_guards=math.inf if plan.unsigned is None else _MOST_GUARDS,
        )
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
        if end.has_known_limits or end.has_long_limit:
            return Failure(CaptureError(_KNOWN if end.has_known_limits else _LONG), has_no_fewer_limits=True)
        if len(plan.log.guards) > end.most_guards:
            return Failure(CaptureError(_MANY))
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


_MIN_SIZE = 32
_MOST_OPERATIONS = 32
"""In a guard of several dims, if the answers beside some edges were wrong."""
_PLACE = re.compile(r"(.+):(\d+) in ")
_CONVOLUTION = "calc_conv_nd_return_shape"
"""Function of torch that compares the channels of an input and a weight."""


class EarlyEnd(BaseException):
    """Ends a capture; not an Exception, which models handle to select fallbacks."""


@dataclass
class EarlyEnds:
    """Ends a capture at the first loop, convolution or check of a dim that the user requested to be dynamic.

    Attributes:
        leaves: The leaves of the inputs.
        unrolls_long_loops: Whether long loops end no capture.
        strict_shapes: Whether only long loops end one: the error is about all dims.
        known: The guards of which the last one ends one.
        has_kept_edges: Whether a long relation of dims ends one.
        most_guards: The number of guards after which it ends.
        has_known_limits: Whether it ended at the last of the known guards.
        has_long_limit: Whether it ended at a long relation.
        found: The dim at which the capture ended.
        is_long_loop: Whether it ended at a loop.
    """

    leaves: Sequence[Leaf]
    unrolls_long_loops: bool = False
    strict_shapes: bool = False
    known: set[Guard] = field(default_factory=set)
    has_kept_edges: bool = False
    most_guards: float = math.inf
    has_known_limits: bool = False
    has_long_limit: bool = False
    found: SpecializedDim | None = None
    is_long_loop: bool = False
    _evaluations: Counter[str] = field(default_factory=Counter)
    _dims: dict[str, tuple[Leaf, int | None]] = field(init=False)

    def __post_init__(self) -> None:
        requested = ((leaf, axis) for leaf in self.leaves for axis, spec in leaf.dims.items() if not is_auto(spec))
        self._dims = {input_source(leaf, axis): (leaf, axis) for leaf, axis in requested}

    def watch(self, log: GuardLog) -> None:
        """Observe the guards of the capture."""
        log.observer = self._observe

    def _observe(self, log: GuardLog, guard: Guard) -> None:
        if len(log.guards) > self.most_guards:
            raise EarlyEnd(_MANY)
        if guard in self.known:
            # At another line, it may be one of a condition that a further attempt changes.
            self.known.remove(guard)
            self.has_known_limits = not self.known
            if self.has_known_limits:
                raise EarlyEnd(_KNOWN)
        symbols = guard.expression.free_symbols
        if self.has_kept_edges and len(symbols) > 1 and guard.expression.count_ops() > _MOST_OPERATIONS:
            # Those of the next layers are longer still, and no answer beside another edge avoids them.
            self.has_long_limit = True
            raise EarlyEnd(_LONG)
        if len(symbols) != 1:
            return
        (symbol,) = symbols
        size, dim = _fixed_size(guard.expression), self._requested(log.sources.get(symbol, ""), guard)
        if dim is None:
            return
        is_fixed = size is not None and symbol in guard.expression.args
        self.is_long_loop = self._is_at_long_loop(guard, size)
        if self.is_long_loop or (is_fixed and not self.strict_shapes and _is_certain()):
            self.found = dim
            raise EarlyEnd(dim.label)

    def _is_at_long_loop(self, guard: Guard, size: int | None) -> bool:
        if guard.line is None or self.unrolls_long_loops:
            return False
        self._evaluations[guard.line.place] += 1
        if (size is None or size < _MIN_SIZE) and self._evaluations[guard.line.place] < _MIN_SIZE:
            return False
        place = _PLACE.match(guard.line.place)
        return place is not None and begins_loop(place[1], int(place[2]))

    def _requested(self, source: str, guard: Guard) -> SpecializedDim | None:
        if source not in self._dims:
            return None
        leaf, axis = self._dims[source]
        size = leaf.value if axis is None else leaf.value.shape[axis]
        return SpecializedDim(leaf, axis, int(size), () if guard.line is None else (guard.line,))


def _fixed_size(guard: sympy.Basic) -> int | None:
    """The only size that a guard allows, if it is an equation."""
    numbers = [side for side in guard.args if side.is_Integer] if isinstance(guard, sympy.Eq) else []
    return int(numbers[0]) if numbers else None


def _is_certain() -> bool:
    """Whether no other size than that of the evaluated equation is valid."""
    asking = asking_frame()
    if asking is not None and raises_otherwise(asking):
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != _CONVOLUTION:
        frame = frame.f_back
    return frame is not None


_MODE_CHANGES = frozenset({"__init__", "eval", "train"})


def training_modules(model: Any) -> frozenset[str] | None:
    """Return the names of the modules that are in training mode; None if the model is not a module."""
    if not isinstance(model, torch.nn.Module):
        return None
    # Frozen scripted modules have no mode.
    return frozenset(name for name, module in model.named_modules() if getattr(module, "training", False))


def results_depend_on_mode(model: torch.nn.Module) -> bool:
    """Whether the results may differ in evaluation mode: a module in training mode whose code reads ``training``.

    Code that cannot be read counts; dropout with a probability of 0, norms without running statistics, and the modules
    of captured programs, whose graph has one mode and whose ``eval`` raises, do not.
    """
    captured = {part for module in model.modules() if _refuses_eval(module) for part in module.modules()}
    in_training = (module for module in model.modules() if getattr(module, "training", False))
    return any(_may_read_mode(module) for module in in_training if module not in captured)


def _refuses_eval(module: torch.nn.Module) -> bool:
    code = getattr(vars(module).get("eval"), "__code__", None)
    return code is not None and "NotImplementedError" in code.co_names


def _may_read_mode(module: torch.nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    if isinstance(module, torch.jit.ScriptModule) or any(hooks) or "forward" in vars(module):
        return True
    if type(module).__module__.startswith("torch.nn.modules."):
        if "running_mean" in module._buffers:
            return module._buffers["running_mean"] is not None
        for name in ("p", "dropout"):
            if isinstance(probability := getattr(module, name, None), int | float):
                return probability > 0
    seen: set[int] = set()
    return any(_reads_mode(method, seen) for method in _methods(type(module)))


def _methods(cls: type) -> Iterator[Any]:
    for base in cls.__mro__:
        if base not in (torch.nn.Module, object):
            for name, value in vars(base).items():
                function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if callable(function) and not isinstance(function, type) and name not in _MODE_CHANGES:
                    yield function


def _reads_mode(function: Any, seen: set[int]) -> bool:
    """Whether a function, one that it wraps or calls by its global name, reads ``training``, or has no code."""
    if id(function) in seen or isinstance(function, type):
        return False
    seen.add(id(function))
    if not isinstance(function, FunctionType):
        return not isinstance(function, BuiltinFunctionType | MethodType | ModuleType)
    names = set(_names(function.__code__))
    if "training" in names:
        return True
    called = [function.__globals__.get(name) for name in names]
    enclosed = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    others = [one for one in (*called, *enclosed) if isinstance(one, FunctionType) and not _is_torch(one)]
    return any(_reads_mode(one, seen) for one in others)


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a variable without a value
        return False


def _is_torch(function: FunctionType) -> bool:
    return (function.__module__ or "").partition(".")[0] == "torch"


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, str):  # getattr(self, "training")
            yield constant


def reject_enabled_observers(model: torch.nn.Module) -> None:
    """Reject a model prepared for quantization-aware training that still observes its activations.

    Raises:
        ArgumentError: If a fake quantization module updates its scale in each call.
    """
    enabled = [name for name, module in model.named_modules() if _is_observing(module)]
    if enabled:
        names = ", ".join(map(repr, enabled[:3])) + (", ..." if len(enabled) > 3 else "")
        package = type(model.get_submodule(enabled[0])).__module__.partition(".")[0]
        namespace = "torchao.quantization.pt2e" if package == "torchao" else "torch.ao.quantization"
        raise ArgumentError(
            "model",
            f"the observers of {names} are enabled: each call updates the scales of the fake quantization",
            hint=f"call model.apply({namespace}.disable_observer) before the export",
        )


def _is_observing(module: torch.nn.Module) -> bool:
    flag = module._buffers.get("observer_enabled")
    if flag is None or "fake_quant_enabled" not in module._buffers or not hasattr(module, "disable_observer"):
        return False
    return flag.numel() == 1 and not flag.is_meta and bool(flag.item())
