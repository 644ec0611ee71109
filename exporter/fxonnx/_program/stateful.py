"""Stateful models: the mapping of state outputs to inputs, a session that feeds the state back, and calls in a row."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import onnx_ir as ir
import torch

from fxonnx_translations._builder.initializers import TorchTensor
from fxonnx_translations._builder.sub_byte import copy_of

from .._lower.model import STATE_KEY
from .._paths import parse_json
from .._prepare.mutations import LOST_UPDATES_KEY
from ..errors import ArgumentError, did_you_mean
from .session import Session, as_tensor

__all__ = [
    "Calls",
    "StatePair",
    "StatefulSession",
    "final_states",
    "has_state_inputs",
    "read_states",
    "run_in_a_row",
    "session_outputs",
]


@dataclass(frozen=True)
class StatePair:
    """A parameter, buffer or input that ``forward`` mutates, with its graph input and output.

    Attributes:
        name: FQN of the parameter or buffer, or label of the input.
        input: Graph input with its value before the call; None if that value is an initializer.
        output: Graph output with its value after the call.
        initial: Initializer with its value at export, which has the name of the graph input; None for inputs.
    """

    name: str
    input: str | None
    output: str
    initial: str | None


def read_states(model: ir.Model) -> tuple[StatePair, ...]:
    """Read the state pairs from the metadata of a model.

    Raises:
        ArgumentError: If they do not belong to a model that fxonnx exported.
    """
    text = model.metadata_props.get(STATE_KEY)
    if text is None:
        return ()
    try:
        pairs = tuple(StatePair(**pair) for pair in parse_json(text))
        outputs, inputs = ({value.name for value in values} for values in (model.graph.outputs, model.graph.inputs))
        for pair in pairs:
            if not isinstance(pair.name, str) or pair.output not in outputs or pair.input not in {None, *inputs}:
                raise ValueError(f"{pair} is not a pair of an output and an input")
    except (TypeError, ValueError) as error:
        raise ArgumentError("model", f"its metadata {STATE_KEY} is not a record of fxonnx: {error}") from error
    return pairs


class StatefulSession:
    """An ONNX Runtime session in which each call starts with the state that the previous call left.

    As in eager torch, input tensors that ``forward`` mutates are updated in place.

    Args:
        model: A model that was exported with ``state="io"``.
        graph_inputs: Binds positional and keyword arguments of ``forward`` to the graph inputs.

    Raises:
        ArgumentError: If the model has no state inputs.
        RuntimeSessionError: If ONNX Runtime cannot load the model.
    """

    def __init__(
        self, model: ir.Model, graph_inputs: Callable[[Sequence[Any], Mapping[str, Any]], tuple[Any, ...]]
    ) -> None:
        pairs = read_states(model)
        if not pairs or any(pair.input is None for pair in pairs):
            raise ArgumentError(
                "state",
                "the model has no state, or no graph inputs for it",
                hint='export with state="io" a model whose forward mutates its buffers or inputs',
            )
        self._model = model
        self._graph_inputs = graph_inputs
        self._pairs = {pair.name: pair for pair in pairs if pair.initial is not None}
        self._written = [pair for pair in pairs if pair.initial is None]
        self._inputs = {str(value.name): value for value in model.graph.inputs}
        self._outputs = [str(value.name) for value in model.graph.outputs]
        self._session = Session(model)
        # By input: a tensor with several names is one input.
        self._state: dict[str, torch.Tensor] = {}
        self.reset()

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """FQN of each parameter or buffer to its value; complex ones as real tensors with a last dimension of 2."""
        return MappingProxyType({name: self._state[str(pair.input)] for name, pair in self._pairs.items()})

    def reset(self, state: Mapping[str, torch.Tensor] | None = None) -> None:
        """Reset the state to that at export.

        Args:
            state: FQN to initial value, for all or some of the states; the others are those at export.

        Raises:
            ArgumentError: If a name is not the name of a state, or a value has another dtype or shape.
        """
        new = {}
        for pair in self._pairs.values():
            initial = self._model.graph.initializers[str(pair.initial)].const_value
            new[str(pair.input)] = _initial_value(initial)
        for name, value in (state or {}).items():
            if name not in self._pairs:
                hint = did_you_mean(name, self._pairs, f"the states are: {', '.join(self._pairs)}")
                raise ArgumentError("state", f"unknown state {name!r}", hint=hint)
            given = str(self._pairs[name].input)
            new[given] = copy_of(as_tensor(value, self._inputs[given]))
        self._state = new

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        """Run one step.

        Args:
            *args: Positional arguments, as for the exported ``forward``.
            **kwargs: Keyword arguments.

        Returns:
            The outputs of ``forward``, flat and without the states; ``state`` has the new state.

        Raises:
            ArgumentError: If the arguments do not match the exported ones.
            RuntimeSessionError: If ONNX Runtime fails.
        """
        given = self._graph_inputs(args, kwargs)
        outputs = dict(zip(self._outputs, self._session.run([*given, *self._state.values()]), strict=True))
        self._state = {str(pair.input): outputs.pop(pair.output) for pair in self._pairs.values()}
        by_name = dict(zip(self._inputs, given, strict=False))
        for pair in self._written:
            _write_back(by_name[str(pair.input)], outputs.pop(pair.output))
        return tuple(outputs.values())


def _initial_value(initial: Any) -> torch.Tensor:
    if not isinstance(initial, TorchTensor):
        raise ArgumentError(
            "state", "the initializer of the state was replaced", hint="create the session before modifying the graph"
        )
    return copy_of(initial.raw.cpu())


def _write_back(target: Any, value: torch.Tensor) -> None:
    if isinstance(target, torch.Tensor):
        with torch.no_grad():
            target.copy_(torch.view_as_complex(value) if target.is_complex() else value)


def final_states(
    model: ir.Model, module: torch.nn.Module, weights: Mapping[str, torch.Tensor], inputs: Sequence[Any]
) -> list[Any]:
    """Return the values of the states after a call in eager torch, in the order of the graph outputs.

    Args:
        model: The ONNX model.
        module: The module that was called.
        weights: FQN to parameter or buffer, after the call.
        inputs: The tensors and numbers of the call in graph input order, after the call.
    """
    positions = {str(value.name): index for index, value in enumerate(model.graph.inputs[: len(inputs)])}
    found: list[Any] = []
    for pair in read_states(model):
        if pair.input in positions:
            found.append(inputs[positions[pair.input]])
        elif pair.name in weights:
            found.append(weights[pair.name])
        else:
            # A plain tensor attribute that is not a buffer.
            found.append(operator.attrgetter(pair.name)(module))
    return found


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
