"""Lowering of higher-order operators: ``cond`` to If, ``while_loop`` to Loop, ``scan`` and ``map`` to Scan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import onnx_ir as ir
import sympy
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from fxonnx_translations._builder.op import Op, ResultSpec, Unsupported
from fxonnx_translations._builder.symbolic_dims import Dim

__all__ = ["CONTROL_FLOW", "LowerSubgraph", "bound_symbols", "is_nested", "leaves_of", "nest_like", "nesting"]

LowerSubgraph: TypeAlias = "Callable[[Op, torch.fx.Node, Sequence[Any]], list[Any]]"
"""Lowers a subgraph, given by its ``get_attr`` node, with values or sizes for its placeholders; returns its outputs."""

_TypeAndDims: TypeAlias = tuple[ir.DataType, tuple[Dim, ...]]


def bound_symbols(node: torch.fx.Node) -> Iterable[sympy.Symbol]:
    """The symbols of data-dependent numbers that a node defines.

    torch does not record those of a tensor that a branch uses as an index: ``x[:n]`` calls ``n.item()``.
    """
    recorded: Mapping[sympy.Symbol, Any] = node.meta.get("unbacked_bindings") or {}
    if recorded or node.target is not torch.ops.aten.item.default:
        return recorded
    return free_unbacked_symbols(node.meta["val"])


def _cond(op: Op, node: torch.fx.Node, value: Callable[[Any], Any], lower: LowerSubgraph) -> Sequence[ir.Value]:
    """cond(pred, true_fn, false_fn, operands) -> outputs"""
    predicate, true_fn, false_fn, operands = _arguments(node)
    given, condition = value(operands), _constant_condition(op, value(predicate))
    if condition in (True, False):
        return _as_values(op, lower(op, true_fn if condition else false_fn, given), op.results)
    branches: dict[str, Any] = {}
    for name, body_fn in (("then_branch", true_fn), ("else_branch", false_fn)):
        inner = op.body(name, [])
        returned = _as_values(inner, lower(inner, body_fn, given), op.results)
        branches[name] = inner.finish(_with_dims(returned, op.results))
    return _set_types(op, op.multi("If", _as_condition(op, condition), outputs=len(op.results), **branches))


def _while_loop(op: Op, node: torch.fx.Node, value: Callable[[Any], Any], lower: LowerSubgraph) -> Sequence[ir.Value]:
    """while_loop(cond_fn, body_fn, carried_inputs, additional_inputs) -> carried_outputs"""
    cond_fn, body_fn, carried, additional = _arguments(node)
    constant = value(additional)
    first = _as_values(op, value(carried), op.results)
    (condition,) = lower(op, cond_fn, [*first, *constant])
    types = [_type_and_dims(result) for result in op.results]
    inner = op.body("body", [(ir.DataType.INT64, ()), (ir.DataType.BOOL, ()), *types])
    after = _as_values(inner, lower(inner, body_fn, [*inner.graph.inputs[2:], *constant]), op.results)
    (again,) = lower(inner, cond_fn, [*after, *constant])
    graph = inner.finish([(_as_condition(inner, again), ()), *_with_dims(after, op.results)])
    outputs = op.multi("Loop", None, _as_condition(op, condition), *first, outputs=len(op.results), body=graph)
    return _set_types(op, outputs)


def _scan(op: Op, node: torch.fx.Node, value: Callable[[Any], Any], lower: LowerSubgraph) -> Sequence[ir.Value]:
    """scan(combine_fn, init, xs, additional_inputs) -> (*carries, *ys)"""
    combine_fn, init, xs, additional = _arguments(node)
    return _emit_scan(op, combine_fn, (value(init), value(xs), value(additional)), lower)


def _map(op: Op, node: torch.fx.Node, value: Callable[[Any], Any], lower: LowerSubgraph) -> Sequence[ir.Value]:
    """map_impl(f, xs, pos_args) -> ys"""
    function, xs, additional = node.args[:3]
    return _emit_scan(op, function, ([], value(xs), value(additional)), lower)


def _emit_scan(
    op: Op, body_fn: Any, operands: tuple[list[ir.Value], list[ir.Value], list[Any]], lower: LowerSubgraph
) -> Sequence[ir.Value]:
    """Emit a Scan over axis 0 of the second operands, with the first ones as states and the third ones in scope."""
    init, xs, constant = operands
    carries, stacked = op.results[: len(init)], op.results[len(init) :]
    inner = op.body("body", [*map(_type_and_dims, carries), *((op.dtype_of(item), op.dims(item)[1:]) for item in xs)])
    steps = [ResultSpec(result.dtype, result.shape[1:], result.torch_dtype) for result in stacked]
    returned = _as_values(inner, lower(inner, body_fn, [*inner.graph.inputs, *constant]), [*carries, *steps])
    graph = inner.finish(_with_dims(returned, [*carries, *steps]))
    outputs = op.multi("Scan", *init, *xs, outputs=len(op.results), body=graph, num_scan_inputs=len(xs))
    return _set_types(op, outputs)


def _arguments(node: torch.fx.Node) -> tuple[Any, Any, Any, Any]:
    """The four arguments of a control flow operator; the last one may be absent."""
    one, two, three, *rest = node.args
    return one, two, three, rest[0] if rest else ()


def _as_values(op: Op, items: Sequence[Any], results: Sequence[ResultSpec]) -> list[ir.Value]:
    """The items as values, sizes and Python numbers as 0-dim tensors, after a check of their dtypes."""
    values = []
    for item, result in zip(items, results, strict=True):
        value = item if isinstance(item, ir.Value) else op.scalar(item, result.dtype)
        if value.dtype != result.dtype:
            raise Unsupported(f"a subgraph returns {value.dtype}, but torch declares {result.dtype}")
        values.append(value)
    return values


def _constant_condition(op: Op, condition: Any) -> Any:
    """The condition, as a Python bool if it is a constant; buffers are not, since users can update them."""
    if not isinstance(condition, ir.Value):
        return condition
    literal = op.builder.module_literal(condition)
    numbers = op.numbers(condition) if literal is None else literal.reshape(-1).tolist()
    return condition if numbers is None else bool(numbers[0])


def _as_condition(op: Op, condition: Any) -> ir.Value:
    """A 0-dim BOOL: of a tensor with one element, a relation between sizes or a Python bool."""
    if condition in (True, False):
        return op.const(bool(condition))
    return op.Reshape(condition if isinstance(condition, ir.Value) else op.size(condition), [])


def _type_and_dims(result: ResultSpec) -> _TypeAndDims:
    """Element type and sizes of a value; a complex number is a pair of real ones."""
    return result.dtype, (*result.shape, 2) if result.torch_dtype.is_complex else result.shape


def _with_dims(values: Sequence[ir.Value], results: Sequence[ResultSpec]) -> list[tuple[ir.Value, tuple[Dim, ...]]]:
    """The outputs of a subgraph with their sizes."""
    return [(value, _type_and_dims(result)[1]) for value, result in zip(values, results, strict=True)]


def _set_types(op: Op, values: Sequence[ir.Value]) -> Sequence[ir.Value]:
    """Set the element types of the outputs; ``_as_values`` has checked that the subgraphs return them."""
    for value, result in zip(values, op.results, strict=True):
        value.type = ir.TensorType(result.dtype)
    return values


_higher_order = torch.ops.higher_order

CONTROL_FLOW: Mapping[Any, Callable[..., Sequence[ir.Value]]] = MappingProxyType(
    {
        _higher_order.cond: _cond,
        _higher_order.while_loop: _while_loop,
        _higher_order.scan: _scan,
        _higher_order.map_impl: _map,
    }
)
"""Higher-order operators with subgraphs, each mapped to the function that lowers it."""


def nest_like(val: Any, values: Iterator[ir.Value]) -> Any:
    """Nest the values, one for each tensor, like torch's results."""
    if isinstance(val, (list, tuple)):
        return [nest_like(item, values) for item in val]
    return next(values) if isinstance(val, torch.Tensor) else None


def leaves_of(val: Any) -> list[Any]:
    """The values of a result, in the order of its schema."""
    return [leaf for item in val for leaf in leaves_of(item)] if isinstance(val, (list, tuple)) else [val]


def is_nested(returned: Any) -> bool:
    """Whether it is a list that has lists."""
    return isinstance(returned, (list, tuple)) and any(isinstance(item, (list, tuple)) for item in returned)


def nesting(returned: Any) -> str:
    """The lists of a result, for messages: ``[value, [value, value]]``."""
    return f"[{', '.join(map(nesting, returned))}]" if isinstance(returned, (list, tuple)) else "value"
