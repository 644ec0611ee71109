"""Trace the decomposition of one operator call into a graph, with the fake tensors of its FX node."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from fxonnx_translations._torch_compat import (
    DisableTorchFunction,
    FakeTensor,
    OpOverload,
    decomposition_table,
    disable_fake_tensor_cache,
    prims,
    set_grad_enabled,
    shape_config,
)

from .._provenance import copy_provenance
from ..errors import PrepareError, one_line
from .functionalize import functionalize
from .graph_utils import (
    erase_unused,
    fake_mode_of,
    find_attribute,
    getitem_nodes,
    module_attribute,
    nodes_between,
    replace_node,
    splice,
    store_attribute,
)
from .sizes import same_size

__all__ = [
    "TraceError",
    "call_key",
    "contiguous",
    "decompositions",
    "no_new_guards",
    "splice_trace",
    "trace_call",
    "value_key",
]

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)

_ASSERTIONS = frozenset(
    {
        torch.ops.aten._assert_async.default,
        torch.ops.aten._assert_async.msg,
        torch.ops.aten._assert_scalar.default,
        torch.ops.aten._assert_tensor_metadata.default,
        torch.ops.aten.sym_constrain_range.default,
        torch.ops.aten.sym_constrain_range_for_size.default,
        set_grad_enabled,
    }
)


class TraceError(Exception):
    """A decomposition cannot be traced, or its result disagrees with the node's value."""


def _operands(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The argument nodes that are inputs of a traced graph; those with a Python number as value are constants."""
    return [
        argument
        for argument in node.all_input_nodes
        if isinstance(argument.meta.get("val"), (torch.Tensor, list, tuple, *_SYMBOLIC))
    ]


def value_key(value: Any) -> Hashable:
    """A key of dtype, shape, layout and device of a node's value, for a list of all its items."""
    if isinstance(value, torch.Tensor):
        stride = tuple(map(_size, value.stride())) if value.layout is torch.strided else value.layout
        return value.dtype, tuple(map(_size, value.shape)), stride, value.device
    if isinstance(value, (list, tuple)):
        return tuple(map(value_key, value))
    return _size(value)


def _size(size: Any) -> Hashable:
    return size.node.expr if isinstance(size, _SYMBOLIC) else _constant_key(size)


def _constant_key(value: Any) -> Hashable:
    # Equality does not suffice: 1 == True == 1.0, 0.0 == -0.0 and nan != nan.
    if isinstance(value, float):
        return "float", value.hex()
    if isinstance(value, complex):
        return "complex", value.real.hex(), value.imag.hex()
    if isinstance(value, slice):
        return "slice", _constant_key(value.start), _constant_key(value.stop), _constant_key(value.step)
    return type(value).__name__, value


def call_key(node: torch.fx.Node) -> Hashable:
    """A key that is equal for calls with the same trace: target, constants, shapes and dtypes."""
    operands = {operand: position for position, operand in enumerate(_operands(node))}

    def key(argument: Any) -> Hashable:
        if isinstance(argument, torch.fx.Node):
            if argument in operands:
                return "operand", operands[argument], value_key(argument.meta["val"])
            return _constant_key(argument.meta.get("val"))
        if isinstance(argument, (list, tuple)):
            return tuple(map(key, argument))
        return _constant_key(argument)

    return node.target, key(node.args), tuple((name, key(value)) for name, value in node.kwargs.items())


@contextlib.contextmanager
def no_new_guards(fake_mode: Any) -> Iterator[None]:
    """Inside the context, torch raises instead of adding guards on symbolic sizes.

    Backed sizes are treated as if they were neither 0 nor 1, so that fast paths for such sizes are not taken.
    """
    shape_env = fake_mode.shape_env if fake_mode is not None else None
    if shape_env is None:
        yield
        return
    general = shape_config.patch(backed_size_oblivious=True)
    # Filling the fake tensor cache guards on the memory layout of results.
    uncached = disable_fake_tensor_cache(fake_mode)
    with general, uncached, shape_env.error_on_new_guards(), shape_env.ignore_fresh_unbacked_symbols():
        yield


def decompositions(target: Any) -> list[Callable[..., Any]]:
    """The decompositions of an operator, the smallest step first."""
    found: list[Callable[..., Any]] = []
    if target._can_decompose():

        def composite(*args: Any, **kwargs: Any) -> Any:
            # With torch function overrides, as during tracing, torch would call the operator instead of decomposing it.
            with DisableTorchFunction():
                return target.decompose(*args, **kwargs)

        found.append(composite)
    if target in decomposition_table:
        found.append(decomposition_table[target])
    in_aten = getattr(target, "impl_aten", None) or getattr(
        getattr(prims, target._opname, None) if target.namespace == "prims" else None, "impl_aten", None
    )
    if in_aten is not None:
        found.append(in_aten)
    return found


def trace_call(
    node: torch.fx.Node, function: Callable[..., Any], *, check: bool = True, pre_dispatch: bool = True
) -> torch.fx.GraphModule:
    """Trace ``function`` on the arguments of a call.

    Args:
        node: The call; its arguments' ``meta["val"]`` are fake tensors and symbolic or plain numbers.
        function: Computes the node's result from the node's arguments.
        check: Whether to compare shapes and dtypes of the result with the node's value.
        pre_dispatch: Whether to keep composite operators; functorch's transforms require that they are decomposed.

    Returns:
        A functional graph of the operators that ``function`` calls directly, not decomposed further. Its placeholders
        are the tensor and symbolic arguments of the call in order, including those in lists.

    Raises:
        TraceError: If tracing fails, would add a guard on symbolic sizes, or yields other shapes or dtypes.
    """
    operands = _operands(node)
    values = [operand.meta["val"] for operand in operands]

    def run(*inputs: Any) -> Any:
        given = dict(zip(operands, inputs, strict=True))

        def real(argument: torch.fx.Node) -> Any:
            return given[argument] if argument in given else argument.meta.get("val")

        result = function(*torch.fx.map_arg(node.args, real), **torch.fx.map_arg(node.kwargs, real))
        # A named tuple would be traced as a separate node.
        return list(result) if isinstance(result, (list, tuple)) else result

    fake_mode = fake_mode_of([*_flat(values), *_flat([node.meta.get("val")])])
    traced = _traced(run, values, fake_mode, pre_dispatch)
    if isinstance(traced, Exception):
        error = traced
        plain = [_alone(contiguous(value)) for value in values]
        if any(one is not other for one, other in zip(plain, values, strict=True)):
            # Transposed strides make torch guard on sizes of 1; ONNX has no memory layout, so contiguous is equivalent.
            traced = _traced(run, plain, fake_mode, pre_dispatch)
        if isinstance(traced, Exception):
            raise TraceError(one_line(error)) from error
    _restore_constants(traced)
    _remove_side_effects(traced.graph)
    if check:
        _check(node, traced.graph)
    return traced


def _traced(
    run: Callable[..., Any], values: Sequence[Any], fake_mode: Any, pre_dispatch: bool
) -> torch.fx.GraphModule | Exception:
    """The graph, or the error, which may be any: decompositions are code of torch and of libraries."""
    try:
        with torch.no_grad(), no_new_guards(fake_mode), fake_mode or contextlib.nullcontext():
            tracer = make_fx(run, tracing_mode="fake", pre_dispatch=pre_dispatch, _disable_torch_fn_metadata_mode=True)
            return tracer(*values)
    except Exception as error:  # noqa: BLE001 - the caller raises it with the operator
        return error


def contiguous(value: Any) -> Any:
    """A contiguous fake tensor of the same shape, for a non-contiguous one with symbolic sizes."""
    if not isinstance(value, FakeTensor) or value.layout is not torch.strided:
        return value
    if not any(isinstance(size, torch.SymInt) for size in value.shape):
        return value
    with value.fake_mode:
        plain = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    return value if value_key(plain) == value_key(value) else plain


def _alone(value: Any) -> Any:
    """A fake tensor with memory of its own, for a part of memory of symbolic size, about which torch would guard."""
    if not isinstance(value, FakeTensor) or value.layout is not torch.strided:
        return value
    memory = value.untyped_storage().nbytes()
    if not isinstance(memory, torch.SymInt) or same_size(memory, value.numel() * value.element_size()):
        return value
    with value.fake_mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _flat(values: Sequence[Any]) -> list[Any]:
    return [item for value in values for item in (_flat(value) if isinstance(value, (list, tuple)) else [value])]


def _restore_constants(traced: torch.fx.GraphModule) -> None:
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            value = find_attribute(traced, str(node.target))
            # Under a fake mode torch.tensor(...) returns a fake tensor, which holds the real one.
            real = getattr(value, "constant", None)
            if real is None and fake_mode_of([value]) is not None:
                raise TraceError(f"the decomposition creates a tensor {node.target} whose values are unknown")
            if real is not None:
                setattr(traced, str(node.target), real)
            node.meta.setdefault("val", value)


def _remove_side_effects(graph: torch.fx.Graph) -> None:
    """Remove assertions, grad mode switches and unused metadata queries, and functionalize in-place operators."""
    writes = False
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _ASSERTIONS or ("val" not in node.meta and not node.users):
            sources = node.all_input_nodes
            graph.erase_node(node)
            erase_unused(sources)
        elif isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            writes = True
    if writes:
        try:
            mutations = functionalize(graph)
        except PrepareError as error:
            raise TraceError(f"the decomposition cannot be functionalized: {error.message}") from error
        if mutations:
            raise TraceError("the decomposition writes to its arguments")


def _check(node: torch.fx.Node, graph: torch.fx.Graph) -> None:
    """Raise unless the traced graph has the node's number of results, dtypes, ranks and static sizes."""
    output = next(iter(reversed(graph.nodes)))
    known = free_unbacked_symbols([node.meta.get("val"), *(operand.meta["val"] for operand in _operands(node))])
    for inner in graph.nodes:
        if free_unbacked_symbols(inner.meta.get("val")) - known:
            raise TraceError(f"the decomposition calls {inner.target}, whose result has a size known only at run time")
    result = torch.fx.map_arg(output.args[0], lambda inner: inner.meta.get("val"))
    _compare(node.meta.get("val"), result)


def _compare(expected: Any, found: Any) -> None:
    if isinstance(expected, (list, tuple)):
        if not isinstance(found, (list, tuple)) or len(found) != len(expected):
            raise TraceError(f"the decomposition does not return {len(expected)} values")
        for one, other in zip(expected, found, strict=True):
            _compare(one, other)
    elif isinstance(expected, torch.Tensor) and found is not None:
        if not isinstance(found, torch.Tensor):
            raise TraceError(f"the decomposition returns {type(found).__name__}, the operator a tensor")
        if expected.dtype != found.dtype:
            raise TraceError(f"the decomposition returns {found.dtype}, the operator {expected.dtype}")
        sizes = zip(expected.shape, found.shape, strict=False)
        if expected.dim() != found.dim() or any(type(a) is int and type(b) is int and a != b for a, b in sizes):
            raise TraceError(
                f"the decomposition returns shape {tuple(found.shape)}, the operator {tuple(expected.shape)}"
            )


def splice_trace(owner: torch.fx.GraphModule, node: torch.fx.Node, trace: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """Replace a call by its traced graph.

    Args:
        owner: The graph module of the node; constants of the trace become its attributes.
        node: The call to replace; it is erased.
        trace: A trace of the call, or of one with the same :func:`call_key`; not changed.

    Returns:
        The new nodes.
    """
    inputs: list[Any] = []
    for operand in _operands(node):
        inputs.extend(getitem_nodes(operand) if isinstance(operand.meta["val"], (list, tuple)) else [operand])
    before = node.prev

    def attribute(inner: torch.fx.Node) -> str:
        return store_attribute(owner, f"_constant_of_{node.name}", module_attribute(trace, inner))

    result = splice(node.graph, node, trace.graph, inputs, attribute)
    made = nodes_between(before, node)
    for new in made:
        copy_provenance(new, node)
    replace_node(node, result, made)
    node.graph.erase_node(node)
    return made
