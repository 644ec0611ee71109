"""The plan of an attempt to capture a model, its outcome, the capture or a failure, and the record of all attempts."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from .._callers_autocast import Autocast
from .._progress import Counter
from .._request import Request
from ..errors import CaptureError
from .constraints.constraint import SizeLimits
from .constraints.guard_recorder import DataEdge, Guard, GuardLog
from .constraints.specialized_dims import SpecializedDim
from .data_dependence.assumption import Assumption
from .data_dependence.weight_reads import WeightReads
from .eager_runs import user_line
from .function_transforms import FunctionCall, TransformTracing
from .inputs.example_inputs import InputTable
from .rewriting import Rewrite, Rewriting
from .shapes.dynamic_dims import ExampleCall
from .shapes.dynamic_shapes import DynamicShapes
from .shapes.spec_keys import AxisNames
from .suspicions.attribute_changes import AttributeChange
from .suspicions.departures import Departure
from .traced_states import Reassignment, UnknownStates

__all__ = [
    "ALIASES_KEY",
    "Attempt",
    "AttemptLog",
    "Capture",
    "CapturePlan",
    "Failure",
    "LoopRewriting",
    "SymbolicIntegers",
    "held_torch_log",
]

ALIASES_KEY = "pkg.fxonnx.dim_aliases"
"""Key of the dim aliases in the model's metadata: JSON, dim name to list of aliases."""


@dataclass(frozen=True)
class Capture:
    """The captured program with the names of its dims, inputs and outputs.

    Attributes:
        exported_program: The captured program, not decomposed.
        request: The export as it was asked for.
        dim_names: torch's symbol (``s77``) to the user's dim name, for the dims the user named. Names are unique.
        inputs: The leaves of the example inputs that the program takes in another form than the model.
        output_paths: Index of the user output to path, for outputs in a dict, a dataclass or an object.
        dim_aliases: A name in ``dim_names`` to the user's other names for dims that are always equal to it.
        assumptions: The resolutions of guards on values of tensors.
        weight_reads: The values of weights that Python read, which are constants of the program.
        output_dims: Index of the user output to axis to the user's name of a size computed from other sizes.
        limits: The sizes for which the program is valid.
        more_inputs: The additional examples, positional and keyword inputs each.
        functions: The autograd functions with a ``symbolic``; the program refers to them by index.
        training: Names of the modules that were in training mode during the capture; None if they are not known.
        grad_mode: Whether gradients were enabled during the capture; None if it is not known.
        autocast: The caller's autocast during the capture.
        rewrites: The Python control flow that was captured as operators.
        departures: The places in which the capture departs from plain torch.export.
        output_lists: Indices of the user outputs that are lists of a dynamic number of tensors; the program returns the
            stacked tensors.
        attribute_changes: The Python attributes whose changes in one call affect the next.
        reassigned: The buffers that forward replaces by tensors of another kind, whose updates the program lacks.
        attempts: The calls of torch.export, of which the last one that captured the model gave the program.
        data_edges: The conditions that were answered as for all sizes but one, until the proof confirms them.
    """

    exported_program: ExportedProgram
    request: Request = field(default_factory=Request)
    dim_names: Mapping[sympy.Symbol, str] = field(default_factory=dict)
    dim_aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    limits: SizeLimits = field(default_factory=SizeLimits)
    inputs: InputTable = field(default_factory=InputTable)
    output_paths: Mapping[int, str] = field(default_factory=dict)
    more_inputs: tuple[ExampleCall, ...] = ()
    functions: tuple[FunctionCall, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    weight_reads: WeightReads = field(default_factory=WeightReads)
    output_dims: Mapping[int, AxisNames] = field(default_factory=dict)
    training: frozenset[str] | None = None
    grad_mode: bool | None = None
    autocast: Autocast = ()
    rewrites: tuple[Rewrite, ...] = ()
    departures: tuple[Departure, ...] = ()
    output_lists: frozenset[int] = frozenset()
    attribute_changes: tuple[AttributeChange, ...] = ()
    reassigned: tuple[Reassignment, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    data_edges: tuple[DataEdge, ...] = ()

    @property
    def refusal(self) -> CaptureError | None:
        """The error that is raised unless the program is proved: of the first departure that has one."""
        return next((one.refusal for one in self.departures if one.refusal is not None), None)

    @property
    def source(self) -> torch.nn.Module | None:
        """The captured module; None for a scripted function or an ``ExportedProgram``."""
        return self.request.model if isinstance(self.request.model, torch.nn.Module) else None


@dataclass(frozen=True)
class Failure:
    """The outcome of an attempt that did not capture the model.

    Attributes:
        error: The error, which is raised unless another plan works.
        torch_error: The error of torch.export, if it is not one of fxonnx.
        is_exported: Whether the call of torch.export succeeded, and a later step failed.
        has_full_masks: Whether the model asked for masks that hide nothing.
        asks_compiling: Whether the model asked if it is compiled.
        has_long_loop: Whether the attempt ended at a long loop over a dynamic dim.
        has_no_fewer_limits: Whether it ended since it had all guards of ``CapturePlan.known``, or longer ones.
        transforms: How ``torch.func`` transforms have to be traced.
        guard_inputs: Labels of the inputs on which the guard depends that failed.
        guard: The failure at a data-dependent guard, if its control flow cannot be rewritten.
    """

    error: CaptureError
    torch_error: Exception | None = None
    is_exported: bool = False
    has_full_masks: bool = False
    asks_compiling: bool = False
    has_long_loop: bool = False
    has_no_fewer_limits: bool = False
    transforms: TransformTracing = field(default_factory=TransformTracing)
    guard_inputs: tuple[str, ...] = ()
    guard: Failure | None = None


@dataclass(frozen=True)
class SymbolicIntegers:
    """Files in which ``int``, ``float`` and ``len`` keep sizes symbolic.

    Attributes:
        files: The files.
        fewer_files: The files in the last error about dims of one size, to try if the attempt with ``files`` fails.
        failure: The first failure with the fewest specialized dims.
        best: The capture that restricts the fewest sizes.
    """

    files: frozenset[str] = frozenset()
    fewer_files: frozenset[str] | None = None
    failure: Failure | None = None
    best: Capture | None = None


@dataclass(frozen=True)
class LoopRewriting:
    """Loops that are rewritten since they limit the inputs of the model.

    Attributes:
        before: The capture before it, or the failure by specialized dims.
        rewriting: The functions that contain them.
    """

    before: Capture | Failure
    rewriting: Rewriting


@dataclass(frozen=True)
class CapturePlan:
    """How the next attempt captures the model.

    After the request, the fields have the order of the strategies that change them: ``changed`` resets all later ones.

    Attributes:
        request: The export as it was asked for.
        states: The parameters and buffers that become inputs.
        edges: The lines whose conditions on sizes are answered for the example, if others are answered beside their
            edges; None if all are answered for the example.
        sizes: The functions with conditions on sizes that limit the inputs, of which both branches are captured.
        shapes: The dynamic dims.
        specialized: The dims that are static because the model specializes them.
        known: The guards that limited an earlier capture; an attempt that records all of them again ends early,
            since it would be limited in the same way.
        unrolls_long_loops: Whether long loops over dynamic dims are unrolled; otherwise they end an attempt.
        has_long_loop: Whether one has ended an attempt.
        loops: The loops that are rewritten since they limit the inputs.
        integers: The files in which ``int``, ``float`` and ``len`` keep sizes symbolic.
        unsigned: The failure before slices between sizes of unknown sign had the signs of the example.
        resolves_guards: Whether data-dependent guards are resolved by concrete values and by checks that only raise.
        has_data_edges: Whether an attempt has met a condition on a single size that depends on data.
        beside: The failure before those on single sizes were answered as for all other sizes.
        follows_example: Whether they are resolved by the example.
        guard: The failure at a data-dependent guard for which control flow is rewritten.
        rewriting: The functions with this control flow.
        export_failure: The failure before masks were omitted, before code for eager mode, or before strict mode.
        strict: Whether TorchDynamo captures the model.
        plain: Whether torch.export is called without patches for reach, after all strategies have failed.
        runs_eager_code: Whether ``torch.compiler.is_compiling`` is false for the model.
        skips_masks: Whether masks that hide nothing are omitted.
        transforms: How ``torch.func`` transforms are traced.
        refined: Name of a Dim to the one that torch suggests.
        shared: Index of a leaf that is the same tensor for the model as an earlier one, to the index of that one.
        log: Receives the guards on sizes.
        change: The difference from the attempt before.
    """

    request: Request
    states: UnknownStates
    edges: frozenset[str] | None
    sizes: Rewriting | None
    shapes: DynamicShapes
    specialized: tuple[SpecializedDim, ...] = ()
    known: frozenset[Guard] = frozenset()
    unrolls_long_loops: bool = False
    has_long_loop: bool = False
    loops: LoopRewriting | None = None
    integers: SymbolicIntegers = SymbolicIntegers()
    unsigned: Failure | None = None
    resolves_guards: bool = False
    has_data_edges: bool = False
    beside: Failure | None = None
    follows_example: bool = False
    guard: Failure | None = None
    rewriting: Rewriting | None = None
    export_failure: Failure | None = None
    strict: bool = False
    plain: bool = False
    runs_eager_code: bool = False
    skips_masks: bool = False
    transforms: TransformTracing = field(default_factory=TransformTracing)
    refined: Mapping[str, Any] = field(default_factory=dict)
    shared: Mapping[int, int] = field(default_factory=dict)
    log: GuardLog = field(default_factory=GuardLog)
    change: str = ""

    @property
    def has_concrete_values(self) -> bool:
        """Whether the values of tensors that depend on no input are known."""
        return bool(self.request.frozen) or self.resolves_guards or self.loops is not None or self.sizes is not None

    @property
    def rewritten(self) -> Rewriting | None:
        """The functions that run in a transformed form."""
        return self.rewriting or self.sizes if self.loops is None else self.loops.rewriting

    def with_answers(
        self,
        last: CapturePlan,
        *,
        edges: frozenset[str] | None = None,
        sizes: Rewriting | None = None,
        keeps_signs: bool = True,
    ) -> CapturePlan:
        """The first plan of a series of attempts in which conditions are not answered for the example.

        It begins with the files in which sizes are symbolic in the last of the attempts without it, and with the signs
        of the slices there if these have led to a program.
        """
        return dataclasses.replace(
            self,
            edges=edges,
            sizes=sizes,
            integers=SymbolicIntegers(last.integers.files),
            unsigned=last.unsigned if keeps_signs else None,
            log=GuardLog(),
            change="branches for single sizes are left out" if sizes is None else "both branches on sizes are captured",
        )

    def changed(self, change: str = "", **values: Any) -> CapturePlan:
        """The plan of the next attempt: with new values of fields, and without values of the fields after them.

        Args:
            change: The difference, for the report, if it is not the name of the strategy.
            values: Values by field; other fields after the first of them begin anew.
        """
        names = [each.name for each in dataclasses.fields(self)]
        kept = {name: getattr(self, name) for name in names[: min(map(names.index, values))]}
        return CapturePlan(**{**kept, **values, "change": change})


@dataclass(frozen=True)
class Attempt:
    """One call of torch.export.

    Attributes:
        change: The difference from the attempt before; "" for the first one.
        seconds: Wall-clock time.
        failure: The first line of torch.export's error, with the user's line; "" if it captured the model.
        log: The warnings and errors that torch logged.
    """

    change: str
    seconds: float
    failure: str = ""
    log: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.change or 'first attempt'}: {self.failure or 'captured'} ({self.seconds:.2f} s)"


@dataclass(frozen=True)
class AttemptLog:
    """The attempts of an export so far.

    Attributes:
        attempts: They.
        shows_torch_log: Let torch log its warnings and errors, instead of recording them.
    """

    attempts: list[Attempt] = field(default_factory=list)
    shows_torch_log: bool = False

    @contextmanager
    def timed(self, change: str) -> Iterator[None]:
        """Record the body of the ``with`` statement as an attempt, which differs from the one before by a change."""
        Counter("attempts").add(len(self.attempts) + 1)
        failure, start = "", time.perf_counter()
        with nullcontext(()) if self.shows_torch_log else held_torch_log() as log:
            try:
                yield
            except BaseException as error:
                failure = next(iter(str(error).splitlines()), "") or type(error).__name__
                if isinstance(error, GuardOnDataDependentSymNode) or "data-dependent expression" in failure:
                    failure = "the value of a tensor has to be known"  # torch's text has its own symbols
                line = user_line(error)
                failure += f" at {line}" if line else ""
                raise
            finally:
                self.attempts.append(Attempt(change, time.perf_counter() - start, failure, tuple(log)))


class _Held(logging.Filter):
    """Holds back the warnings and errors of one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._thread = threading.get_ident()
        self._formatter = logging.Formatter("%(levelname)s %(name)s: %(message)s")

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the text of a warning or error instead of logging it."""
        if record.levelno < logging.WARNING or record.thread != self._thread:
            return True
        try:
            self.texts.append(self._formatter.format(record))
        except (TypeError, ValueError):  # logging itself reports wrong arguments and goes on
            self.texts.append(str(record.msg))
        return False


@contextmanager
def held_torch_log() -> Iterator[list[str]]:
    """Hold back the warnings and errors that torch prints; handlers of the user get them.

    The environment variable ``TORCH_LOGS`` asks for torch's log and disables this.
    """
    held = _Held()
    handlers = [] if os.environ.get("TORCH_LOGS") else list(_handlers())
    for handler in handlers:
        handler.addFilter(held)
    try:
        yield held.texts
    finally:
        for handler in handlers:
            handler.removeFilter(held)


def _handlers() -> Iterator[logging.Handler]:
    """The handlers that torch has added to its loggers, which have a formatter of torch."""
    for name, logger in logging.root.manager.loggerDict.copy().items():
        if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger):
            for handler in logger.handlers:
                if type(handler.formatter).__module__.partition(".")[0] == "torch":
                    yield handler
