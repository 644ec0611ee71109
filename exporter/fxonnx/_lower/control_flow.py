"""``torch.cond`` and ``torch.while_loop``: If and Loop, whose bodies are graphs of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import onnx_ir as ir
import torch

from fxonnx_translations._builder.op import Op, Result, Unsupported

__all__ = ["CONTROL_FLOW", "WriteBody"]

WriteBody: TypeAlias = Callable[[Op, torch.fx.Node, Sequence[ir.Value]], "list[ir.Value]"]
"""Writes the operators of a body, given by its ``get_attr`` node, with values for its placeholders."""


def _cond(op: Op, node: torch.fx.Node, value: Callable[[Any], Any], write: WriteBody) -> tuple[ir.Value, ...]:
    """cond(pred, true_fn, false_fn, operands) -> outputs"""
    predicate, then, otherwise, operands = _four(node)
    given, condition = value(operands), value(predicate)
    if not isinstance(condition, ir.Value):
        if condition in (True, False):
            return tuple(write(op, then if condition else otherwise, given))
        # A relation of sizes.
        condition = op.size(condition)
    branches: dict[str, Any] = {}
    for name, body in (("then_branch", then), ("else_branch", otherwise)):
        inner = op.body(name, [])
        branches[name] = inner.finish(_sized(write(inner, body, given), op.results))
    return _typed(op, op.multi("If", op.Reshape(condition, []), outputs=len(op.results), **branches))


def _while_loop(op: Op, node: torch.fx.Node, value: Callable[[Any], Any], write: WriteBody) -> tuple[ir.Value, ...]:
    """while_loop(cond_fn, body_fn, carried_inputs, additional_inputs) -> carried_outputs"""
    goes_on, body, carried, additional = _four(node)
    first, constant = value(carried), value(additional)
    if not all(isinstance(item, ir.Value) for item in first):
        raise Unsupported("a loop that carries numbers; carry tensors of 0 dims")
    (condition,) = write(op, goes_on, [*first, *constant])
    types = [(result.dtype, result.shape) for result in op.results]
    inner = op.body("body", [(ir.DataType.INT64, ()), (ir.DataType.BOOL, ()), *types])
    state = inner.graph.inputs[2:]
    after = write(inner, body, [*state, *constant])
    (again,) = write(inner, goes_on, [*after, *constant])
    graph = inner.finish([(inner.Reshape(again, []), ()), *_sized(after, op.results)])
    return _typed(op, op.multi("Loop", None, op.Reshape(condition, []), *first, outputs=len(op.results), body=graph))


def _four(node: torch.fx.Node) -> tuple[Any, Any, Any, Any]:
    one, two, three, *rest = node.args
    return one, two, three, rest[0] if rest else ()


def _typed(op: Op, values: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
    """The outputs with the types of what the bodies return, which ``_sized`` has checked."""
    for value, result in zip(values, op.results, strict=True):
        value.type = ir.TensorType(result.dtype)
    return tuple(values)


def _sized(values: Sequence[ir.Value], results: Sequence[Result]) -> list[tuple[ir.Value, Any]]:
    for value, result in zip(values, results, strict=True):
        if value.dtype != result.dtype:
            raise Unsupported(f"a body returns {value.dtype}, torch says {result.dtype}")
    return [(value, result.shape) for value, result in zip(values, results, strict=True)]


CONTROL_FLOW: Mapping[Any, Callable[..., tuple[ir.Value, ...]]] = MappingProxyType(
    {torch.ops.higher_order.cond: _cond, torch.ops.higher_order.while_loop: _while_loop}
)
"""Operators with bodies, each to what writes it."""
