"""Lists of tensors as ONNX sequences: graph inputs and outputs of stacked tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from fxonnx_translations._builder.builder import Builder

from ..errors import ArgumentError, TranslationError

__all__ = ["joined", "split"]

_SPLIT_TYPES = frozenset(
    {
        ir.DataType.FLOAT,
        ir.DataType.DOUBLE,
        ir.DataType.FLOAT16,
        ir.DataType.INT32,
        ir.DataType.INT64,
        ir.DataType.BOOL,
    }
)
"""The element types for which ONNX Runtime has a kernel of SplitToSequence."""
_JOINED_TYPES = _SPLIT_TYPES | {
    ir.DataType.INT8,
    ir.DataType.INT16,
    ir.DataType.UINT8,
    ir.DataType.UINT16,
    ir.DataType.UINT32,
    ir.DataType.UINT64,
}
"""The element types of sequences in ONNX, for all of which ONNX Runtime has a kernel of ConcatFromSequence."""
_FIRST_OPSET = 11
_HINT = "return torch.stack of the list, which is a tensor"


def split(stacked: ir.Value, builder: Builder, name: str) -> ir.Value:
    """The sequence of the rows of a tensor, without their first dim.

    Raises:
        ArgumentError: If the opset has no sequences.
        TranslationError: If there is no sequence of the element type.
    """
    dtype = _element_type(stacked, builder, f"the output {name!r}")
    if dtype not in _SPLIT_TYPES:
        raise TranslationError(
            f"the output {name!r} is a list of tensors of {dtype.name}, of which ONNX Runtime makes no sequence",
            hint=f"{_HINT}, or convert its items to float32 or int32",
        )
    sequence = ir.Value(name=name, type=ir.SequenceType(ir.TensorType(dtype)))
    _append(builder, "SplitToSequence", stacked, {"axis": 0, "keepdims": 0}, sequence, builder.dims(stacked)[1:])
    return sequence


def joined(sequence: ir.Value, builder: Builder, name: str, length: Any) -> ir.Value:
    """The tensor of all items of a graph input that is a sequence, along a new first dim.

    Args:
        sequence: The graph input.
        builder: Builder of the graph.
        name: Name of the tensor.
        length: The number of items.

    Raises:
        ArgumentError: If the opset has no sequences.
        TranslationError: If there is no sequence of the element type.
    """
    what = f"the input {sequence.name!r}"
    dtype = _element_type(sequence, builder, what)
    if dtype not in _JOINED_TYPES:
        raise TranslationError(
            f"{what} is a list of tensors of {dtype.name}, of which ONNX has no sequence", hint="pass a stacked tensor"
        )
    dims = (length, *(builder.recorded_dims(sequence) or ()))
    stacked = ir.Value(name=name, type=ir.TensorType(dtype))
    _append(builder, "ConcatFromSequence", sequence, {"axis": 0, "new_axis": 1}, stacked, dims)
    return stacked


def _element_type(value: ir.Value, builder: Builder, what: str) -> ir.DataType:
    if builder.opset_version < _FIRST_OPSET:
        raise ArgumentError(
            "opset_version",
            f"{what} is a list of tensors, which ONNX does not have at opset {builder.opset_version}",
            hint=f"pass opset_version={_FIRST_OPSET}",
        )
    if value.dtype is None:
        raise TranslationError(f"{what} has no element type")
    return value.dtype


def _append(
    builder: Builder, op_type: str, given: ir.Value, attributes: dict[str, int], result: ir.Value, dims: Sequence[Any]
) -> None:
    """Append a node that makes or takes a sequence, whose shape is an item's."""
    metadata = {"namespace": f"{result.name}: {op_type}"}
    node = ir.Node("", op_type, [given], [ir.AttrInt64(*item) for item in attributes.items()], outputs=[result])
    node.metadata_props.update(metadata)
    builder.graph.append(node)
    builder.created.append(node)
    builder.set_dims(result, tuple(dims))
    builder.write_shape(result, dims)
