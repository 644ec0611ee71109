"""Operators that ONNX Runtime replaces by their definition, the function body of their schema."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx_ir as ir

from .kernel_table import KernelTable, formal_parameters

if TYPE_CHECKING:
    import onnx

__all__ = ["runs_expanded"]

_Types: TypeAlias = "dict[str, ir.DataType]"


def runs_expanded(
    node: onnx.NodeProto,
    types: Sequence[ir.DataType | None],
    opset: int,
    tables: Sequence[KernelTable],
    converted: Collection[ir.DataType],
) -> bool:
    """Whether every operator of a node's function body has a kernel, or a function body that runs.

    Args:
        node: The node; its function body may depend on its attributes.
        types: The element types of its inputs, as far as known.
        opset: Version of ONNX that the model imports.
        tables: The kernels of the execution providers.
        converted: Element types that need no kernel, because ONNX Runtime inserts conversions.
    """
    body = _body(node, types, opset)
    if body is None:
        return False
    known: _Types = {name: dtype for name, dtype in zip(body.input, types, strict=False) if dtype is not None}
    for inner in body.node:
        inputs = [known.get(name) for name in inner.input]
        bound = _bound(inner, inputs, opset)
        _record_outputs(inner, inputs, bound, opset, known)
        if inner.op_type == "Constant" or any(_has_kernel(inner, bound, opset, table, converted) for table in tables):
            continue
        if not runs_expanded(inner, inputs, opset, tables, converted):
            return False
    return True


def _body(node: onnx.NodeProto, types: Sequence[ir.DataType | None], opset: int) -> onnx.FunctionProto | None:
    """The function body that ONNX Runtime uses at an opset, or None if it uses none."""
    import onnx

    try:
        schema: Any = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        return None
    fixed = [version for version in schema.function_opset_versions if version <= opset]
    built = [version for version in schema.context_dependent_function_opset_versions if version <= opset]
    if fixed:
        body = _parsed(schema.get_function_with_opset_version(max(fixed)))
        # A body of fixed text is not used if operators in it have changed since its opset.
        changed = (
            formal_parameters(inner.op_type, max(fixed)).since != formal_parameters(inner.op_type, opset).since
            for inner in body.node
        )
        return None if any(changed) else body
    if not built or None in types:
        return None
    inputs = [_type_proto(dtype) for dtype in types]
    text = schema.get_context_dependent_function_with_opset_version(max(built), node.SerializeToString(), inputs)
    return _parsed(text) if text else None


def _parsed(text: bytes) -> onnx.FunctionProto:
    import onnx

    body = onnx.FunctionProto()
    body.ParseFromString(text)
    return body


def _type_proto(dtype: ir.DataType | None) -> bytes:
    import onnx

    return bytes(onnx.helper.make_tensor_type_proto(int(dtype or 0), None).SerializeToString())


def _bound(node: onnx.NodeProto, inputs: Sequence[ir.DataType | None], opset: int) -> _Types:
    """Type variables of the operator to the element types of a node's inputs."""
    formals = formal_parameters(node.op_type, opset).inputs
    bound: _Types = {}
    for index, dtype in enumerate(inputs):
        if dtype is not None and formals:
            bound.setdefault(formals[min(index, len(formals) - 1)].variable, dtype)
    return bound


def _record_outputs(
    node: onnx.NodeProto, inputs: Sequence[ir.DataType | None], bound: _Types, opset: int, known: _Types
) -> None:
    """Record the element types of a node's outputs, as far as they follow from its inputs."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type == "Cast" and "to" in attributes:
        known[node.output[0]] = bound["T2"] = ir.DataType(attributes["to"].i)
    elif node.op_type == "CastLike" and inputs[1] is not None:
        known[node.output[0]] = inputs[1]
    elif node.op_type == "Constant":
        tensor = attributes.get("value")
        is_float = any(name.startswith("value_float") for name in attributes)
        dtype = ir.DataType.FLOAT if is_float else ir.DataType.INT64
        known[node.output[0]] = dtype if tensor is None else ir.DataType(tensor.t.data_type)
    else:
        for name, formal in zip(node.output, formal_parameters(node.op_type, opset).outputs, strict=False):
            dtype_or_none = bound.get(formal.variable, formal.only_type)
            if dtype_or_none is not None:
                known[name] = dtype_or_none


def _has_kernel(
    node: onnx.NodeProto,
    bound: Mapping[str, ir.DataType],
    opset: int,
    table: KernelTable,
    converted: Collection[ir.DataType],
) -> bool:
    kernel = table.find(node.op_type, opset)
    return kernel is not None and all(
        dtype in converted or dtype in kernel.types.get(name, (dtype,)) for name, dtype in bound.items()
    )
