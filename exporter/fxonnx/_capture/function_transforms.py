"""Capture of ``torch.func`` transforms: ``grad``, ``vjp``, ``jvp``, ``jacrev``, ``jacfwd``, ``hessian``, ``vmap``.

torch.export records operators above autograd and functorch, where derivatives are not computed yet. The outermost
transform in forward is therefore traced below them with make_fx, and the resulting graph of plain operators is called.

A ``torch.autograd.Function`` with a ``symbolic`` becomes a single opaque operator.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
import torch.fx.traceback as fx_traceback
from torch import Tensor
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    make_fx,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

from fxonnx_translations._torch_compat import (
    FakeTensor,
    TorchDispatchMode,
    exit_dual_level,
    functorch,
    pytree,
    recording_mode,
    recording_mode_off,
)

from .._context_values import activated, active
from .._own_operators import define_operator
from .._provenance import REGIONS_KEY
from ..errors import CaptureError
from .suspicions.departures import DepartureKind, record_departure

__all__ = [
    "GRADIENTS",
    "FunctionCall",
    "RetryTransforms",
    "SummedParts",
    "TransformTracing",
    "call_region",
    "closed_transforms",
    "computes_gradients",
    "derivative",
    "gradients",
    "record_function_call",
    "recorded_forward",
    "recorded_function_calls",
    "reject_lost_gradients",
    "unwound_transforms",
    "vector_jacobian_product",
    "vmap",
]


GRADIENTS = "gradients of torch.autograd"
"""The departure of a forward that computes gradients."""


@dataclass
class TransformTracing:
    """How the transforms of one export are traced.

    Attributes:
        whole_vmaps: Trace the outermost ``vmap`` below functorch as well. Otherwise torch.export records its calls on
            single samples, and a derivative inside of it raises RetryTransforms.
        whole_forward: Trace all of forward below autograd, because it computes gradients with ``torch.autograd``.
        ordinary_zeros: Create zeros in memory where torch creates zero tensors without memory.
    """

    whole_vmaps: bool = False
    whole_forward: bool = False
    ordinary_zeros: bool = False


class RetryTransforms(Exception):
    """Signal that the model must be exported again, with an option of TransformTracing that has been set."""


@contextmanager
def closed_transforms(tracing: TransformTracing) -> Iterator[None]:
    """Set how transforms are traced; unwind functorch's stack of them on exit, including exit by an exception."""
    with activated(tracing), unwound_transforms():
        yield


@contextmanager
def unwound_transforms() -> Iterator[None]:
    """Unwind functorch's stack of transforms, a state of the thread, on exit, including exit by an exception in one."""
    depth, level = len(functorch.get_interpreter_stack() or ()), forward_ad._current_level
    try:
        yield
    finally:
        functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        while forward_ad._current_level > level:
            exit_dual_level(level=forward_ad._current_level)
            forward_ad._current_level -= 1


def derivative(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Replacement of ``grad_and_value_impl`` and ``_jvp_with_argnums``: record plain operators."""
    return _record(original, args, kwargs)


def vmap(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Replacement of ``vmap_impl``: leave it to torch.export, or record plain operators with ``whole_vmaps``."""
    return _record(original, args, kwargs) if _options().whole_vmaps else original(*args, **kwargs)


def vector_jacobian_product(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Replacement of ``_vjp_with_argnums``; the returned function runs the forward again, which CSE removes."""
    if recording_mode() is None:
        return original(*args, **kwargs)

    def results(*args: Any, **kwargs: Any) -> Any:
        value, _, *auxiliary = original(*args, **kwargs)
        return value, *auxiliary

    def pulled_back(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        def pull(cotangents: Any, *args: Any) -> Any:
            return original(*args, **kwargs)[1](cotangents, create_graph=create_graph)

        return _record(pull, (cotangents, *args), {})

    value, *auxiliary = _record(results, args, kwargs)
    return value, pulled_back, *auxiliary


def recorded_forward(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a forward so that it is recorded as plain operators with ``whole_forward``."""

    def run(*args: Any, **kwargs: Any) -> Any:
        tracing = active(TransformTracing)
        if tracing is None or not tracing.whole_forward:
            return forward(*args, **kwargs)
        record_departure(DepartureKind.TRANSFORM, GRADIENTS)
        # The gradients of fused attention are no plain operators.
        with sdpa_kernel(SDPBackend.MATH):
            return _record(forward, args, kwargs)

    return run


def computes_gradients() -> bool:
    """Whether autograd records operators of a forward that computes gradients with ``torch.autograd``."""
    tracing = active(TransformTracing)
    return tracing is not None and tracing.whole_forward and torch.is_grad_enabled()


def reject_lost_gradients(operands: Iterable[Any]) -> None:
    """Reject an operator for control flow on the way of gradients: a capture below autograd records none for it.

    Raises:
        CaptureError: If autograd records operators on one of them, and forward computes gradients.
    """
    if computes_gradients() and any(getattr(operand, "requires_grad", False) for operand in operands):
        raise CaptureError(
            "forward computes gradients with torch.autograd, and has control flow that depends on data, of tensors "
            "that require gradients",
            hint="use tensor operators such as torch.where, or run what needs no gradients under torch.no_grad()",
        )


class SummedParts(tuple[torch.Tensor, ...]):
    """The sum of the parts of a vector, in their place as the outputs of ``torch.autograd.grad``.

    Attributes:
        parts: Returns the parts themselves, of which weights have the number.
    """

    parts: Callable[[], Sequence[torch.Tensor]]


def gradients(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``torch.autograd.grad`` and ``Tensor.backward`` in forward, of which torch.export loses the saved tensors.

    Raises:
        RetryTransforms: If the gradients are those of traced tensors.
    """
    caller = sys._getframe(2)
    # torch computes gradients itself, of the branches of a cond and of the body of a scan.
    is_own = caller.f_globals.get("__name__", "").partition(".")[0] == "torch"
    if not is_own and recording_mode() is not None and pytree.tree_any(_is_fake, (args, kwargs)):
        _options().whole_forward = True
        raise RetryTransforms
    outputs = args[0] if args else kwargs.get("outputs")
    if isinstance(outputs, SummedParts):
        weights = args[2] if len(args) > 2 else kwargs.get("grad_outputs")
        if weights is not None:
            kwargs.pop("outputs", None)
            args = outputs.parts(), *args[1:]
    return original(*args, **kwargs)


def _options() -> TransformTracing:
    """How the current export traces transforms; changes of those outside of an export have no effect."""
    return active(TransformTracing) or TransformTracing()


def _is_fake(value: Any) -> bool:
    return isinstance(value, FakeTensor)


def _record(transform: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a transform; during an export, trace it to a graph of plain operators and call that.

    Raises:
        RetryTransforms: If the transform is inside of a vmap that torch.export records.
    """
    mode = recording_mode()
    if mode is None:
        return transform(*args, **kwargs)
    if functorch.peek_interpreter_stack() is not None:
        _options().whole_vmaps = True
        raise RetryTransforms
    record_departure(DepartureKind.TRANSFORM, getattr(transform, "__name__", "vjp"))
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    # Sizes that the function closes over are expressions in these symbols.
    symbols = [known.value for expr, known in mode.tracer.sympy_expr_tracker.items() if expr.is_Symbol]
    returned: list[Any] = []

    def flat(values: list[torch.Tensor], _symbols: list[torch.SymInt]) -> list[Any]:
        given = list(leaves)
        for at, value in zip(tensors, values, strict=True):
            given[at] = value
        args, kwargs = pytree.tree_unflatten(given, spec)
        results, results_spec = pytree.tree_flatten(transform(*args, **kwargs))
        returned.append(results_spec)
        return results

    inputs = [leaves[at] for at in tensors]
    with recording_mode_off(), disable_proxy_modes_tracing():
        graph = _traced(flat, inputs, symbols)
    with fx_traceback.preserve_node_meta():
        results = torch.fx.Interpreter(graph).run(inputs, symbols)
    return pytree.tree_unflatten(results, returned[-1])


def _traced(flat: Callable[..., Any], inputs: list[torch.Tensor], symbols: list[torch.SymInt]) -> torch.fx.GraphModule:
    """The graph of plain operators of a function that runs transforms.

    Raises:
        RetryTransforms: If forward derivatives of constants may be the reason that torch fails, specializes a size or
            inserts an empty constant. They are zero tensors without memory: a view of one is neither a fake tensor nor
            recorded, and the sizes of a product with one are the example's.
    """

    def trace(function: Callable[..., Any]) -> torch.fx.GraphModule:
        return make_fx(function, record_stack_traces=True, _disable_torch_fn_metadata_mode=True)(inputs, symbols)

    def with_zeros(*args: Any) -> Any:
        with _OrdinaryZeros():
            return flat(*args)

    tracing = _options()
    if tracing.ordinary_zeros:
        return trace(with_zeros)
    before = _fixed_sizes(symbols)
    try:
        graph = trace(flat)
    except (AssertionError, RuntimeError) as error:
        tracing.ordinary_zeros = True
        raise RetryTransforms from error
    if any(map(_is_lost, vars(graph).values())) or _fixed_sizes(symbols) != before:
        tracing.ordinary_zeros = True
        raise RetryTransforms
    return graph


def _fixed_sizes(symbols: list[torch.SymInt]) -> int:
    """The number of symbols that have one value: a specialized size may keep its symbol, with a range of one value."""
    return sum(symbol.node.shape_env.bound_sympy(symbol.node.expr).is_singleton() for symbol in symbols)


def _is_lost(constant: Any) -> bool:
    return isinstance(constant, torch.Tensor) and constant.is_meta and constant._is_zerotensor()


class _OrdinaryZeros(TorchDispatchMode):
    """Create zeros in memory where torch creates zero tensors without memory."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._efficientzerotensor.default:
            return torch.zeros(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def call_region(original: Callable[..., Any], function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Replacement of ``invoke_subgraph_placeholder``: call the function, and mark the nodes that it records."""
    mode = recording_mode()
    if mode is None:
        return original(function, *args, **kwargs)
    graph = mode.tracer.graph
    # The number of nodes recorded before identifies the call.
    call = (str(len(graph.nodes)), _name(function))
    before = next(iter(reversed(graph.nodes)))
    result = function(*args, **kwargs)
    node = before.next
    while node.op != "root":
        node.meta[REGIONS_KEY] = (call, *node.meta.get(REGIONS_KEY, ()))
        node = node.next
    return result


def _name(function: Callable[..., Any]) -> str:
    """The name of the function; of its class for ``forward``."""
    qualified = str(getattr(function, "__qualname__", type(function).__name__)).rpartition("<locals>.")[2]
    owner, _, name = qualified.rpartition(".")
    return owner or name if name == "forward" else name


@dataclass
class FunctionCall:
    """One call of ``Function.apply`` in the model.

    Attributes:
        function: The subclass of ``torch.autograd.Function``.
        args: The arguments, with None in place of tensors.
        positions: Indices of the tensors among the arguments.
        is_single: Whether it returns a tensor instead of a tuple; known after it has run.
    """

    function: type[torch.autograd.Function]
    args: tuple[Any, ...]
    positions: tuple[int, ...]
    is_single: bool = True

    @property
    def symbolic(self) -> Callable[..., Any]:
        """The function that emits its ONNX operators."""
        function: Any = self.function
        symbolic: Callable[..., Any] = function.symbolic
        return symbolic

    def with_tensors(self, tensors: list[Any]) -> list[Any]:
        """The arguments, with ``tensors`` in place of the tensors."""
        args = list(self.args)
        for position, tensor in zip(self.positions, tensors, strict=True):
            args[position] = tensor
        return args


@dataclass(frozen=True)
class _Calls:
    """The recorded calls; None if functions run instead of being recorded."""

    found: Sequence[FunctionCall] | None = None


def _run(tensors: list[Tensor], name: str, index: int) -> list[Tensor]:
    """Kernel of ``fxonnx_functions::apply``: run the function.

    Raises:
        RuntimeError: If the operator is called outside of fxonnx, where the function is unknown.
    """
    calls = (active(_Calls) or _Calls()).found
    if calls is None or index >= len(calls):
        raise RuntimeError(f"{name} can only run through the ONNXProgram, which holds the autograd function")
    call = calls[index]
    # Without recorded calls, ``record_function_call`` runs the function instead of recording it again.
    with activated(_Calls()), torch.no_grad():
        function: Any = call.function
        returned = function.apply(*call.with_tensors(list(tensors)))
    call.is_single = isinstance(returned, Tensor)
    outputs = [returned] if call.is_single else list(returned)
    # An operator must not return one of its inputs.
    return [output.clone() if any(output is tensor for tensor in tensors) else output for output in outputs]


_OPERATOR = define_operator("fxonnx_functions::apply(Tensor[] tensors, str name, int index) -> Tensor[]", _run, _run)


def record_function_call(
    original: Callable[..., Any], cls: type[torch.autograd.Function], *args: Any, **kwargs: Any
) -> Any:
    """Replacement of ``Function.apply``: record a function with a ``symbolic`` as a single operator."""
    calls: Any = (active(_Calls) or _Calls()).found
    positions = tuple(index for index, argument in enumerate(args) if isinstance(argument, Tensor))
    if calls is None or not callable(getattr(cls, "symbolic", None)) or not positions or kwargs:
        return original(cls, *args, **kwargs)
    index = len(calls)
    kept = tuple(None if isinstance(argument, Tensor) else argument for argument in args)
    calls.append(FunctionCall(cls, kept, positions))
    tensors = [args[position] for position in positions]
    outputs = torch.ops.fxonnx_functions.apply(tensors, cls.__qualname__, index)
    return outputs[0] if calls[index].is_single else tuple(outputs)


def recorded_function_calls(calls: Sequence[FunctionCall]) -> AbstractContextManager[Any]:
    """Make recorded autograd functions available to their operators inside the context.

    Args:
        calls: The recorded calls; during a capture, a list to which new calls are appended.
    """
    return activated(_Calls(calls))
