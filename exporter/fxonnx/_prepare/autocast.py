"""Make ``torch.autocast`` explicit: insert the casts it would apply to a call.

The casts are observed instead of listed: the call runs on fake tensors with autocast enabled, and the casts of its
arguments are recorded. No list of operators can become inconsistent with torch's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fxonnx_translations._torch_compat import OpOverload, TorchDispatchMode, has_kernel

from .._nodes import function_of
from .._provenance import copy_provenance, source_line
from ..errors import PrepareError
from .graph_utils import fake_mode_of
from .tracing import TraceError, decompositions, no_new_guards, splice_trace, trace_call, value_key

__all__ = ["AutocastOutcome", "AutocastRewriter", "AutocastState", "Dtypes", "dtypes_of", "evaluate"]

aten = torch.ops.aten

AutocastState = Mapping[str, torch.dtype]
"""The lower precision dtype of each device type for which autocast is enabled."""

# Their kernels cast internally; decomposing them into a loop over time would lose the layer. Fake tensors take a
# different path than real ones, so the resulting dtypes are observed on real tensors.
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
"""dtypes of the results of a call, None for results that are not tensors."""


@dataclass(frozen=True)
class AutocastOutcome:
    """The result of applying autocast to a call.

    Attributes:
        decomposed: The calls that replace the call, to which autocast still has to be applied.
        dtypes: dtypes of the results under autocast, None if autocast does not affect the call.
    """

    decomposed: tuple[torch.fx.Node, ...] = ()
    dtypes: Dtypes | None = None


def dtypes_of(value: Any) -> Dtypes:
    """The dtypes of the results of a call."""
    values = value if isinstance(value, (list, tuple)) else (value,)
    return tuple(getattr(item, "dtype", None) for item in values)


@dataclass(frozen=True)
class _AutocastEffect:
    """The effect of autocast on one kind of call.

    Attributes:
        casts: Target dtype of each tensor argument, None for no cast, in argument order.
        dtypes: dtypes of the results.
        is_internal: Whether the casts happen between the operators of the call's composite implementation.
    """

    casts: tuple[torch.dtype | None, ...]
    dtypes: Dtypes
    is_internal: bool


class _CastRecorder(TorchDispatchMode):
    """Record the operators that run, and the casts of the given tensors before the first other operator."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
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


class AutocastRewriter:
    """Insert the casts of autocast for the calls of one graph."""

    def __init__(self) -> None:
        self._effects: dict[Hashable, _AutocastEffect | None] = {}
        self._casts: dict[tuple[torch.fx.Node, torch.dtype], torch.fx.Node] = {}
        self._cast_values: dict[Hashable, torch.Tensor] = {}
        self._missing_arguments: dict[tuple[OpOverload, _AutocastEffect], dict[str, torch.dtype | None]] = {}

    def apply(self, owner: torch.fx.GraphModule, node: torch.fx.Node, state: AutocastState) -> AutocastOutcome:
        """Make one call independent of autocast.

        Args:
            owner: The graph module of the node.
            node: A call whose arguments are rewritten already. Calls must be passed in graph order, including those
                outside autocast regions.
            state: The autocast state of the call.

        Raises:
            PrepareError: If the effect of autocast on the call cannot be expressed by casts.
        """
        target = node.target
        if not isinstance(target, OpOverload):
            return AutocastOutcome()
        if target._schema.is_mutable:
            # The call may write to a tensor that was cast before, inside or outside the region.
            self._casts.clear()
        if not state:
            return AutocastOutcome()
        effect = self._effect(node, target, state)
        if effect is None:
            return AutocastOutcome()
        if effect.is_internal:
            return AutocastOutcome(decomposed=tuple(_decompose_in_place(owner, node)))
        casts = iter(effect.casts)

        def cast(argument: torch.fx.Node) -> torch.fx.Node:
            dtype = next(casts) if isinstance(argument.meta.get("val"), torch.Tensor) else None
            if dtype is None:
                return argument
            if (argument, dtype) not in self._casts:
                self._casts[argument, dtype] = self._cast(node, argument, dtype)
            return self._casts[argument, dtype]

        node.args, node.kwargs = torch.fx.map_arg((node.args, node.kwargs), cast)
        self._add_missing_arguments(node, target, effect)
        return AutocastOutcome(dtypes=effect.dtypes)

    def _cast(self, before: torch.fx.Node, argument: torch.fx.Node, dtype: torch.dtype) -> torch.fx.Node:
        with before.graph.inserting_before(before):
            node = before.graph.call_function(aten.to.dtype, (argument, dtype))
        copy_provenance(node, before)
        key = value_key(argument.meta["val"]), dtype
        if key not in self._cast_values:
            self._cast_values[key] = evaluate(node)
        node.meta["val"] = self._cast_values[key]
        return node

    def _add_missing_arguments(self, node: torch.fx.Node, target: OpOverload, effect: _AutocastEffect) -> None:
        missing = self._missing_arguments.get((target, effect))
        if missing is None:
            missing = self._missing_arguments[target, effect] = _missing_dtype_argument(node, target, effect)
        if missing:
            node.kwargs = {**node.kwargs, **missing}

    def _effect(self, node: torch.fx.Node, target: OpOverload, state: AutocastState) -> _AutocastEffect | None:
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
    """Run a call on the fake tensors of its arguments under an autocast state."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
    fake_mode = fake_mode_of(argument.meta.get("val") for argument in node.all_input_nodes)
    with torch.no_grad(), no_new_guards(fake_mode), _autocast(state or {}), fake_mode or contextlib.nullcontext():
        return function_of(node)(*args, **kwargs)


@contextlib.contextmanager
def _autocast(state: AutocastState) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for device, dtype in state.items():
            stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=False))
        yield


def _observe(
    node: torch.fx.Node, tensors: list[torch.Tensor], state: AutocastState, registered: bool
) -> _AutocastEffect | None:
    with _CastRecorder(tensors) as recorder:
        result = evaluate(node, state)
    dtypes = dtypes_of(result)
    if registered:
        return _AutocastEffect(tuple(recorder.casts.get(id(tensor)) for tensor in tensors), dtypes, is_internal=False)
    with _CastRecorder(tensors) as plain:
        evaluate(node)
    return None if plain.calls == recorder.calls else _AutocastEffect((), dtypes, is_internal=True)


def _observe_recurrent(
    node: torch.fx.Node, tensors: list[torch.Tensor], state: AutocastState
) -> _AutocastEffect | None:
    """Run the layer on one time step of one sequence, with zeros as weights."""

    def zeros(argument: torch.fx.Node) -> Any:
        val = argument.meta["val"]
        # Weights are matrices and vectors; input and states are [time or layers, batch, features].
        shape = [val.shape[0] if argument is not node.args[0] else 1, 1, val.shape[2]] if val.dim() == 3 else val.shape
        return torch.zeros(shape, dtype=val.dtype)

    if not all(isinstance(size, int) for tensor in tensors for size in (tensor.shape if tensor.dim() < 3 else ())):
        return None
    args: Any = torch.fx.map_arg(node.args, zeros)
    with torch.no_grad(), _autocast(state):
        dtypes = dtypes_of(function_of(node)(*args))
    lower = next((dtype for dtype in state.values() if dtype in dtypes), None)
    # A layer that returns its input dtype is not changed, which is at least as precise.
    return _AutocastEffect(
        tuple(lower if tensor.is_floating_point() else None for tensor in tensors), dtypes, is_internal=False
    )


def _decompose_in_place(owner: torch.fx.GraphModule, node: torch.fx.Node) -> list[torch.fx.Node]:
    reasons = []
    for function in decompositions(node.target):
        # No check: the recorded dtypes are those under autocast, and tracing runs without autocast.
        trace, reason = _traced(node, function)
        if trace is not None:
            return splice_trace(owner, node, trace)
        reasons.append(reason)
    raise PrepareError(
        f"autocast casts inside {node.target} at {source_line(node)}, which cannot be decomposed: "
        + "; ".join(reasons),
        hint="turn autocast off for this call, or cast its inputs",
    )


def _traced(node: torch.fx.Node, function: Callable[..., Any]) -> tuple[torch.fx.GraphModule | None, str]:
    try:
        return trace_call(node, function, check=False), ""
    except TraceError as error:
        return None, str(error)


def _missing_dtype_argument(
    node: torch.fx.Node, target: OpOverload, effect: _AutocastEffect
) -> dict[str, torch.dtype | None]:
    """The ``dtype`` argument with which the call, after the casts, returns the dtypes it has under autocast."""
    # Recurrent layers have the dtypes of real tensors; their kernels specialize the dims of fake ones.
    if target in _RECURRENT or dtypes_of(evaluate(node)) == effect.dtypes:
        return {}
    if any(argument.name == "dtype" for argument in target._schema.arguments) and "dtype" not in node.kwargs:
        original = node.kwargs
        node.kwargs = {**original, "dtype": effect.dtypes[0]}
        completed = dtypes_of(evaluate(node))
        node.kwargs = original
        if completed == effect.dtypes:
            return {"dtype": effect.dtypes[0]}
    raise PrepareError(
        f"autocast makes {target} at {source_line(node)} return {effect.dtypes}, which casting its arguments does not",
        hint="turn autocast off for this call, or cast its inputs",
    )
