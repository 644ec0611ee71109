"""Rows of dequantized tables: codes, scales and zero points are gathered before they are dequantized.

ONNX Runtime would dequantize the whole table in every call, or hold it as floats.
"""

from __future__ import annotations

import onnx_ir as ir

from .._builder.op import Op
from .._builder.stored_codes import is_stored

__all__ = ["gathered_rows"]

_CODES = frozenset({ir.DataType.INT8, ir.DataType.UINT8})
_ELEMENTWISE = frozenset({"Cast", "Sub", "Mul"})


def gathered_rows(op: Op, table: ir.Value, indices: ir.Value) -> ir.Value | None:
    """Return the rows of a table of two axes that is dequantized from stored codes of 8 bits; None for other tables.

    Args:
        op: The op object.
        table: The table.
        indices: Row numbers.
    """
    return _rows(op, table, indices) if _is_dequantized(op, table) else None


def _is_dequantized(op: Op, value: ir.Value | None) -> bool:
    """Whether a table is computed from stored codes of 8 bits by operators that compute its rows from theirs."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.domain or op.rank_of(value) != 2:
        return False
    if node.op_type == "DequantizeLinear":
        codes = node.inputs[0]
        return (
            codes is not None
            and codes.dtype in _CODES
            and all(given is None or is_stored(given) for given in node.inputs)
        )
    if node.op_type not in _ELEMENTWISE:
        return False
    first, *others = node.inputs
    is_code = first is not None and is_stored(first) and first.dtype in _CODES
    count = op.dims(value)[0]
    return (is_code or _is_dequantized(op, first)) and all(_is_parameter(op, other, count) for other in others)


def _is_parameter(op: Op, value: ir.Value | None, count: object) -> bool:
    """Whether a value is a stored number, or a column of one number for each row."""
    node = None if value is None else value.producer()
    if value is None or node is None:
        return is_stored(value) and value is not None and op.dims(value) in ((), (1,), (count, 1))
    return node.op_type in ("Unsqueeze", "Cast") and op.dims(value) == (count, 1) and is_stored(node.inputs[0])


def _rows(op: Op, value: ir.Value, indices: ir.Value) -> ir.Value:
    node = value.producer()
    if node is None:
        return op.Gather(value, indices, axis=0) if op.rank_of(value) == 2 else value
    if node.op_type == "DequantizeLinear":
        return _dequantized_rows(op, node, indices)
    inputs = [given for given in node.inputs if given is not None]
    if node.op_type == "Unsqueeze" or op.rank_of(inputs[0]) == 1:
        return op.Unsqueeze(op.Gather(inputs[0], indices, axis=0), [-1])
    if node.op_type == "Cast":
        return op.cast(_rows(op, inputs[0], indices), op.dtype_of(value))
    operands = [_rows(op, given, indices) for given in inputs]
    return op.Sub(*operands) if node.op_type == "Sub" else op.Mul(*operands)


def _dequantized_rows(op: Op, node: ir.Node, indices: ir.Value) -> ir.Value:
    codes, scale, *zero_point = (given for given in node.inputs if given is not None)
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    axis, last = attributes.get("axis", 1) % 2, op.rank_of(indices)

    def gathered(value: ir.Value) -> ir.Value:
        return op.Gather(value, indices, axis=0)

    if op.rank_of(scale) == 1 and axis == 0:
        kind = op.dtype_of(scale)
        numbers = op.cast(gathered(codes), kind)
        for value in zero_point:
            numbers = op.Sub(numbers, op.Unsqueeze(op.cast(gathered(value), kind), [-1]))
        return op.Mul(numbers, op.Unsqueeze(gathered(scale), [-1]))
    parameters = [scale, *zero_point]
    if op.rank_of(scale) == 2:
        parameters = [gathered(value) for value in parameters]
    if op.rank_of(scale):
        attributes["axis"] = last
    rows = op.DequantizeLinear(gathered(codes), *parameters, **attributes)
    if rows.type is None:
        rows.type = node.outputs[0].type
    return rows
