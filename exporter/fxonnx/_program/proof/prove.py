"""Comparison of the captured program with the model, for captures that depart from plain torch.export."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram

from fxonnx_translations._builder.initializers import has_content
from fxonnx_translations._torch_compat import pytree

from ..._capture import Capture
from ..._capture.eager_runs import error_of_model
from ..._capture.patches import Patch, applied
from ..._capture.rewriting import SIZE_BRANCH
from ..._capture.suspicions.departures import DepartureKind
from ..._comparison import OutputComparison, compare
from ..._cost import export_seconds, forward_seconds
from ..._written_parameters import written_parameters
from ...errors import ArgumentError, CaptureError
from ..call_binding import BoundCall, bind_call
from ..random_outputs import can_perturb, copied_weights, is_smaller, perturbed, perturbed_weights
from .coverage import CodePath, Coverage
from .record import CANNOT_RUN, Proof, ProofRun, unproved
from .runs import CapturedRunner, ModelRunner, Outcome, TooManyCalls
from .variations import Variation, sequences, variations, with_other_values

__all__ = ["Prover", "obstacle", "prove"]

_MAX_RUNS = 32
# Calls of loop bodies in one run, and of torch's functions for each of them.
_MAX_ITERATIONS = 1000
_CALLS_PER_ITERATION = 100
# After so many runs at a size, its loops are taken to have too many iterations for all values.
_MOST_ENDLESS = 2
# Without a departure, the comparison at the example takes 2 to 5 ms up to this size, and 3 to 6 % of the export beyond.
_MAX_PLAIN_NODES = 128
_MAX_PLAIN_SHARE = 0.02
_REMEDY_OF_DEPARTURES = (
    "write what these lines do with tensor operators (torch.where, torch.cond), and copy tensors with clone() before "
    "writing to them"
)
_REMEDY = (
    "during the capture, Python sees symbolic sizes (torch.SymInt) and fake tensors: look for code that depends on "
    "types, on identities, or on state outside of tensors"
)
_REMEDY_OF_STATE = (
    "write with tensor operators what reads the state in Python (torch.where, index_copy_), or pass the state to "
    "forward as an input"
)
_NOT_VALID = ProofRun("example", "skipped", message="the program is not valid for it")
_UNSTABLE = "unstable: the model differs as much from itself after a change of 1e-6 in its inputs or weights"
_EXPORTING = tuple(
    Patch(f"torch.compiler:{name}", lambda original: True, "a model may branch on it, as it did during the capture")
    for name in ("is_exporting", "is_compiling", "is_dynamo_compiling")
)


def prove(capture: Capture, model: Any, *, is_stateful: bool = False) -> Proof:
    """Run the model and the captured program on the same inputs, and compare what they return and write.

    Captures that depart from plain torch.export are compared at the example, at other sizes and at other values until
    every branch and every loop has been exercised, also at each of the other sizes, as far as such inputs are found.
    Other captures are compared at the example only, and only if a forward is short. Programs that take their state as
    inputs are also compared in several calls in a row.

    Args:
        capture: The captured program, with all its constraints.
        model: The user's model.
        is_stateful: Whether state that a call leaves has to be an input of the next one.

    Returns:
        The record.

    Raises:
        CaptureError: If they differ; the error names the constructs and both values.
    """
    program = capture.exported_program
    # Also without a captured update, which may have been lost.
    is_stateful = is_stateful and isinstance(model, torch.nn.Module) and _has_state(capture, model)
    departures = tuple(dict.fromkeys(capture.departures))
    is_large = not departures and len(program.graph.nodes) > _MAX_PLAIN_NODES
    if is_large and not is_stateful:
        return Proof()
    forward, whole = forward_seconds(program), export_seconds(program)
    is_large |= not departures and forward > _MAX_PLAIN_SHARE * whole
    if is_large and not is_stateful:
        return Proof()
    reason, refusal = obstacle(capture, model), capture.refusal
    if not reason and forward > whole and refusal is None:
        reason = "a forward takes longer than the export"
    if reason:
        if refusal is not None:
            raise _undecided(refusal, reason)
        return Proof(
            departures, skipped=reason, unexercised=tuple(unproved(one.line, one.detail) for one in departures)
        )
    prover = Prover(capture, model)
    # The capture has run all branches and loops at sizes on both sides.
    has_both = any(one.construct == SIZE_BRANCH for one in capture.rewrites)
    limit = max(1, min(_MAX_RUNS, int(whole / max(forward, 1e-9)))) if departures else int(not is_large)
    runs: list[ProofRun] = []
    for variation in variations(capture, prover.example):
        prover.coverage.begin()
        is_needed = variation.is_required or bool(prover.coverage.missing())
        # The branch for other values may depend on sizes as well.
        has_values = variation.has_other_sizes and not has_both
        endless = prover.endless
        for one in with_other_values(capture, variation) if has_values else (variation,):
            if len(runs) == limit or not (is_needed if one is variation else prover.coverage.has_untaken):
                break
            if prover.endless == endless + _MOST_ENDLESS:
                break
            is_long = forward * _growth(prover.example, one) > whole
            done = _skipped(one) if is_long else prover.run(one)
            if done is not None:
                runs.append(done)
    example = next((run for run in runs if run.inputs == "example"), _NOT_VALID)
    if refusal is not None and example.status != "equal":
        raise _undecided(refusal, example.message) if prover.raised is None else error_of_model(prover.raised, model)
    sequence = _sequence(capture, prover, forward, whole) if is_stateful else None
    missing = () if has_both else prover.coverage.missing()
    if departures and not any(run.status == "equal" for run in runs):
        missing += tuple(unproved(one.line, one.detail) for one in departures)
    return Proof(departures, tuple(runs), missing, sequence=sequence)


def _undecided(refusal: CaptureError, reason: str) -> CaptureError:
    """The error of a departure, with the reason for which no run at the example has decided about it."""
    if refusal.__cause__ is not None:
        # An error of torch.export, which the attempts before have explained.
        return refusal
    text = f"{refusal.message}\n  not compared with the model at the example: {reason}"
    return CaptureError(text, hint=refusal.hint)


def _has_state(capture: Capture, model: torch.nn.Module) -> bool:
    """Whether there are buffers or other tensors to which forward may write, or parameters to which it writes."""
    program = capture.exported_program
    has_tensors = bool(program.constants) or next(model.buffers(), None) is not None
    return has_tensors or bool(written_parameters(program))


def _sequence(capture: Capture, prover: Prover, forward: float, whole: float) -> ProofRun | None:
    """Compare calls in a row, of which each starts from the state that the one before left; None if there are none."""
    found: list[ProofRun] = []
    for sequence in sequences(capture, prover.example):
        largest = sum(_growth(prover.example, sequence, number) for number in range(len(sequence.calls)))
        done = _skipped(sequence) if forward * largest > whole else prover.run(sequence)
        if done is not None:
            found.append(done)
        if done is not None and done.calls == len(sequence.calls):
            break
    return max(found, key=lambda one: (one.status == "equal", one.calls), default=None)


def _growth(example: BoundCall, variation: Variation, number: int = 0) -> float:
    """How many times as many elements as the example has the inputs of a call of a variation have."""
    counts = [
        sum(leaf.numel() for leaf in pytree.tree_leaves(call) if isinstance(leaf, torch.Tensor))
        for call in ((example.args, example.kwargs), variation.calls[number])
    ]
    return counts[1] / max(counts[0], 1)


def _skipped(variation: Variation) -> ProofRun:
    return ProofRun(variation.label, "skipped", message="a forward takes longer than the export")


def obstacle(capture: Capture, model: Any) -> str:
    """The reason for which the model cannot run; "" if it can."""
    if isinstance(model, torch.export.ExportedProgram):
        return "the model is an ExportedProgram"
    tensors = [*capture.exported_program.state_dict.values(), *capture.exported_program.constants.values()]
    tensors += pytree.tree_leaves(capture.exported_program.example_inputs)
    if isinstance(model, torch.nn.Module):
        tensors += [*model.parameters(), *model.buffers()]
    if any(isinstance(one, torch.Tensor) and not has_content(one) for one in tensors):
        return "the weights or inputs have no values"
    if any("quantized" in getattr(node.target, "namespace", "") for node in capture.exported_program.graph.nodes):
        return "quantized operators of eager torch round in other places"
    return ""


class Prover:
    """The comparisons of one proof.

    Args:
        capture: The captured program.
        model: The user's model.
    """

    def __init__(self, capture: Capture, model: Any) -> None:
        self._capture = capture
        self._forward = getattr(model, "forward", None)
        self._model = ModelRunner(model, capture)
        self._program = CapturedRunner(capture)
        self.coverage = Coverage(capture.exported_program.graph_module)
        self._half = _half_dtype(capture.exported_program)
        self.raised: BaseException | None = None
        """The model's own error at the example."""
        self.endless = 0
        """The number of runs that were ended because of a loop with too many iterations."""
        args, kwargs = capture.exported_program.example_inputs
        self.example: BoundCall = self._bind(args, kwargs)

    def _bind(self, args: Any, kwargs: Any) -> BoundCall:
        program, frozen = self._capture.exported_program, self._capture.inputs.frozen
        return bind_call(program, args, kwargs, self._forward, frozen)

    def run(self, variation: Variation, expected: Outcome | BaseException | None = None) -> ProofRun | None:
        """Compare both at one set of inputs; None if the program is not valid for them.

        Args:
            variation: The inputs.
            expected: The outcome of the model, if it has run.
        """
        variation = self._with_repeated(variation)
        # First, because the model's own loops may not end for other values than the example's.
        limit = None if variation.label == "example" else _MAX_ITERATIONS
        actual = _outcome(lambda: self._program.run(variation.calls, limit))
        if isinstance(actual, ArgumentError):
            return None
        if isinstance(actual, TooManyCalls):
            self.endless += 1
            return ProofRun(variation.label, "skipped", message=str(actual))
        calls = variation.calls
        if expected is None:
            expected = _outcome(lambda: self._model.run(calls, limit=limit and limit * _CALLS_PER_ITERATION))
        if not isinstance(expected, Outcome):
            self.raised = expected if variation.label == "example" else self.raised
            return ProofRun(variation.label, "skipped", message=f"the model raises {type(expected).__name__}")
        if not isinstance(actual, Outcome):
            # torch cannot run some operators outside of a capture; an ONNX model that fails is not silently wrong.
            text = f"{CANNOT_RUN}: {type(actual).__name__}"
            return ProofRun(variation.label, "skipped", message=text)
        # A sequence ends before the first call that one of them refuses.
        common = min(len(expected.ends), len(actual.ends))
        variation, expected, actual = variation.first(common), expected.first(common), actual.first(common)
        if len(calls) > common == 1:
            return ProofRun(variation.label, "skipped", message="the second call fails")
        largest, problem = self._compared(expected, actual)
        if problem and limit is not None:
            # While calls are counted, torch does not take some of its fast paths, whose results may be others.
            plain = _outcome(lambda: self._model.run(variation.calls))
            if not isinstance(plain, Outcome):
                return ProofRun(variation.label, "skipped", message=f"the model raises {type(plain).__name__}")
            expected = plain.first(common)
            largest, problem = self._compared(expected, actual)
        if problem:
            if self._differs_from_itself(variation, expected) or self._is_random(variation, actual):
                return ProofRun(variation.label, "skipped", message="the results are random")
            if not self._is_equal_in_export(variation, actual):
                if self._is_unstable(variation, expected, actual):
                    return ProofRun(variation.label, "skipped", message=_UNSTABLE)
                raise self._capture.refusal or self._error(variation, problem)
        self.coverage.add(self._program.calls)
        return ProofRun(variation.label, "equal", largest, calls=common)

    def results(self, variation: Variation) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The results of the model and of the program; none of one that fails."""
        calls = self._with_repeated(variation).calls
        found = (
            _outcome(lambda: self._program.run(calls, _MAX_ITERATIONS)),
            _outcome(lambda: self._model.run(calls, limit=_MAX_ITERATIONS * _CALLS_PER_ITERATION)),
        )
        program, model = (one.values if isinstance(one, Outcome) else {} for one in found)
        return model, program

    def has_path(self, variation: Variation, path: CodePath) -> tuple[bool, Outcome | BaseException]:
        """Whether the model runs the operators of a code path, or fails, which is for ``run``; with its outcome."""
        calls = self._with_repeated(variation).calls
        outcomes: list[Outcome | BaseException] = []
        is_same = path.is_same(
            lambda: outcomes.append(_outcome(lambda: self._model.run(calls))),
            lambda: _outcome(lambda: self._program.run(calls)),
            self._model.model,
            has_loops=self.coverage.has_loops,
        )
        return is_same or not isinstance(outcomes[0], Outcome), outcomes[0]

    def fails(self, variation: Variation) -> bool:
        """Whether the model raises an error."""
        calls = self._with_repeated(variation).calls
        limit = _MAX_ITERATIONS * _CALLS_PER_ITERATION
        return not isinstance(_outcome(lambda: self._model.run(calls, limit=limit)), Outcome)

    def _with_repeated(self, variation: Variation) -> Variation:
        """Inputs in which a tensor that the example has twice is one object again."""
        return replace(variation, calls=tuple(map(self._capture.inputs.with_repeated, variation.calls)))

    def _differs_from_itself(self, variation: Variation, expected: Outcome) -> bool:
        """Whether the model returns other values in a second run, with other random numbers."""
        again = self._model.run(variation.calls, is_seeded=False)
        return bool(self._compared(expected, again)[1])

    def _is_random(self, variation: Variation, actual: Outcome) -> bool:
        """Whether the captured program returns other values with other random numbers, or other uninitialized memory.

        The model may have set the seed itself.
        """
        again = self._program.run(variation.calls, is_seeded=False)
        return bool(self._compared(actual, again)[1])

    def _is_unstable(self, variation: Variation, expected: Outcome, actual: Outcome) -> bool:
        """Whether small changes of inputs or weights change the model's results as much, as where scores tie."""
        unexplained = set(expected.values)
        if unexplained != set(actual.values):
            return False
        for again in self._perturbed_runs(variation, expected):
            if not isinstance(again, Outcome) or expected.values.keys() != again.values.keys():
                continue
            unexplained = {
                name
                for name in unexplained
                if not self._is_explained(name, expected.values[name], actual.values[name], again.values[name])
            }
            if not unexplained:
                return True
        return False

    def _perturbed_runs(self, variation: Variation, expected: Outcome) -> Iterator[Outcome | BaseException]:
        """Runs of the model with slightly changed inputs, and then weights, through which scores may tie as well."""
        changed = replace(variation, calls=pytree.tree_map_only(torch.Tensor, perturbed, variation.calls))
        calls = self._with_repeated(changed).calls
        yield _outcome(lambda: self._model.run(calls))
        weights = self._model.weights
        if not can_perturb(weights):
            return
        copies = copied_weights(weights)
        unchanged = _outcome(lambda: self._model.run(variation.calls, weights=copies))
        # A model that keeps its gradients, or asks for its weights by identity, differs with copies as such.
        if isinstance(unchanged, Outcome) and not self._compared(expected, unchanged)[1]:
            others = perturbed_weights(weights)
            yield _outcome(lambda: self._model.run(variation.calls, weights=others))

    def _is_explained(self, name: str, expected: Any, actual: Any, again: Any) -> bool:
        """Whether a result is the model's, or the model's own differs as much in another run."""
        row = self._row(name, *_as_tensors(expected, actual))
        own = self._row(name, *_as_tensors(expected, again))
        if row is None or own is None:
            return False
        return row.status != "mismatch" or (own.status == "mismatch" and not is_smaller(own, row))

    def _row(self, name: str, one: Any, other: Any) -> OutputComparison | None:
        """The comparison of two tensors; None for other values."""
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            return None
        if one.dtype == other.dtype == torch.float32 and self._half is not None:
            one, other = one.to(self._half), other.to(self._half)
        return compare([name], [one], [_real(other)])[0]

    def _is_equal_in_export(self, variation: Variation, actual: Outcome) -> bool:
        """Whether the model returns these values if ``torch.compiler.is_exporting`` is true, on which it may branch.

        torch branches on it as well: it calls scripted functions in Python, whose results may differ from the script's.
        """
        if any(one.kind in (DepartureKind.SCRIPT, DepartureKind.LAST) for one in self._capture.departures):
            return False
        with applied(_EXPORTING):
            expected = _outcome(lambda: self._model.run(variation.calls, is_export=True))
        return isinstance(expected, Outcome) and not self._compared(expected, actual)[1]

    def _compared(self, expected: Outcome, actual: Outcome) -> tuple[float, str]:
        """The largest difference of two outcomes, and a description of the first mismatch or ""."""
        names = list(dict.fromkeys([*expected.values, *actual.values]))
        largest = 0.0
        for name in names:
            if name not in expected.values or name not in actual.values:
                which = "the model" if name in expected.values else "the captured program"
                return largest, f"{name}: only {which} {'returns' if name.startswith('output') else 'changes'} it"
            one, other = _as_tensors(expected.values[name], actual.values[name])
            row = self._row(name, one, other)
            if row is None:
                if one != other:
                    return largest, f"{name}: {other!r}, the model returns {one!r}"
                continue
            if row.status == "mismatch":
                return largest, f"{name}: {row.message}{_values(one, other)}"
            largest = max(largest, row.max_abs or 0.0)
        return largest, ""

    def _error(self, variation: Variation, problem: str) -> CaptureError:
        lines = [f"  {one}" for one in dict.fromkeys(self._capture.departures)]
        departs = "\nthe capture departs from torch.export at:\n" + "\n".join(lines) if lines else ""
        inputs = "the example" if variation.label == "example" else f"inputs made of the example: {variation.label}"
        if len(variation.calls) > 1:
            inputs = f"{len(variation.calls)} calls in a row: {variation.label}"
        return CaptureError(
            f"the captured program does not compute what the model computes, at {inputs}:\n  {problem}{departs}",
            hint=_REMEDY_OF_STATE if len(variation.calls) > 1 else _REMEDY_OF_DEPARTURES if lines else _REMEDY,
        )


def _outcome(run: Callable[[], Outcome]) -> Outcome | BaseException:
    """The outcome of a run, or its error."""
    try:
        return run()
    except (Exception, TooManyCalls) as error:  # noqa: BLE001 - a model may raise anything
        return error


def _half_dtype(program: ExportedProgram) -> torch.dtype | None:
    """The dtype of half precision in which a program computes, by which its results in float32 are rounded too."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    return next((dtype for dtype in (torch.bfloat16, torch.float16) if dtype in dtypes), None)


def _as_tensors(one: Any, other: Any) -> tuple[Any, Any]:
    """Both values as tensors; the captured program returns a list of dynamic length as a stacked tensor."""
    if isinstance(one, list | tuple) and isinstance(other, torch.Tensor):
        one = torch.stack(list(one)) if one else other.new_empty(other.shape)
    if isinstance(one, bool | int | float) and isinstance(other, bool | int | float):
        one = torch.tensor(one, device="cpu")
    if isinstance(one, torch.Tensor) and isinstance(other, bool | int | float):
        other = torch.tensor(other, device="cpu")
    if isinstance(other, torch.Tensor) and isinstance(one, bool | int | float):
        one = torch.tensor(one, dtype=other.dtype if isinstance(one, float) else None, device="cpu")
    return one, other


def _real(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _values(expected: torch.Tensor, actual: torch.Tensor) -> str:
    """The values of both at the first element that differs."""
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return ""
    one, other = expected.detach().cpu(), actual.detach().cpu()
    if not one.numel():
        return ""
    # Not the first one, which may only be rounded otherwise. NaN on one side is the largest difference.
    difference = (one.to(torch.complex128) - other.to(torch.complex128)).abs().nan_to_num(torch.inf)
    difference[(one != one) & (other != other)] = 0
    place = tuple(int(index) for index in torch.unravel_index(difference.argmax(), difference.shape))
    return f"; at {list(place)} {other[place].item()!r}, the model {one[place].item()!r}"
