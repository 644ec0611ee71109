"""Calling the translations of a ``custom_translation_table``, in each form that users write them in."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import onnxscript
from onnxscript import evaluator, onnx_types, values

from fxonnx_translations._builder.op import Op, Unsupported
from fxonnx_translations._torch_compat import OpOverload

from .onnxscript_values import as_operand, plain
from .user_symbolics import CalledFunctions, Symbolic, SymbolicGraph, by_schema, call_symbolic

__all__ = ["call_custom"]


def call_custom(
    function: Callable[..., Any] | Sequence[Callable[..., Any]],
    op: Op,
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    opsets: Mapping[str, int],
) -> Any:
    """Runs a user's translation.

    Args:
        function: An ``@onnxscript.script`` function, whose body is inlined; a function whose first parameter is ``op``,
            or ``g`` as in torch.onnx's symbolic functions; a function that calls operators of ``onnxscript.opsetN``; or
            several of these, of which the first whose annotations allow the arguments' element types is run.
        op: The op object of the node.
        target: The operator.
        args: The node's positional arguments.
        kwargs: The node's keyword arguments.
        opsets: Versions of the domains of custom operators.

    Returns:
        The value or values it returns.

    Raises:
        Unsupported: If none of several takes the arguments.
    """
    if isinstance(function, Sequence):
        chosen = next((one for one in function if _takes(one, args, kwargs)), None)
        if chosen is None:
            raise Unsupported(f"none of the {len(function)} functions takes these element types")
        return call_custom(chosen, op, target, args, kwargs, opsets)
    if isinstance(function, onnxscript.OnnxFunction):
        return op.call_inline(function, *args, **kwargs)
    if isinstance(function, CalledFunctions):
        return function(SymbolicGraph(op, opsets), *args)
    first = "g" if isinstance(function, Symbolic) else _first_parameter(function)
    if first == "g":
        if isinstance(target, OpOverload):
            args, kwargs = by_schema(function, target, args, kwargs)
        return call_symbolic(function, SymbolicGraph(op, opsets), args, kwargs)
    if first == "op":
        return function(op, *args, **kwargs)
    with evaluator.default_as(_Emitting(op, opsets)):
        given = {
            key: -1 if key == "dtype" and value is None else as_operand(op, value) for key, value in kwargs.items()
        }
        return plain(function(*as_operand(op, list(args)), **given))


def _first_parameter(function: Callable[..., Any]) -> str:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return "op"
    # What takes anything takes the op object, too.
    if not parameters or parameters[0].kind == inspect.Parameter.VAR_POSITIONAL:
        return "op"
    return parameters[0].name


def _takes(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the element types of the arguments are among those that a function is annotated with."""
    allowed = _allowed_types(function)
    return all(
        not isinstance(value, ir.Value) or value.dtype is None or types is None or value.dtype in types
        for value, types in (
            *zip(args, allowed.values(), strict=False),
            *((value, allowed.get(name)) for name, value in kwargs.items()),
        )
    )


def _allowed_types(function: Callable[..., Any]) -> dict[str, frozenset[ir.DataType] | None]:
    """The element types that each parameter takes; None for any."""
    signature = getattr(function, "op_signature", None)
    if signature is not None:
        constraints = {declared.name: getattr(declared, "type_constraint", None) for declared in signature.params}
        return {
            name: None if constraint is None else frozenset(one.dtype for one in constraint.allowed_types)
            for name, constraint in constraints.items()
        }
    try:
        names = list(inspect.signature(function).parameters)
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, ValueError):
        # Not a Python function, or annotated with what is only imported for type checkers.
        return {}
    return {name: _annotated_types(hints.get(name)) for name in names[names[:1] in (["op"], ["g"]) :]}


def _annotated_types(annotation: Any) -> frozenset[ir.DataType] | None:
    """The element types of an annotation such as ``FLOAT["N"]``, of a union of these or a ``TypeVar``; None for any."""
    if isinstance(annotation, type) and issubclass(annotation, onnx_types.TensorType):
        return frozenset({annotation.dtype})
    if isinstance(annotation, typing.TypeVar):
        members: tuple[Any, ...] = annotation.__constraints__ or (annotation.__bound__,)
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = typing.get_args(annotation)
    else:
        return None
    found = [_annotated_types(member) for member in members]
    return frozenset().union(*(each for each in found if each is not None)) or None


class _Emitting:
    """What ``onnxscript.opsetN.Add(...)`` does while a user's function runs: it becomes a node of the graph."""

    def __init__(self, op: Op, opsets: Mapping[str, int]) -> None:
        self._op = op
        self._opsets = opsets

    def eval_op(self, operator: values.Op, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Emits one operator; inputs may be given by name."""
        schema = operator.op_schema
        if schema is None:
            raise Unsupported(f"{operator.domain or 'ONNX'} has no operator {operator.name}")
        given = {key: plain(value) for key, value in kwargs.items()}
        inputs = plain(list(args))
        inputs += [given.pop(declared.name, None) for declared in schema.inputs[len(inputs) :]]
        while inputs and inputs[-1] is None:
            inputs.pop()
        if operator.domain not in ("", "ai.onnx"):
            graph = SymbolicGraph(self._op, self._opsets)
            return self._operands(graph.emit(operator.domain, operator.name, inputs, given, len(schema.outputs)))
        if operator.name == "BatchNormalization" and not given.get("training_mode"):
            count = 1
        else:
            count = int(given["num_outputs"]) if "num_outputs" in given else len(schema.outputs)
        return self._operands(self._op.multi(operator.name, *inputs, outputs=count, **given))

    def _operands(self, values: Sequence[ir.Value]) -> Any:
        operands = tuple(as_operand(self._op, value) for value in values)
        return operands[0] if len(operands) == 1 else operands

    def eval_function(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Inlines another function."""
        made = self._op.call_inline(function, *plain(list(args)), **{name: plain(kwargs[name]) for name in kwargs})
        return self._operands([made] if isinstance(made, ir.Value) else made)
