"""Lowering of ``torch.cond`` and ``torch.while_loop`` to If and Loop with subgraphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import onnx_ir as ir
import torch

from fxonnx_translations._builder.op import Op, ResultSpec, Unsupported

__all__ = ["CONTROL_FLOW", "LowerSubgraph"]

LowerSubgraph: TypeAlias = Callable[[Op, torch.fx.Node, Sequence[ir.Value]], "list[ir.Value]"]
"""Lowers a subgraph, given by its ``get_attr`` node, with values for its placeholders; returns its outputs."""


def _cond(op: Op, node: torch.fx.Node, value: Callable[[Any], Any], lower: LowerSubgraph) -> tuple[ir.Value, ...]:
    """cond(pred, true_fn, false_fn, operands) -> outputs"""
    predicate, true_fn, false_fn, operands = _arguments(node)
    given, condition = value(operands), value(predicate)
    if not isinstance(condition, ir.Value):
        if condition in (True, False):
            return tuple(lower(op, true_fn if condition else false_fn, given))
        # A relation between sizes.
        condition = op.size(condition)
    branches: dict[str, Any] = {}
    for name, body_fn in (("then_branch", true_fn), ("else_branch", false_fn)):
        inner = op.body(name, [])
        branches[name] = inner.finish(_with_shapes(lower(inner, body_fn, given), op.results))
    return _set_types(op, op.multi("If", op.Reshape(condition, []), outputs=len(op.results), **branches))


def _while_loop(op: Op, node: torch.fx.Node, value: Callable[[Any], Any], lower: LowerSubgraph) -> tuple[ir.Value, ...]:
    """while_loop(cond_fn, body_fn, carried_inputs, additional_inputs) -> carried_outputs"""
    cond_fn, body_fn, carried, additional = _arguments(node)
    first, constant = value(carried), value(additional)
    if not all(isinstance(item, ir.Value) for item in first):
        raise Unsupported("the loop carries Python numbers; carry 0-dim tensors instead")
    (condition,) = lower(op, cond_fn, [*first, *constant])
    types = [(result.dtype, result.shape) for result in op.results]
    inner = op.body("body", [(ir.DataType.INT64, ()), (ir.DataType.BOOL, ()), *types])
    state = inner.graph.inputs[2:]
    after = lower(inner, body_fn, [*state, *constant])
    (again,) = lower(inner, cond_fn, [*after, *constant])
    graph = inner.finish([(inner.Reshape(again, []), ()), *_with_shapes(after, op.results)])
    return _set_types(
        op, op.multi("Loop", None, op.Reshape(condition, []), *first, outputs=len(op.results), body=graph)
    )


def _arguments(node: torch.fx.Node) -> tuple[Any, Any, Any, Any]:
    """The four arguments of a control flow operator; the last one may be absent."""
    one, two, three, *rest = node.args
    return one, two, three, rest[0] if rest else ()


def _set_types(op: Op, values: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
    """Set the element types of the outputs; ``_with_shapes`` has checked that the subgraphs return them."""
    for value, result in zip(values, op.results, strict=True):
        value.type = ir.TensorType(result.dtype)
    return tuple(values)


def _with_shapes(values: Sequence[ir.Value], results: Sequence[ResultSpec]) -> list[tuple[ir.Value, Any]]:
    """The outputs of a subgraph with their shapes, after a check of their dtypes."""
    for value, result in zip(values, results, strict=True):
        if value.dtype != result.dtype:
            raise Unsupported(f"a subgraph returns {value.dtype}, but torch declares {result.dtype}")
    return [(value, result.shape) for value, result in zip(values, results, strict=True)]


CONTROL_FLOW: Mapping[Any, Callable[..., tuple[ir.Value, ...]]] = MappingProxyType(
    {torch.ops.higher_order.cond: _cond, torch.ops.higher_order.while_loop: _while_loop}
)
"""Control flow operators with subgraphs, each mapped to the function that lowers it."""
