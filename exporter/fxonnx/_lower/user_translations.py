"""Call the user's translations of a ``custom_translation_table``, in each supported style."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partialmethod
from typing import Any

import onnx_ir as ir
import onnxscript
import torch
from onnxscript import evaluator, onnx_types, values

from fxonnx_translations._builder.dtypes import from_torch
from fxonnx_translations._builder.op import Op, Unsupported
from fxonnx_translations._builder.op_schema import info_of

from .._extensions import add_on
from .passthrough import emit_custom

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
            key: -1 if key == "dtype" and value is None else _to_script_value(op, value)
            for key, value in kwargs.items()
        }
        return _to_plain(function(*_to_script_value(op, list(args)), **given))


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
        given = {key: _to_plain(value) for key, value in kwargs.items()}
        inputs = _to_plain(list(args))
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
        script_values = tuple(_to_script_value(self._op, value) for value in values)
        return script_values[0] if len(script_values) == 1 else script_values

    def eval_function(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Inline an onnxscript function."""
        made = self._op.call_inline(
            function, *_to_plain(list(args)), **{name: _to_plain(kwargs[name]) for name in kwargs}
        )
        return self._script_values([made] if isinstance(made, ir.Value) else made)


class _ScriptOperand:
    """A graph value with Python arithmetic and comparison operators, as in ``x * 2 > y``.

    Args:
        op: The op object of the node.
        value: The graph value; other attributes are forwarded to it.
    """

    def __init__(self, op: Op, value: ir.Value) -> None:
        self._op = op
        self.value = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)

    def _binary(self, op_type: str, other: Any, *, swapped: bool = False) -> _ScriptOperand:
        plain = _to_plain(other)
        # A number has the type of the value, also of one that an operator of another domain computes.
        pair = [self.value, plain if self.value.dtype is None else self._op.operand(plain, self.value.dtype)]
        return _ScriptOperand(self._op, getattr(self._op, op_type)(*(reversed(pair) if swapped else pair)))

    def __neg__(self) -> _ScriptOperand:
        return _ScriptOperand(self._op, self._op.Neg(self.value))

    __add__ = partialmethod(_binary, "Add")
    __sub__ = partialmethod(_binary, "Sub")
    __mul__ = partialmethod(_binary, "Mul")
    __truediv__ = partialmethod(_binary, "Div")
    __pow__ = partialmethod(_binary, "Pow")
    __mod__ = partialmethod(_binary, "Mod")
    __matmul__ = partialmethod(_binary, "MatMul")
    __lt__ = partialmethod(_binary, "Less")
    __le__ = partialmethod(_binary, "LessOrEqual")
    __gt__ = partialmethod(_binary, "Greater")
    __ge__ = partialmethod(_binary, "GreaterOrEqual")
    __radd__ = partialmethod(_binary, "Add", swapped=True)
    __rsub__ = partialmethod(_binary, "Sub", swapped=True)
    __rmul__ = partialmethod(_binary, "Mul", swapped=True)
    __rtruediv__ = partialmethod(_binary, "Div", swapped=True)
    __rpow__ = partialmethod(_binary, "Pow", swapped=True)
    __rmod__ = partialmethod(_binary, "Mod", swapped=True)
    __rmatmul__ = partialmethod(_binary, "MatMul", swapped=True)


def _to_script_value(op: Op, argument: Any) -> Any:
    """Convert an argument to the form in which torch.onnx passes it to onnxscript functions."""
    if isinstance(argument, ir.Value):
        return _ScriptOperand(op, argument)
    if isinstance(argument, list):
        return [_to_script_value(op, item) for item in argument]
    if isinstance(argument, torch.dtype):
        return int(from_torch(argument))
    if isinstance(argument, (torch.device, torch.memory_format, torch.layout)):
        return str(argument)
    return argument


def _to_plain(returned: Any) -> Any:
    """Unwrap operands, also in lists, to the graph values they hold."""
    if isinstance(returned, (list, tuple)):
        return [_to_plain(item) for item in returned]
    return returned.value if isinstance(returned, _ScriptOperand) else returned
