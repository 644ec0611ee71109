"""ONNX operator schemas at one opset, and attributes of nodes, in the form that the builder needs for every node."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx.defs
import onnx.helper
import onnx_ir as ir

from .._suggestions import did_you_mean

__all__ = [
    "OpSchemaInfo",
    "default_of",
    "info_of",
    "missing_attribute_message",
    "missing_operator_message",
    "node_attributes",
    "schema_info",
    "since_version",
]


@dataclass(frozen=True)
class OpSchemaInfo:
    """The schema of one ONNX operator at one opset.

    Attributes:
        inputs: Type variable (or concrete type) of each formal input; the last one repeats when ``variadic``.
        variadic: Whether the last input repeats.
        outputs: For each formal output a concrete element type, or the index of the input whose type it has, or None.
        result: Type variable (or concrete type) of the first output.
        allowed: For each type variable the element types it takes.
        deterministic: Whether equal inputs give equal outputs (no random operators, no subgraphs).
        attributes: Names of its attributes.
        least_outputs: Number of outputs that a node must have so that its kernel computes the required ones.
    """

    inputs: tuple[str, ...]
    variadic: bool
    outputs: tuple[ir.DataType | int | None, ...]
    result: str
    allowed: dict[str, frozenset[ir.DataType]]
    deterministic: bool
    least_outputs: int
    attributes: frozenset[str]

    def can_return(self, dtype: ir.DataType) -> bool:
        """Whether the first output may have this type."""
        allowed = self.allowed.get(self.result)
        return allowed is None or dtype in allowed

    def type_variable(self, index: int) -> str | None:
        """Return the type variable of the input at ``index``."""
        if index < len(self.inputs):
            return self.inputs[index]
        return self.inputs[-1] if self.variadic else None


_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)


def _element_type(text: str) -> ir.DataType | None:
    if not text.startswith("tensor("):
        return None
    return ir.DataType.__members__.get(text[len("tensor(") : -1].upper())


def _output_rule(
    type_str: str, inputs: tuple[str, ...], allowed: dict[str, frozenset[ir.DataType]]
) -> ir.DataType | int | None:
    concrete = _element_type(type_str)
    if concrete is not None:
        return concrete
    if len(allowed.get(type_str, ())) == 1:
        return next(iter(allowed[type_str]))
    return inputs.index(type_str) if type_str in inputs else None


@functools.cache
def schema_info(op_type: str, opset: int, domain: str = "") -> OpSchemaInfo | None:
    """Return the schema of an operator, or None if it does not exist at this opset."""
    try:
        return info_of(onnx.defs.get_schema(op_type, opset, domain))
    except onnx.defs.SchemaError:
        return None


def info_of(schema: onnx.defs.OpSchema) -> OpSchemaInfo:
    """Return the facts of a schema, which may be the user's."""
    inputs = tuple(parameter.type_str for parameter in schema.inputs)
    allowed = {
        constraint.type_param_str: frozenset(
            dtype for text in constraint.allowed_type_strs if (dtype := _element_type(text)) is not None
        )
        for constraint in schema.type_constraints
    }
    outputs = [_output_rule(parameter.type_str, inputs, allowed) for parameter in schema.outputs]
    variadic = bool(schema.inputs) and schema.inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    has_graph = any(attribute.type == onnx.defs.OpSchema.AttrType.GRAPH for attribute in schema.attributes.values())
    required = [
        index
        for index, parameter in enumerate(schema.outputs)
        if parameter.option != onnx.defs.OpSchema.FormalParameterOption.Optional
    ]
    # A variadic output (Split, Loop): no output of the node may be omitted.
    is_open = bool(schema.outputs) and schema.outputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    least = schema.max_output if is_open else max(required, default=-1) + 1
    result = schema.outputs[0].type_str if schema.outputs else ""
    is_deterministic = schema.name not in _RANDOM and not has_graph
    attributes = frozenset(schema.attributes)
    return OpSchemaInfo(inputs, variadic, tuple(outputs), result, allowed, is_deterministic, least, attributes)


@functools.cache
def default_of(op_type: str, attribute: str) -> object:
    """Return the default of an attribute in the newest form of an operator, or None."""
    known = onnx.defs.get_schema(op_type).attributes.get(attribute)
    if known is None or not known.default_value.name:
        return None
    return onnx.helper.get_attribute_value(known.default_value)


@functools.cache
def since_version(op_type: str, opset: int, domain: str = "") -> int | None:
    """Return the opset that introduced this opset's version of an operator, or None if the operator does not exist."""
    try:
        return int(onnx.defs.get_schema(op_type, opset, domain).since_version)
    except onnx.defs.SchemaError:
        return None


def missing_operator_message(op_type: str, opset: int) -> str:
    """Return the message for an operator that an opset lacks, with a suggestion if no opset has it."""
    message = f"ONNX has no {op_type} at opset {opset}"
    if onnx.defs.has(op_type):
        return message
    hint = did_you_mean(op_type, {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain})
    return message if hint is None else f"{message}, {hint}"


def missing_attribute_message(op_type: str, name: str) -> str:
    """Return the message for an attribute that an operator lacks, with a suggestion if it lacks it at every opset."""
    message = f"{op_type} has no {name}"
    attributes = onnx.defs.get_schema(op_type).attributes
    hint = None if name in attributes else did_you_mean(name, attributes)
    return message if hint is None else f"{message}, {hint}"


def node_attributes(attributes: Mapping[str, Any]) -> list[ir.Attr]:
    """Attributes of a node, of which None is none."""
    return [
        ir.convenience.convert_attribute(name, value, _sequence_type(value))
        for name, value in attributes.items()
        if value is not None
    ]


def _sequence_type(value: Any) -> ir.AttributeType | None:
    """The type of a sequence of numbers, which onnx_ir finds only after slow checks for other types."""
    if not isinstance(value, list | tuple) or not value:
        return None
    kinds = set(map(type, value))
    return ir.AttributeType.INTS if kinds == {int} else ir.AttributeType.FLOATS if kinds == {float} else None
