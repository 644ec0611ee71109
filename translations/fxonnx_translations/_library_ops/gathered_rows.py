"""Rows of dequantized tables: codes, scales and zero points are gathered before they are dequantized.

ONNX Runtime would dequantize the whole table in every call, or hold it as floats. Gather of ONNX has no types of 4 bits:
their codes are stored in pairs, as bytes.
"""

from __future__ import annotations

import onnx_ir as ir
import torch

from .._builder.op import Op
from .._builder.stored_codes import derive_stored, is_stored

__all__ = ["gathered_rows"]

_INT4, _UINT4, _INT8, _UINT8 = ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.UINT8
_GATHERED = {_INT8: _INT8, _UINT8: _UINT8, _INT4: _INT8, _UINT4: _UINT8}
"""Element types of stored codes to the types of their gathered rows."""
_ELEMENTWISE = frozenset({"Cast", "Sub", "Mul"})


def gathered_rows(op: Op, table: ir.Value, indices: ir.Value) -> ir.Value | None:
    """Return the rows of a table of two axes that is dequantized from stored codes of 4 or 8 bits; None for other tables.

    Args:
        op: The op object.
        table: The table.
        indices: Row numbers.
    """
    return _rows(op, table, indices) if _is_dequantized(op, table) else None


def _is_dequantized(op: Op, value: ir.Value | None) -> bool:
    """Whether a table is computed from stored codes by operators that compute its rows from theirs."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.domain or op.rank_of(value) != 2:
        return False
    if node.op_type == "DequantizeLinear":
        codes = node.inputs[0]
        return _is_code(op, codes) and all(given is None or is_stored(given) for given in node.inputs)
    if node.op_type not in _ELEMENTWISE:
        return False
    first, *others = node.inputs
    count = op.dims(value)[0]
    return (_is_code(op, first) or _is_dequantized(op, first)) and all(
        _is_parameter(op, other, count) for other in others
    )


def _is_code(op: Op, value: ir.Value | None) -> bool:
    """Whether a value consists of stored codes that can be gathered: pairs need rows of even length."""
    if value is None or not is_stored(value) or value.dtype not in _GATHERED:
        return False
    return value.dtype in (_INT8, _UINT8) or op.dims(value)[-1] % 2 == 0


def _is_parameter(op: Op, value: ir.Value | None, count: object) -> bool:
    """Whether a value is a stored number, or a column of one number for each row."""
    node = None if value is None else value.producer()
    if value is None or node is None:
        return is_stored(value) and value is not None and op.dims(value) in ((), (1,), (count, 1))
    return node.op_type in ("Unsqueeze", "Cast") and op.dims(value) == (count, 1) and is_stored(node.inputs[0])


def _rows(op: Op, value: ir.Value, indices: ir.Value) -> ir.Value:
    node = value.producer()
    if node is None:
        return _gathered_codes(op, value, indices) if op.rank_of(value) == 2 else value
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

    zero_point = [_in_bytes(op, value) for value in zero_point]

    def gathered(value: ir.Value) -> ir.Value:
        return op.Gather(value, indices, axis=0)

    if op.rank_of(scale) == 1 and axis == 0:
        kind = op.dtype_of(scale)
        numbers = op.cast(_gathered_codes(op, codes, indices), kind)
        for value in zero_point:
            numbers = op.Sub(numbers, op.Unsqueeze(op.cast(gathered(value), kind), [-1]))
        return op.Mul(numbers, op.Unsqueeze(gathered(scale), [-1]))
    parameters = [scale, *zero_point]
    if op.rank_of(scale) == 2:
        parameters = [gathered(value) for value in parameters]
    if op.rank_of(scale):
        attributes["axis"] = last
    rows = op.DequantizeLinear(_gathered_codes(op, codes, indices), *parameters, **attributes)
    if rows.type is None:
        rows.type = node.outputs[0].type
    return rows


# ---- codes of 4 bits


def _gathered_codes(op: Op, value: ir.Value, indices: ir.Value) -> ir.Value:
    """Return rows of stored codes or parameters; 4 bits as integers of 8 bits."""
    if value.dtype not in (_INT4, _UINT4):
        return op.Gather(value, indices, axis=0)
    pairs = derive_stored(op.builder, [value], "pairs", _in_pairs)
    rows = op.Gather(pairs, indices, axis=0)
    halves = op.BitwiseAnd(rows, op.const(15, _UINT8)), op.BitShift(rows, op.const(4, _UINT8), direction="RIGHT")
    codes = op.Concat(*halves, axis=-1)
    return codes if value.dtype == _UINT4 else op.Sub(op.cast(codes, _INT8), op.const(8, _INT8))


def _in_pairs(codes: torch.Tensor) -> torch.Tensor:
    """Return bytes of the first half of each row in the low bits and the second half in the high bits.

    Signed codes are stored plus 8.
    """
    shifted = (codes.to(torch.int16) + (8 if codes.dtype == torch.int8 else 0)).to(torch.uint8)
    first, second = shifted.chunk(2, dim=-1)
    return first | second << 4


def _in_bytes(op: Op, value: ir.Value) -> ir.Value:
    """Return stored zero points in the element type of gathered codes."""
    if value.dtype is None or value.dtype == _GATHERED.get(value.dtype):
        return value
    dtype = torch.int8 if value.dtype == _INT4 else torch.uint8
    return derive_stored(op.builder, [value], "bytes", lambda tensor: tensor.to(dtype))
