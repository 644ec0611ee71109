"""What ``torch.autocast`` would do to a call, written out as casts.

Which operators autocast touches, and how, is asked of torch itself: the call is run over fake tensors with autocast on,
and the casts it makes of its arguments are observed. There is no list here that could disagree with torch's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fxonnx_translations._torch_compat import OpOverload, TorchDispatchMode, has_kernel

from .._provenance import copy_provenance, source_line
from ..errors import PrepareError
from .graph_utils import fake_mode_of
from .tracing import TraceError, decompositions, no_new_guards, splice_trace, trace_call, value_key

__all__ = ["Autocast", "AutocastState", "Dtypes", "Outcome", "dtypes_of", "evaluate"]

aten = torch.ops.aten

AutocastState = Mapping[str, torch.dtype]
"""The lower precision dtype of each device type autocast is on for."""

# Their kernels cast inside, some on the way through a loop over time that would cost the layer its identity, and fake
# tensors do not take the way real ones do. So it is observed on real tensors what comes out.
_RECURRENT = frozenset(
    {
        aten.lstm.input,
        aten.lstm.data,
        aten.gru.input,
        aten.gru.data,
        aten.rnn_tanh.input,
        aten.rnn_tanh.data,
        aten.rnn_relu.input,
        aten.rnn_relu.data,
    }
)

_DISPATCH_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA", "xpu": "AutocastXPU", "mps": "AutocastMPS"}


Dtypes = tuple[torch.dtype | None, ...]
"""dtypes of the results of a call, None for those that are no tensors."""


@dataclass(frozen=True)
class Outcome:
    """What became of a call.

    Attributes:
        opened: The call was replaced by the calls it is composed of, and it is these that autocast applies to.
        dtypes: dtypes of its results under autocast, None if autocast does not touch the call.
    """

    opened: tuple[torch.fx.Node, ...] = ()
    dtypes: Dtypes | None = None


def dtypes_of(value: Any) -> Dtypes:
    """The dtypes of what a call returns."""
    values = value if isinstance(value, (list, tuple)) else (value,)
    return tuple(getattr(item, "dtype", None) for item in values)


@dataclass(frozen=True)
class _Effect:
    """What autocast does to one kind of call.

    Attributes:
        casts: dtype each tensor argument is cast to, or None, in the order of the arguments.
        dtypes: dtypes of the results.
        inside: The casts happen inside, among the operators this one is composed of.
    """

    casts: tuple[torch.dtype | None, ...]
    dtypes: Dtypes
    inside: bool


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that run, and the casts of the given tensors before the first other operator."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._positions = {id(tensor): tensor for tensor in tensors}
        self._started = False
        self.casts: dict[int, torch.dtype] = {}
        self.calls: list[object] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.ops.prim.device.default:
            is_cast = func is aten._to_copy.default and not self._started
            if is_cast and id(args[0]) in self._positions and set(kwargs) == {"dtype"}:
                self.casts[id(args[0])] = kwargs["dtype"]
            else:
                self._started = True
            self.calls.append((func, kwargs.get("dtype")))
        return func(*args, **kwargs)


class Autocast:
    """Writes out autocast for the calls of one graph."""

    def __init__(self) -> None:
        self._effects: dict[Hashable, _Effect | None] = {}
        self._casts: dict[tuple[torch.fx.Node, torch.dtype], torch.fx.Node] = {}
        self._cast_values: dict[Hashable, torch.Tensor] = {}
        self._completions: dict[tuple[OpOverload, _Effect], dict[str, torch.dtype | None]] = {}

    def apply(self, owner: torch.fx.GraphModule, node: torch.fx.Node, state: AutocastState) -> Outcome:
        """Makes one call independent of autocast.

        Args:
            owner: The graph module the node is in.
            node: A call; its arguments already are what they are under autocast. Calls must come in the order of the
                graph, those outside of autocast regions included.
            state: Where autocast is on for this call.

        Raises:
            PrepareError: If autocast does something to the call that casts can not express.
        """
        target = node.target
        if not isinstance(target, OpOverload):
            return Outcome()
        if target._schema.is_mutable:
            # What was cast before may be written to here, inside or outside of the region.
            self._casts.clear()
        if not state:
            return Outcome()
        effect = self._effect(node, target, state)
        if effect is None:
            return Outcome()
        if effect.inside:
            return Outcome(opened=tuple(_open_up(owner, node)))
        casts = iter(effect.casts)

        def cast(argument: torch.fx.Node) -> torch.fx.Node:
            dtype = next(casts) if isinstance(argument.meta.get("val"), torch.Tensor) else None
            if dtype is None:
                return argument
            if (argument, dtype) not in self._casts:
                self._casts[argument, dtype] = self._cast(node, argument, dtype)
            return self._casts[argument, dtype]

        node.args, node.kwargs = torch.fx.map_arg((node.args, node.kwargs), cast)
        self._complete(node, target, effect)
        return Outcome(dtypes=effect.dtypes)

    def _cast(self, before: torch.fx.Node, argument: torch.fx.Node, dtype: torch.dtype) -> torch.fx.Node:
        with before.graph.inserting_before(before):
            node = before.graph.call_function(aten.to.dtype, (argument, dtype))
        copy_provenance(node, before)
        key = value_key(argument.meta["val"]), dtype
        if key not in self._cast_values:
            self._cast_values[key] = evaluate(node)
        node.meta["val"] = self._cast_values[key]
        return node

    def _complete(self, node: torch.fx.Node, target: OpOverload, effect: _Effect) -> None:
        missing = self._completions.get((target, effect))
        if missing is None:
            missing = self._completions[target, effect] = _completion(node, target, effect)
        if missing:
            node.kwargs = {**node.kwargs, **missing}

    def _effect(self, node: torch.fx.Node, target: OpOverload, state: AutocastState) -> _Effect | None:
        tensors: list[torch.Tensor] = []

        def collect(argument: torch.fx.Node) -> torch.fx.Node:
            if isinstance(argument.meta.get("val"), torch.Tensor):
                tensors.append(argument.meta["val"])
            return argument

        torch.fx.map_arg((node.args, node.kwargs), collect)
        if not any(tensor.is_floating_point() and tensor.device.type in state for tensor in tensors):
            return None
        schema = target._schema
        name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        registered = any(has_kernel(name, _DISPATCH_KEYS[device]) for device in state if device in _DISPATCH_KEYS)
        if not registered and not target._can_decompose():
            return None
        kinds = tuple((tensor.dtype, tensor.dim(), tensor.device.type) for tensor in tensors)
        key = (target, kinds, node.kwargs.get("dtype"), tuple(state.items()))
        if key not in self._effects:
            if target in _RECURRENT:
                self._effects[key] = _observe_recurrent(node, tensors, state)
            else:
                self._effects[key] = _observe(node, tensors, state, registered)
        return self._effects[key]


def evaluate(node: torch.fx.Node, state: AutocastState | None = None) -> Any:
    """Runs a call over the fake tensors of its arguments, with autocast as given."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
    fake_mode = fake_mode_of(argument.meta.get("val") for argument in node.all_input_nodes)
    with torch.no_grad(), no_new_guards(fake_mode), _autocast(state or {}), fake_mode or contextlib.nullcontext():
        return node.target(*args, **kwargs)  # type: ignore[operator]


@contextlib.contextmanager
def _autocast(state: AutocastState) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for device, dtype in state.items():
            stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=False))
        yield


def _observe(
    node: torch.fx.Node, tensors: list[torch.Tensor], state: AutocastState, registered: bool
) -> _Effect | None:
    with _Recorder(tensors) as recorder:
        result = evaluate(node, state)
    dtypes = dtypes_of(result)
    if registered:
        return _Effect(tuple(recorder.casts.get(id(tensor)) for tensor in tensors), dtypes, inside=False)
    with _Recorder(tensors) as plain:
        evaluate(node)
    return None if plain.calls == recorder.calls else _Effect((), dtypes, inside=True)


def _observe_recurrent(node: torch.fx.Node, tensors: list[torch.Tensor], state: AutocastState) -> _Effect | None:
    """Runs the layer for one time step of one sequence, with zeros as weights."""

    def zeros(argument: torch.fx.Node) -> Any:
        val = argument.meta["val"]
        # Weights are matrices and vectors; input and states have time or layers, batch and features.
        shape = [val.shape[0] if argument is not node.args[0] else 1, 1, val.shape[2]] if val.dim() == 3 else val.shape
        return torch.zeros(shape, dtype=val.dtype)

    if not all(isinstance(size, int) for tensor in tensors for size in (tensor.shape if tensor.dim() < 3 else ())):
        return None
    args: Any = torch.fx.map_arg(node.args, zeros)
    with torch.no_grad(), _autocast(state):
        dtypes = dtypes_of(node.target(*args))  # type: ignore[operator]
    lower = next((dtype for dtype in state.values() if dtype in dtypes), None)
    # A layer that returns the dtype it was given is left alone: that is at least as precise.
    return _Effect(tuple(lower if tensor.is_floating_point() else None for tensor in tensors), dtypes, inside=False)


def _open_up(owner: torch.fx.GraphModule, node: torch.fx.Node) -> list[torch.fx.Node]:
    reasons = []
    for function in decompositions(node.target):
        # The dtypes noted for the node are those under autocast, which tracing does without.
        trace, reason = _traced(node, function)
        if trace is not None:
            return splice_trace(owner, node, trace)
        reasons.append(reason)
    raise PrepareError(
        f"autocast works inside {node.target} at {source_line(node)}, which can not be decomposed: "
        + "; ".join(reasons),
        hint="turn autocast off for this call, or cast its inputs",
    )


def _traced(node: torch.fx.Node, function: Callable[..., Any]) -> tuple[torch.fx.GraphModule | None, str]:
    try:
        return trace_call(node, function, check=False), ""
    except TraceError as error:
        return None, str(error)


def _completion(node: torch.fx.Node, target: OpOverload, effect: _Effect) -> dict[str, torch.dtype | None]:
    """The keyword arguments a call lacks to return, after the casts, what it returned under autocast."""
    if dtypes_of(evaluate(node)) == effect.dtypes:
        return {}
    if any(argument.name == "dtype" for argument in target._schema.arguments) and "dtype" not in node.kwargs:
        original = node.kwargs
        node.kwargs = {**original, "dtype": effect.dtypes[0]}
        completed = dtypes_of(evaluate(node))
        node.kwargs = original
        if completed == effect.dtypes:
            return {"dtype": effect.dtypes[0]}
    raise PrepareError(
        f"autocast makes {target} at {source_line(node)} return {effect.dtypes}, which casts of its arguments do not",
        hint="turn autocast off for this call, or cast its inputs",
    )
