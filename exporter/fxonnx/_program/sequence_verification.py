"""Verification of a program with state in calls in a row: each starts from the state that the one before left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import torch

from .._capture import AssumptionKind
from .._capture.inputs.example_inputs import with_lists
from .._comparison import REFERENCE_TEXTS, OutputComparison, ReferenceName
from ..errors import ArgumentError, ExportError, RuntimeSessionError, VerificationError
from .call_binding import BoundCall
from .proof.variations import sequences
from .random_outputs import reruns_of, without_random_outputs
from .references import Reference, VerifiableProgram, copies, runs_in_float
from .session import Session, session_in_float
from .stateful import Calls, StatefulSession, has_state_inputs, read_states, session_outputs

__all__ = ["HINT", "program_in_a_row", "rows_in_a_row"]

HINT = (
    "each call in a row starts from the state that ONNX Runtime returned for the one before: look for code of the "
    "model that reads the state in Python"
)
"""The hint of an error about calls in a row."""
_Compare: TypeAlias = Callable[[Sequence[str], Sequence[Any], Sequence[Any]], list[OutputComparison]]
_Reference: TypeAlias = Callable[[Calls, Mapping[str, torch.Tensor]], Sequence[Sequence[Any]]]


def program_in_a_row(
    reference: Reference, call: BoundCall, compare: _Compare, *, other_sizes: bool
) -> list[OutputComparison]:
    """Compare a program that takes its state as inputs with a reference in calls in a row; nothing for other programs.

    Args:
        reference: The reference, with the program.
        call: The inputs of the first call.
        compare: Compares named outputs of the reference and of ONNX Runtime.
        other_sizes: Whether inputs of further calls have other sizes.

    Returns:
        One row for each output of the calls after the first.

    Raises:
        VerificationError: If ONNX Runtime fails in a call that the reference runs.
    """
    program = reference.program
    # The state of functions is not restored.
    is_restored = reference.model is None or isinstance(reference.model, torch.nn.Module)
    if not has_state_inputs(program.model) or not is_restored or reference.obstacle(call):
        return []
    capture = program.record.capture
    follows_example = any(one.kind is AssumptionKind.EXAMPLE for one in capture.assumptions)
    rows_of = partial(rows_in_a_row, reference.run_in_a_row, partial(_outputs, program), compare, reference.name)
    names = [str(value.name) for value in program.model.graph.outputs]
    calls = [_accepted(program, one.calls) for one in sequences(capture, call, other_sizes=other_sizes)]
    return rows_of(calls, names, weights=reference.weights, may_fail=follows_example)


def _accepted(program: VerifiableProgram, calls: Calls) -> Calls:
    """The calls before the first one that the program refuses."""
    accepted = 0
    with suppress(ArgumentError):
        for call in calls:
            program.interface.bind(*with_lists(call, program.record.capture.inputs.lists))
            accepted += 1
    return calls[:accepted]


def _outputs(program: VerifiableProgram, calls: Calls) -> Iterator[Sequence[Any]]:
    """The graph outputs of calls, in the session that users have: the stateful one, or one of their own."""
    lists = program.record.capture.inputs.lists
    given = [with_lists(copies(call), lists) for call in calls]
    factory = program.interface.session_factory
    if factory is not None or runs_in_float(program):
        model = program.quantization.float_model or program.model
        session = Session(model, factory or session_in_float)
        try:
            yield from session_outputs(model, session, [program.interface.bind(*one) for one in given])
        finally:
            session.close()
        return
    stateful = StatefulSession(program.model, program.interface.bind)
    for args, kwargs in given:
        outputs = iter(stateful(*args, **kwargs))
        inputs = dict(zip(program.model.graph.inputs, program.interface.bind(args, kwargs), strict=False))
        by_name = {str(value.name): tensor for value, tensor in inputs.items()}
        pairs = {pair.output: pair for pair in read_states(program.model)}
        found = []
        for value in program.model.graph.outputs:
            pair = pairs.get(str(value.name))
            if pair is None:
                found.append(next(outputs))
            else:
                found.append(stateful.state[pair.name] if pair.initial is not None else by_name[str(pair.input)])
        yield found


def rows_in_a_row(
    reference: _Reference,
    file: Callable[[Calls], Iterator[Sequence[Any]]],
    compare: _Compare,
    kind: ReferenceName,
    sequences: Iterable[Calls],
    names: Sequence[str],
    *,
    weights: Mapping[str, torch.Tensor] = MappingProxyType({}),
    may_fail: bool = False,
) -> list[OutputComparison]:
    """Compare the outputs of calls in a row; the first sequence that both run to its end is the last one.

    Args:
        reference: Returns the outputs of the reference for calls, up to one that fails.
        file: Yields the outputs of ONNX Runtime.
        compare: Compares named outputs of both.
        kind: The kind of the reference, for messages.
        sequences: The inputs of the calls.
        names: The names of the graph outputs.
        weights: The weights that can be replaced, to find out whether the reference is stable.
        may_fail: Whether the file may refuse a state, as one that follows the branches of its example.

    Raises:
        VerificationError: If ONNX Runtime fails in a call that the reference runs.
    """
    best: list[OutputComparison] = []
    problem: ExportError | None = None
    for calls in sequences:
        if len(calls) < 2:
            continue
        expected = reference(calls, {})
        actual, problem = _up_to_failure(file(calls[: len(expected)]))
        rows = _rows(reference, compare, kind, calls, expected[: len(actual)], actual, names, weights)
        best = max(best, rows, key=len)
        if any(row.status == "mismatch" for row in rows) or len(actual) == len(calls):
            return rows
    if problem is not None and not may_fail:
        text = f"ONNX Runtime fails in a call in a row that {REFERENCE_TEXTS[kind]} computes: {problem.message}"
        raise VerificationError(text, rows=best, hint=HINT)
    return best


def _up_to_failure(outputs: Iterator[Sequence[Any]]) -> tuple[list[Sequence[Any]], ExportError | None]:
    """The outputs of the calls before one that fails, and its error."""
    found: list[Sequence[Any]] = []
    try:
        while (one := next(outputs, None)) is not None:
            found.append(one)
    except (RuntimeSessionError, ArgumentError) as error:
        return found, error
    return found, None


def _rows(
    reference: _Reference,
    compare: _Compare,
    kind: ReferenceName,
    calls: Calls,
    expected: Sequence[Sequence[Any]],
    actual: Sequence[Sequence[Any]],
    names: Sequence[str],
    weights: Mapping[str, torch.Tensor],
) -> list[OutputComparison]:
    """The comparison of the calls after the first, without outputs that the reference does not determine."""
    numbered = [f"call {number}: {name}" for number in range(1, len(expected) + 1) for name in names]
    theirs = [value for outputs in expected for value in outputs]
    ours = [value for outputs in actual for value in outputs]

    def compared(one: Sequence[Any], other: Sequence[Any]) -> list[OutputComparison]:
        return compare(numbered, one, other)

    def rerun(args: Sequence[Any], _: Any, replaced: Mapping[str, torch.Tensor]) -> list[Any]:
        values = [value for outputs in reference(args, replaced) for value in outputs]
        # A call may fail with other weights.
        return [*values, *theirs[len(values) :]]

    reruns = reruns_of(rerun, calls[: len(expected)], {}, weights, kind)
    rows = without_random_outputs(compared(theirs, ours), theirs, reruns, compared)
    return [replace(row, index=row.index % len(names)) for row in rows[len(names) :]]
