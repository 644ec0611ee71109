"""Nodes inserted into a complete graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from fxonnx_translations._builder.builder import Builder
from fxonnx_translations._builder.symbolic_dims import Dim

__all__ = ["insert_after", "insert_before"]


def insert_after(
    builder: Builder,
    value: ir.Value,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any],
    dtype: ir.DataType,
    dims: Sequence[Dim],
) -> ir.Value:
    """Insert a node after the one that computes a value, as a part of the same operator of the model.

    Args:
        builder: The builder of the graph.
        value: The value.
        op_type: An operator of the default domain with one output.
        inputs: Its inputs.
        attributes: Its attributes.
        dtype: Element type of the output.
        dims: Sizes of the output.
    """
    producer = value.producer()
    node = _new_node(builder, producer, op_type, inputs, attributes, dtype, dims)
    if producer is None:
        builder.graph.insert_before(builder.graph[0], node)
    else:
        builder.graph.insert_after(producer, node)
    return node.outputs[0]


def insert_before(
    builder: Builder,
    before: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any],
    dtype: ir.DataType,
    dims: Sequence[Dim],
) -> ir.Value:
    """Insert a node before another one, as a part of the same operator of the model; see :func:`insert_after`."""
    node = _new_node(builder, before, op_type, inputs, attributes, dtype, dims)
    graph = builder.graph if before.graph is None else before.graph
    graph.insert_before(before, node)
    return node.outputs[0]


def _new_node(
    builder: Builder,
    like: ir.Node | None,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any],
    dtype: ir.DataType,
    dims: Sequence[Dim],
) -> ir.Node:
    output = ir.Value(name=builder.names.helper(), type=ir.TensorType(dtype))
    metadata = {} if like is None else dict(like.metadata_props)
    node = ir.node(op_type, inputs, attributes, outputs=[output], metadata_props=metadata)
    if like is not None:
        node.meta.update(like.meta)
    builder.set_dims(output, dims)
    builder.write_shape(output, dims)
    return node
