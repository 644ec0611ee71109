"""Models with a state: which outputs are the next inputs, and a session that feeds them back."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import onnx_ir as ir
import torch

from fxonnx_translations._builder.initializers import TorchTensor

from .._lower.model import STATE_KEY
from ..errors import ArgumentError
from .session import Session, as_tensor

__all__ = ["StatePair", "StatefulSession", "final_states", "read_states"]


@dataclass(frozen=True)
class StatePair:
    """A parameter, buffer or input that forward writes to.

    Attributes:
        name: Its qualified name in the model; the label of an input.
        input: The graph input that takes its content before the call; None if that is part of the graph.
        output: The graph output that has its content after the call.
        initial: The initializer, of the same name as the input, with its content at export; None for inputs.
    """

    name: str
    input: str | None
    output: str
    initial: str | None


def read_states(model: ir.Model) -> tuple[StatePair, ...]:
    """Reads the pairs from the metadata of a model."""
    text = model.metadata_props.get(STATE_KEY)
    return () if text is None else tuple(StatePair(**pair) for pair in json.loads(text))


class StatefulSession:
    """An ONNX Runtime session that begins each call with the state that the call before left.

    As in eager torch, tensors that are given as inputs are written to, if forward does that.

    Args:
        model: A model that was exported with ``state="io"``.
        graph_inputs: Binds positional and keyword arguments of ``forward`` to the graph inputs.

    Raises:
        ArgumentError: If the program has no state.
        RuntimeSessionError: If ONNX Runtime can not load it.
    """

    def __init__(
        self, model: ir.Model, graph_inputs: Callable[[Sequence[Any], Mapping[str, Any]], tuple[Any, ...]]
    ) -> None:
        pairs = read_states(model)
        if not pairs or any(pair.input is None for pair in pairs):
            raise ArgumentError(
                "state",
                "the program has no state, or only returns it",
                hint='export with state="io" a model whose forward writes to its buffers or inputs',
            )
        self._model = model
        self._graph_inputs = graph_inputs
        self._pairs = {pair.name: pair for pair in pairs if pair.initial is not None}
        self._written = [pair for pair in pairs if pair.initial is None]
        self._inputs = {str(value.name): value for value in model.graph.inputs}
        self._outputs = [str(value.name) for value in model.graph.outputs]
        self._session = Session(model)
        self._state: dict[str, torch.Tensor] = {}
        self.reset()

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """Name of the parameter or buffer to its content; complex ones as real tensors with a last dimension of 2."""
        return MappingProxyType(self._state)

    def reset(self, state: Mapping[str, torch.Tensor] | None = None) -> None:
        """Goes back to the state at export.

        Args:
            state: Contents to begin with instead, by name; all or some.

        Raises:
            ArgumentError: If there is no such state, or it has another dtype or shape.
        """
        new = {}
        for name, pair in self._pairs.items():
            initial = self._model.graph.initializers[str(pair.initial)].const_value
            new[name] = _content(initial)
        for name, value in (state or {}).items():
            if name not in self._pairs:
                raise ArgumentError("state", f"there is no {name!r}", hint=f"there are {', '.join(self._pairs)}")
            new[name] = as_tensor(value, self._inputs[str(self._pairs[name].input)]).clone()
        self._state = new

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        """Runs one step.

        Args:
            *args: Positional arguments, as for the exported ``forward``.
            **kwargs: Keyword arguments.

        Returns:
            The outputs of forward, flat; what it writes to is in ``state``.

        Raises:
            ArgumentError: If the arguments do not fit.
            RuntimeSessionError: If ONNX Runtime fails.
        """
        given = self._graph_inputs(args, kwargs)
        outputs = dict(zip(self._outputs, self._session.run([*given, *self._state.values()]), strict=True))
        self._state = {name: outputs.pop(pair.output) for name, pair in self._pairs.items()}
        by_name = dict(zip(self._inputs, given, strict=False))
        for pair in self._written:
            _write(by_name[str(pair.input)], outputs.pop(pair.output))
        return tuple(outputs.values())


def _content(initial: Any) -> torch.Tensor:
    if not isinstance(initial, TorchTensor):
        raise ArgumentError(
            "state", "the graph holds no initial value", hint="make the session before the graph is changed"
        )
    return initial.raw.detach().cpu().clone()


def _write(target: Any, content: torch.Tensor) -> None:
    if isinstance(target, torch.Tensor):
        with torch.no_grad():
            target.copy_(torch.view_as_complex(content) if target.is_complex() else content)


def final_states(
    model: ir.Model, module: torch.nn.Module, weights: Mapping[str, torch.Tensor], inputs: Sequence[Any]
) -> list[Any]:
    """What eager torch left in what forward writes to, in the order of the graph outputs.

    Args:
        model: The ONNX model.
        module: What was run.
        weights: Its parameters and buffers, as they are after the call.
        inputs: The tensors and numbers it was given, in graph input order.
    """
    positions = {str(value.name): index for index, value in enumerate(model.graph.inputs[: len(inputs)])}
    found: list[Any] = []
    for pair in read_states(model):
        if pair.input in positions:
            found.append(inputs[positions[pair.input]])
        elif pair.name in weights:
            found.append(weights[pair.name])
        else:
            # A tensor that is an attribute, no buffer.
            found.append(operator.attrgetter(pair.name)(module))
    return found
