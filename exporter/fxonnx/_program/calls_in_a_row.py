"""Calls in a row, of which each starts from the state that the one before left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import onnx_ir as ir

from .._prepare.mutations import LOST_UPDATES_KEY
from .session import Session
from .stateful import read_states

__all__ = ["Calls", "has_state_inputs", "run_in_a_row", "session_outputs"]

Calls: TypeAlias = "Sequence[tuple[Any, Any]]"
"""Positional and keyword inputs of each call."""
_T = TypeVar("_T")


def run_in_a_row(calls: Calls, run: Callable[[Any, Any], _T]) -> list[_T]:
    """The results of calls, up to one that fails; the error of the first call is raised.

    Args:
        calls: The inputs.
        run: Runs one call.
    """
    results: list[_T] = []
    left = iter(calls)
    try:
        while (call := next(left, None)) is not None:
            results.append(run(*call))
    except Exception:
        if not results:
            raise
    return results


def has_state_inputs(model: ir.Model) -> bool:
    """Whether calls in a row can be compared: the whole state that a call leaves is an input of the next one."""
    pairs = read_states(model)
    is_fed_back = any(pair.initial is not None for pair in pairs) and all(pair.input is not None for pair in pairs)
    return is_fed_back and LOST_UPDATES_KEY not in model.metadata_props


def session_outputs(model: ir.Model, session: Session, calls: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """Run a saved model, and feed the states that a call returns to the next one.

    Args:
        model: The model.
        session: Its session.
        calls: The graph inputs of each call, without the states.

    Raises:
        RuntimeSessionError: If ONNX Runtime fails.
    """
    names = [str(value.name) for value in model.graph.outputs]
    returned = {pair.input: names.index(pair.output) for pair in read_states(model) if pair.initial is not None}
    # The states are the graph inputs after those of forward, in this order.
    order = [returned[value.name] for value in model.graph.inputs if value.name in returned]
    states: list[Any] = []
    for inputs in calls:
        outputs = session.run([*inputs, *states])
        states = [outputs[index] for index in order]
        yield outputs
