"""Call the user's translations of a ``custom_translation_table``, in each supported style."""

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
from fxonnx_translations._builder.op_schema import info_of

from .._extensions import add_on
from .custom_operators import emit_custom
from .onnxscript_values import to_plain, to_script_value

__all__ = ["call_user_translation"]


def call_user_translation(
    function: Callable[..., Any] | Sequence[Callable[..., Any]],
    op: Op,
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    opsets: Mapping[str, int],
) -> Any:
    """Run a user's translation.

    Args:
        function: An ``@onnxscript.script`` function, which is inlined; a function whose first parameter is ``op``, or
            ``g`` as in torch.onnx's symbolic functions; a function that calls operators of ``onnxscript.opsetN``; or a
            sequence of these, of which the first runs whose annotations accept the arguments' element types.
        op: The op object of the node.
        target: The operator overload.
        args: The node's positional arguments.
        kwargs: The node's keyword arguments.
        opsets: Opset versions of custom domains.

    Returns:
        The value or values it returns.

    Raises:
        Unsupported: If no function of a sequence accepts the arguments.
    """
    if isinstance(function, Sequence):
        chosen = next((one for one in function if _accepts(one, args, kwargs)), None)
        if chosen is None:
            raise Unsupported(f"none of the {len(function)} functions accepts these element types")
        return call_user_translation(chosen, op, target, args, kwargs, opsets)
    if isinstance(function, onnxscript.OnnxFunction):
        return op.call_inline(function, *args, **kwargs)
    if hasattr(function, "translate_node"):
        return function.translate_node(op, target, args, kwargs, opsets)
    first = _first_parameter(function)
    if first == "g":
        return add_on("torchscript").translate_symbolically(function, op, target, args, kwargs, opsets)
    if first == "op":
        return function(op, *args, **kwargs)
    with evaluator.default_as(_EmittingEvaluator(op, opsets)):
        given = {
            key: -1 if key == "dtype" and value is None else to_script_value(op, value) for key, value in kwargs.items()
        }
        return to_plain(function(*to_script_value(op, list(args)), **given))


def _first_parameter(function: Callable[..., Any]) -> str:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return "op"
    # A function of ``*args`` gets the op object as its first argument.
    if not parameters or parameters[0].kind == inspect.Parameter.VAR_POSITIONAL:
        return "op"
    return parameters[0].name


def _accepts(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the function's annotations accept the element types of the arguments."""
    allowed = _allowed_types(function)
    return all(
        not isinstance(value, ir.Value) or value.dtype is None or types is None or value.dtype in types
        for value, types in (
            *zip(args, allowed.values(), strict=False),
            *((value, allowed.get(name)) for name, value in kwargs.items()),
        )
    )


def _allowed_types(function: Callable[..., Any]) -> dict[str, frozenset[ir.DataType] | None]:
    """The element types that each parameter accepts; None for any."""
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
        # Not a Python function, or annotations refer to names imported under TYPE_CHECKING only.
        return {}
    return {name: _annotated_types(hints.get(name)) for name in names[names[:1] in (["op"], ["g"]) :]}


def _annotated_types(annotation: Any) -> frozenset[ir.DataType] | None:
    """The element types of an annotation like ``FLOAT["N"]``, a union of these or a ``TypeVar``; None for any."""
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


class _EmittingEvaluator:
    """The onnxscript evaluator during a user's function: ``opsetN.Add(...)`` emits a node of the graph."""

    def __init__(self, op: Op, opsets: Mapping[str, int]) -> None:
        self._op = op
        self._opsets = opsets

    def eval_op(self, operator: values.Op, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Emit one operator; inputs may be passed by name."""
        schema = operator.op_schema
        if schema is None:
            raise Unsupported(f"{operator.domain or 'ONNX'} has no operator {operator.name}")
        given = {key: to_plain(value) for key, value in kwargs.items()}
        inputs = to_plain(list(args))
        inputs += [given.pop(declared.name, None) for declared in schema.inputs[len(inputs) :]]
        while inputs and inputs[-1] is None:
            inputs.pop()
        if operator.domain not in ("", "ai.onnx"):
            names, rules = (operator.domain, operator.name), info_of(schema).outputs
            return self._script_values(emit_custom(self._op, self._opsets, names, inputs, given, rules))
        if operator.name == "BatchNormalization" and not given.get("training_mode"):
            count = 1
        else:
            count = int(given["num_outputs"]) if "num_outputs" in given else len(schema.outputs)
        return self._script_values(self._op.multi(operator.name, *inputs, outputs=count, **given))

    def _script_values(self, values: Sequence[ir.Value]) -> Any:
        script_values = tuple(to_script_value(self._op, value) for value in values)
        return script_values[0] if len(script_values) == 1 else script_values

    def eval_function(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Inline an onnxscript function."""
        made = self._op.call_inline(
            function, *to_plain(list(args)), **{name: to_plain(kwargs[name]) for name in kwargs}
        )
        return self._script_values([made] if isinstance(made, ir.Value) else made)
