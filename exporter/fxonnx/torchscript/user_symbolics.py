"""Run the user's ``symbolic(g, *inputs)`` functions, as written for torch.onnx, on our graph."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import onnx_ir as ir
import torch

from fxonnx_translations._builder.constants import array_of
from fxonnx_translations._builder.dtypes import from_torch, to_torch_dtype
from fxonnx_translations._builder.initializers import TorchTensor
from fxonnx_translations._builder.op import Op, Unsupported
from fxonnx_translations._builder.op_schema import schema_info
from fxonnx_translations._torch_compat import OpOverload, ScriptNode, ScriptValue

from .._capture.function_transforms import FunctionCall
from .._lower.metadata import SCOPE
from .._lower.passthrough import as_input, emit_custom
from .._public import public
from ..errors import ArgumentError, did_you_mean, kind_of
from .applies import REGISTERED

__all__ = [
    "CalledFunctions",
    "SymbolicFunction",
    "SymbolicGraph",
    "SymbolicType",
    "SymbolicValue",
    "register_custom_op_symbolic",
    "registered_symbolics",
    "rename_by_scope",
    "translate_symbolically",
    "unregister_custom_op_symbolic",
]

_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {"f": float, "i": int, "s": str}


class SymbolicType:
    """The type of a value with the interface of TorchScript's tensor type.

    Args:
        dtype: Element type.
        dims: Sizes, None for each dynamic one; None if the rank is unknown.
    """

    def __init__(self, dtype: ir.DataType | None, dims: Sequence[int | None] | None) -> None:
        self._dtype = dtype
        self._dims = dims

    def sizes(self) -> list[int | None] | None:
        """The shape, None for each dynamic size; None if the rank is unknown."""
        return None if self._dims is None else list(self._dims)

    def dim(self) -> int | None:
        """The rank."""
        return None if self._dims is None else len(self._dims)

    def dtype(self) -> torch.dtype | None:
        """The element type."""
        return None if self._dtype is None else to_torch_dtype(self._dtype)

    def scalarType(self) -> str | None:
        """The element type as the name of a tensor class: ``Float``, ``Long``."""
        return None if self._dtype is None else _SCALAR_TYPES.get(self._dtype)

    def with_sizes(self, sizes: Sequence[int | None] | None) -> SymbolicType:
        """A copy with another shape."""
        return SymbolicType(self._dtype, sizes)

    def with_dtype(self, dtype: torch.dtype) -> SymbolicType:
        """A copy with another element type."""
        return SymbolicType(from_torch(dtype), self._dims)

    def kind(self) -> str:
        """The kind of the TorchScript type."""
        return "TensorType"

    def isSubtypeOf(self, other: Any) -> bool:
        """Whether ``other`` is TorchScript's tensor type; this graph has no values of list or number types."""
        return bool(other.kind() == self.kind())

    @property
    def onnx_dtype(self) -> ir.DataType | None:
        """The element type in ONNX."""
        return self._dtype


_SCALAR_TYPES = {
    ir.DataType.FLOAT: "Float",
    ir.DataType.DOUBLE: "Double",
    ir.DataType.FLOAT16: "Half",
    ir.DataType.BFLOAT16: "BFloat16",
    ir.DataType.INT64: "Long",
    ir.DataType.INT32: "Int",
    ir.DataType.INT16: "Short",
    ir.DataType.INT8: "Char",
    ir.DataType.UINT8: "Byte",
    ir.DataType.BOOL: "Bool",
}


class SymbolicNode:
    """The producer of a value, with the interface of ``torch._C.Node`` that torch.onnx's helper functions use.

    Args:
        value: The graph value.
    """

    def __init__(self, value: ir.Value) -> None:
        self._value = value

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return ScriptNode

    def kind(self) -> str:
        """``onnx::Constant`` for a literal, ``prim::Param`` for an input or a weight, else the operator."""
        producer = self._value.producer()
        if producer is not None:
            return f"{producer.domain or 'onnx'}::{producer.op_type}"
        return "prim::Param" if array_of(self._value) is None else "onnx::Constant"

    def mustBeNone(self) -> bool:
        """Whether the value is None, which values of this graph never are."""
        return False

    def kindOf(self, name: str) -> str:
        """The kind of an attribute: ``t`` for the tensor ``value`` of a constant."""
        return "t"

    def t(self, name: str) -> torch.Tensor:
        """The tensor ``value`` of a constant.

        Raises:
            Unsupported: For a value computed at run time.
        """
        array = array_of(self._value)
        if array is None or self._value.dtype is None:
            raise Unsupported(f"the symbolic function reads the value of {self._value.name}, computed at run time")
        return torch.tensor(array.tolist(), dtype=to_torch_dtype(self._value.dtype))


class SymbolicValue:
    """A graph value with the interface of ``torch._C.Value``, as symbolic functions take and return it.

    Args:
        value: The graph value.
        op: The op object of the node.
    """

    def __init__(self, value: ir.Value, op: Op) -> None:
        self.value = value
        self._op = op

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # torch.onnx's helper functions distinguish values from numbers by ``isinstance(value, torch._C.Value)``.
        return ScriptValue

    def node(self) -> SymbolicNode:
        """The producer of the value."""
        return SymbolicNode(self.value)

    def type(self) -> SymbolicType:
        """The type of the value."""
        try:
            dims = self._op.dims(self.value)
        except Unsupported:
            return SymbolicType(self.value.dtype, None)
        return SymbolicType(self.value.dtype, [dim if isinstance(dim, int) else None for dim in dims])

    def setType(self, type: SymbolicType) -> SymbolicValue:
        """Set the element type of a custom operator's output; the shape is always torch's."""
        if type.onnx_dtype is not None:
            self.value.type = ir.TensorType(type.onnx_dtype)
        return self

    def debugName(self) -> str:
        """The name of the value in the graph."""
        return str(self.value.name)


class SymbolicGraph:
    """The graph ``g`` passed to symbolic functions.

    Args:
        op: The op object of the node.
        opsets: Opset versions of custom domains; 1 for domains that are not listed.

    Attributes:
        opset: The target opset.
    """

    def __init__(self, op: Op, opsets: Mapping[str, int]) -> None:
        self._op = op
        self._opsets = opsets
        self.opset = op.opset

    def wrap(self, value: Any) -> Any:
        """Wrap graph values, also in lists, for a symbolic function."""
        if isinstance(value, ir.Value):
            return SymbolicValue(value, self._op)
        return [self.wrap(item) for item in value] if isinstance(value, (list, tuple)) else value

    def op(self, opname: str, *raw_args: Any, outputs: int = 1, **attributes: Any) -> Any:
        """Emit an operator.

        Args:
            opname: ``Name`` or ``domain::Name``. A name that is not an ONNX operator belongs to the domain in
                ``custom_opsets``, if that has exactly one.
            *raw_args: Values, tensors or numbers; None for an absent optional input.
            outputs: Number of outputs.
            **attributes: Values or lists of values, with the type as suffix of the name: ``alpha_f``, ``axis_i``,
                ``mode_s``, ``value_t``.

        Returns:
            The output, or a tuple of several outputs.

        Raises:
            Unsupported: If an attribute name has no type suffix, or ONNX does not have the operator.
        """
        domain, _, name = opname.rpartition("::")
        given = dict(_attribute(key, value) for key, value in attributes.items() if value is not None)
        if not domain and schema_info(name, self.opset) is None and len(self._opsets) == 1:
            (domain,) = self._opsets
        if not domain and name == "Constant":
            return SymbolicValue(self._op.const(_constant(given)), self._op)
        given = {key: TorchTensor(item) if isinstance(item, torch.Tensor) else item for key, item in given.items()}
        inputs = [self._input(argument) for argument in raw_args]
        if domain in ("", "onnx", "ai.onnx"):
            made = self._op.multi(name, *inputs, outputs=outputs, **given)
        else:
            made = emit_custom(self._op, self._opsets, (domain, name), inputs, given, (None,) * outputs)
        wrapped = tuple(SymbolicValue(value, self._op) for value in made)
        return wrapped[0] if outputs == 1 else wrapped

    def at(self, operator: str, *args: Any, overload_name: str = "", **attributes: Any) -> Any:
        """Emit an ATen operator as torch.onnx does with ``ONNX_ATEN``."""
        return self.op(
            "org.pytorch.aten::ATen", *args, operator_s=operator, overload_name_s=overload_name, **attributes
        )

    def _input(self, argument: Any) -> ir.Value | None:
        return argument.value if type(argument) is SymbolicValue else as_input(self._op, argument)


def _constant(attributes: Mapping[str, Any]) -> Any:
    (value,) = attributes.values()
    return value if isinstance(value, torch.Tensor) else torch.tensor(value)


def _attribute(key: str, value: Any) -> tuple[str, Any]:
    name, _, kind = key.rpartition("_")
    if not name or kind not in ("f", "i", "s", "t"):
        raise Unsupported(f"the attribute {key!r} does not end with a type suffix: _f, _i, _s or _t")
    if kind == "t":
        return name, value
    convert = _CONVERSIONS[kind]
    if isinstance(value, (list, tuple)):
        return name, [convert(item) for item in value]
    if type(value) is SymbolicValue:
        raise Unsupported(f"the attribute {key!r} is computed at run time; attributes must be numbers or strings")
    return name, convert(value)


def call_symbolic(
    function: Callable[..., Any], graph: SymbolicGraph, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Run a symbolic function.

    Args:
        function: ``function(g, *inputs)``.
        graph: The graph to pass as ``g``.
        args: Values, numbers and lists, in the order of ``forward`` or of the operator's schema.
        kwargs: Values, numbers and lists by name.

    Returns:
        The graph values it returns, in the form translations return them.
    """
    returned = function(graph, *graph.wrap(list(args)), **{key: graph.wrap(value) for key, value in kwargs.items()})
    unwrapped = _unwrapped(returned)
    several = unwrapped if isinstance(unwrapped, list) else [unwrapped]
    for value, result in zip(several, graph._op.results, strict=False):
        node = value.producer() if isinstance(value, ir.Value) else None
        if node is not None and node.domain not in ("", "ai.onnx"):
            # A custom operator has no type inference: its output has the dtype that torch recorded.
            value.type = ir.TensorType(result.dtype)
    return unwrapped


def translate_symbolically(
    function: Callable[..., Any],
    op: Op,
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    opsets: Mapping[str, int],
) -> Any:
    """Run a symbolic function for a node; see ``call_user_translation``."""
    if isinstance(target, OpOverload):
        args, kwargs = ordered_arguments(function, target, args, kwargs)
    return call_symbolic(function, SymbolicGraph(op, opsets), args, kwargs)


def _unwrapped(returned: Any) -> Any:
    if isinstance(returned, (list, tuple)):
        return [_unwrapped(item) for item in returned]
    return returned.value if type(returned) is SymbolicValue else returned


def ordered_arguments(
    function: Callable[..., Any], overload: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Match the arguments of an operator to the parameters of a symbolic function.

    Returns:
        Keyword arguments if the parameters have the schema's names; otherwise positional arguments in schema order
        with defaults, without trailing defaults that exceed the number of parameters.
    """
    declared = overload._schema.arguments
    given = dict(zip([argument.name for argument in declared], args, strict=False)) | dict(kwargs)
    for argument in declared:
        given.setdefault(argument.name, argument.default_value)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    names = [parameter.name for parameter in parameters]
    # Functions decorated with torch's parse_args take positional arguments only.
    if set(given) <= set(names) and not hasattr(function, "_arg_descriptors"):
        return [], given
    if any(parameter.kind == inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return list(given.values()), {}
    ordered = [(argument, given[argument.name]) for argument in declared]
    while len(ordered) > len(names) and ordered[-1][1] == ordered[-1][0].default_value:
        ordered.pop()
    return [value for _, value in ordered], {}


@dataclass(frozen=True)
class CalledFunctions:
    """Translation of the operator that represents calls of autograd functions: runs their ``symbolic``.

    Attributes:
        calls: The calls, by position.
    """

    calls: Sequence[FunctionCall]

    def translate_node(
        self, op: Op, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], opsets: Mapping[str, int]
    ) -> list[Any]:
        """Run the ``symbolic`` of one call; the name among the arguments only documents the captured graph."""
        tensors, _name, index = args
        call = self.calls[index]
        written = call_symbolic(call.symbolic, SymbolicGraph(op, opsets), call.with_tensors(tensors), {})
        return written if isinstance(written, list) else [written]


@dataclass(frozen=True)
class SymbolicFunction:
    """Marks a function as ``symbolic(g, *inputs)``, whatever the name of its first parameter."""

    function: Callable[..., Any]

    def translate_node(
        self, op: Op, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], opsets: Mapping[str, int]
    ) -> Any:
        """Run the function for a node."""
        return translate_symbolically(self.function, op, target, args, kwargs, opsets)


# ---- registered functions


_LOCK = Lock()
_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*::[A-Za-z_]\w*")


@public
def register_custom_op_symbolic(symbolic_name: str, symbolic_fn: Callable[..., Any], opset_version: int) -> None:
    """Register a symbolic function that translates an operator in all later exports.

    Args:
        symbolic_name: ``namespace::operator``; applies to all of its overloads.
        symbolic_fn: ``function(g, *inputs)`` that returns the values made by ``g.op(...)``.
        opset_version: The lowest opset it supports. An export uses the registration with the highest supported one.

    Raises:
        ArgumentError: If the name is not of the form ``namespace::operator``, or ``symbolic_fn`` is not callable.
    """
    _check_name(symbolic_name)
    if not callable(symbolic_fn):
        raise ArgumentError("symbolic_fn", f"expected a function, got {kind_of(symbolic_fn)}")
    with _LOCK:
        _replace({**_registered(), (symbolic_name, int(opset_version)): symbolic_fn})


@public
def unregister_custom_op_symbolic(symbolic_name: str, opset_version: int) -> None:
    """Remove a registration of ``register_custom_op_symbolic``.

    Raises:
        ArgumentError: If nothing is registered for this name and opset.
    """
    _check_name(symbolic_name)
    with _LOCK:
        rest = dict(_registered())
        if rest.pop((symbolic_name, int(opset_version)), None) is None:
            raise ArgumentError(
                "symbolic_name",
                f"nothing is registered for {symbolic_name!r} from opset {opset_version} on",
                hint=did_you_mean(symbolic_name, {name for name, _ in rest}),
            )
        _replace(rest)


def registered_symbolics(opset: int) -> dict[Callable[..., Any], Any]:
    """Map each overload to its registered symbolic function with the highest supported opset up to ``opset``."""
    table: dict[Callable[..., Any], Any] = {}
    for (name, since), function in sorted(_registered().items(), key=lambda item: item[0]):
        if since <= opset:
            namespace, _, operator = name.partition("::")
            packet: Any = getattr(getattr(torch.ops, namespace), operator, None)
            names = packet.overloads() if hasattr(packet, "overloads") else ()
            table.update((getattr(packet, overload), SymbolicFunction(function)) for overload in names)
    return table


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ArgumentError(
            "symbolic_name", f"{name!r} is not the name of an operator", hint="write namespace::operator"
        )


def _registered() -> Mapping[tuple[str, int], Callable[..., Any]]:
    return getattr(torch.onnx, REGISTERED, {})


def _replace(registered: Mapping[tuple[str, int], Callable[..., Any]]) -> None:
    setattr(torch.onnx, REGISTERED, registered)


def rename_by_scope(graph: ir.Graph) -> None:
    """Rename nodes and intermediate values by module path and operator, with a number where that is not unique.

    Inputs, outputs and initializers keep their names.

    Args:
        graph: The completed main graph.
    """
    taken = {str(value.name) for value in (*graph.inputs, *graph.outputs, *graph.initializers.values())}
    kept = set(graph.outputs)
    for node in ir.traversal.RecursiveGraphIterator(graph):
        path = "".join(f"/{scope}" for scope in node.meta.get(SCOPE, ()))
        name = base = f"{path}/{node.op_type}"
        number = 0
        while name in taken:
            number += 1
            name = f"{base}_{number}"
        taken.add(name)
        node.name = name
        for position, value in enumerate(node.outputs):
            if value not in kept and value.name:
                value.name = f"{name}_output_{position}"
