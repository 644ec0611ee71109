"""Nodes inserted into a complete graph, and quantized operators with unsigned activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import onnx_ir as ir
import torch

from fxonnx_translations._builder.builder import Builder
from fxonnx_translations._builder.constants import array_of
from fxonnx_translations._builder.dtypes import INT64, UINT8, to_torch_dtype
from fxonnx_translations._builder.initializers import DerivedTensor, TorchTensor
from fxonnx_translations._builder.symbolic_dims import Dim

__all__ = ["insert", "use_unsigned_activations"]


def insert(
    builder: Builder,
    place: ir.Node | ir.Value,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any],
    dtype: ir.DataType,
    dims: Sequence[Dim],
) -> ir.Value:
    """Insert a node as a part of the same operator of the model: before a node, or after the one that computes a value.

    Args:
        builder: The builder of the graph.
        place: The node or the value.
        op_type: An operator of the default domain with one output.
        inputs: Its inputs.
        attributes: Its attributes.
        dtype: Element type of the output.
        dims: Sizes of the output.
    """
    like = place if isinstance(place, ir.Node) else place.producer()
    output = ir.Value(name=builder.names.helper(), type=ir.TensorType(dtype))
    metadata = {} if like is None else dict(like.metadata_props)
    node = ir.node(op_type, inputs, attributes, outputs=[output], metadata_props=metadata)
    if like is None:
        builder.graph.insert_before(builder.graph[0], node)
    else:
        node.meta.update(like.meta)
        graph = builder.graph if like.graph is None else like.graph
        (graph.insert_before if like is place else graph.insert_after)(like, node)
    builder.set_dims(output, dims)
    builder.write_shape(output, dims)
    return output


# ---- unsigned activations


INT8, INT32 = ir.DataType.INT8, ir.DataType.INT32
_OFFSET = 128
_FIRST: tuple[int, ...] = (0,)

# Operators whose outputs have the type of these inputs and consist of their elements; MaxPool and Clip choose them by
# their order. All inputs of Concat are elements.
_DATA_INPUTS: Mapping[str, Sequence[int]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "Split"), _FIRST
        ),
        **dict.fromkeys(
            ("Expand", "Tile", "Gather", "GatherElements", "GatherND", "DepthToSpace", "SpaceToDepth"), _FIRST
        ),
        **dict.fromkeys(("MaxPool", "Clip"), _FIRST),
        "Concat": (),
        "Where": (1, 2),
    }
)


def use_unsigned_activations(builder: Builder) -> int:
    """Replace int8 activations by uint8 ones, in place.

    Integers are converted if they come from QuantizeLinear, and only DequantizeLinear and operators that move them read
    them. Integers that are graph outputs, computed or read by other operators, or used in a subgraph stay as they are,
    together with all that they are moved to or joined with.

    Args:
        builder: The builder of the complete graph.

    Returns:
        The number of QuantizeLinear that were changed.
    """
    seen: set[ir.Value] = set()
    count = 0
    for node in builder.graph:
        if _is(node, "QuantizeLinear") and node.outputs[0].dtype == INT8 and node.outputs[0] not in seen:
            connected = _connected(node.outputs[0])
            seen |= connected.keys()
            if all(_is_convertible(value, builder.graph) for value in connected):
                count += _convert(builder, list(connected))
    return count


def _is(node: ir.Node, op_type: str) -> bool:
    return node.op_type == op_type and node.domain == ""


def _data_inputs(node: ir.Node) -> list[ir.Value | None]:
    """The inputs whose elements an operator moves; empty for other operators."""
    if node.domain or node.op_type not in _DATA_INPUTS:
        return []
    positions = _DATA_INPUTS[node.op_type] or range(len(node.inputs))
    return [node.inputs[position] for position in positions]


def _connected(start: ir.Value) -> dict[ir.Value, None]:
    """The integers that are moved from or to a value; a dict, to keep the order."""
    found, pending = {start: None}, [start]
    while pending:
        value = pending.pop()
        producer = value.producer()
        nodes = [node for node, _ in value.uses() if value in _data_inputs(node)]
        if producer is not None and _data_inputs(producer):
            nodes.append(producer)
        for node in nodes:
            integers = (*_data_inputs(node), *(output for output in node.outputs if output.dtype == INT8))
            for other in integers:
                if other is not None and other not in found:
                    found[other] = None
                    pending.append(other)
    return found


def _is_convertible(value: ir.Value, graph: ir.Graph) -> bool:
    producer = value.producer()
    if producer is None or producer.graph is not graph or value.is_graph_output() or value.dtype != INT8:
        return False
    if _is(producer, "QuantizeLinear"):
        # Without a zero point the type is uint8, unless an attribute names another one.
        if len(producer.inputs) < 3 or "output_dtype" in producer.attributes:
            return False
    elif not _data_inputs(producer) or not _has_convertible_limits(producer):
        return False
    return all(node.graph is graph and _reads_integers(node, position) for node, position in value.uses())


def _reads_integers(node: ir.Node, position: int) -> bool:
    if _is(node, "DequantizeLinear"):
        return position == 0
    positions = () if node.domain else _DATA_INPUTS.get(node.op_type, (-1,))
    return not positions or position in positions


def _has_convertible_limits(node: ir.Node) -> bool:
    limits = node.inputs[1:] if _is(node, "Clip") else ()
    return all(limit is None or array_of(limit) is not None for limit in limits)


def _convert(builder: Builder, values: Sequence[ir.Value]) -> int:
    nodes = dict.fromkeys(node for value in values if (node := value.producer()) is not None)
    nodes.update(dict.fromkeys(node for value in values for node, _ in value.uses()))
    shifted: dict[ir.Value, ir.Value] = {}
    for node in nodes:
        if _is(node, "Clip"):
            for position, limit in enumerate(node.inputs[1:], 1):
                if limit is not None:
                    node.replace_input_with(position, _plus_offset(builder, limit, shifted))
        elif _is(node, "QuantizeLinear") or _is(node, "DequantizeLinear"):
            if len(node.inputs) < 3:
                node.resize_inputs(3)
            point = node.inputs[2]
            point = _zeros_like(builder, node.inputs[1]) if point is None else point
            node.replace_input_with(2, _plus_offset(builder, point, shifted))
    for value in values:
        value.type = ir.TensorType(UINT8)
    return sum(_is(node, "QuantizeLinear") for node in nodes)


def _plus_offset(builder: Builder, number: ir.Value, known: dict[ir.Value, ir.Value]) -> ir.Value:
    """Return a zero point or limit of type int8, plus 128, as uint8: a constant if it is one."""
    if number not in known:
        known[number] = _shifted(builder, number)
    return known[number]


def _shifted(builder: Builder, number: ir.Value) -> ir.Value:
    array = array_of(number)
    if array is not None:
        return builder.constant(_unsigned(torch.from_numpy(array)))
    tensor = number.const_value
    if isinstance(tensor, (TorchTensor, DerivedTensor)) and not number.is_graph_input():
        return builder.derive([number], [tensor], "unsigned", _unsigned)
    producer = number.producer()
    source, dims = number, builder.dims(number)
    wide = INT32
    if producer is not None and _is(producer, "Cast") and producer.inputs[0] is not None:
        # The number before it was narrowed.
        before = producer.inputs[0]
        unsigned = _before_offset(before)
        if unsigned is not None:
            return unsigned
        if before.dtype in (INT32, INT64):
            source, wide = before, before.dtype
    if source is number:
        source = insert(builder, number, "Cast", [number], {"to": wide}, wide, dims)
    sum_ = insert(builder, source, "Add", [source, builder.constant(_OFFSET, wide)], {}, wide, dims)
    return insert(builder, sum_, "Cast", [sum_], {"to": UINT8}, UINT8, dims)


def _before_offset(number: ir.Value) -> ir.Value | None:
    """Match ``Cast(unsigned) - 128``, the zero point that is computed for int8; return the uint8 number."""
    sum_ = number.producer()
    if sum_ is None or not _is(sum_, "Add"):
        return None
    for value, offset in (sum_.inputs, sum_.inputs[::-1]):
        cast = None if value is None else value.producer()
        array = array_of(offset)
        if cast is not None and _is(cast, "Cast") and array is not None and array.size == 1 and array == -_OFFSET:
            source = cast.inputs[0]
            return source if source is not None and source.dtype == UINT8 else None
    return None


def _unsigned(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.to(torch.int16) + _OFFSET).to(torch.uint8)


def _zeros_like(builder: Builder, scale: ir.Value | None) -> ir.Value:
    shape = () if scale is None else tuple(int(size) for size in builder.dims(scale))
    return builder.constant(torch.zeros(shape, dtype=to_torch_dtype(INT8)))
