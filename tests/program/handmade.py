"""Programs with hand-written ONNX graphs, for tests independent of the translations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch.export.graph_signature import ConstantArgument, InputKind

from fxonnx import ExportRecord, ONNXProgram
from fxonnx._capture import Capture
from fxonnx_translations._builder import dtypes
from fxonnx_translations._builder.initializers import DerivedTensor, TorchTensor

KIND = "pkg.torch.export.graph_signature.InputSpec.kind"


def initializer(name: str, tensor: ir.TensorProtocol, kind: str = "PARAMETER") -> ir.Value:
    """Create a graph initializer as the lowering does."""
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
    value.metadata_props[KIND] = kind
    return value


def linear_model(rows: int = 40, columns: int = 30) -> ir.Model:
    """Create a model of MatMul, Add and Reshape with a derived, a small and a non-weight initializer."""
    generator = torch.Generator().manual_seed(0)
    weight = TorchTensor(torch.randn(columns, rows, generator=generator), name="weight")
    bias = TorchTensor(torch.randn(columns, generator=generator), name="bias")
    transposed = DerivedTensor("weight::T", [weight], torch.t, ir.DataType.FLOAT, (rows, columns))
    target = ir.tensor([-1, 1, columns], name="target")
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["batch", rows]))
    weights = [
        initializer("weight::T", transposed),
        initializer("bias", bias),
        initializer("target", target, kind="CONSTANT_TENSOR"),
    ]
    product = ir.Node("", "MatMul", [x, weights[0]], name="product")
    total = ir.Node("", "Add", [product.outputs[0], weights[1]], name="total")
    y = ir.Value(name="y", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["batch", 1, columns]))
    reshape = ir.Node("", "Reshape", [total.outputs[0], weights[2]], outputs=[y], name="reshape")
    product.outputs[0].name, total.outputs[0].name = "xw", "xwb"
    graph = ir.Graph(
        [x], [y], nodes=[product, total, reshape], initializers=weights, opset_imports={"": 20}, name="main_graph"
    )
    return ir.Model(graph, ir_version=10, producer_name="pytorch")


def program(
    forward: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    operators: Sequence[tuple[str, int]],
    dynamic_shapes: Any = None,
) -> ONNXProgram:
    """Create a program whose outputs are unary or binary operators of its inputs.

    Args:
        forward: The module to capture.
        args: Positional example inputs.
        kwargs: Keyword example inputs.
        operators: For each output, the operator and the index of its input: ``("Neg", 0)``. ``("Add", 0)`` adds an
            input to itself.
        dynamic_shapes: As for torch.export.
    """
    exported = torch.export.export(forward, args, kwargs, dynamic_shapes=dynamic_shapes)
    placeholders = {node.name: node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder"}
    inputs = [
        _graph_input(spec.arg.name, placeholders[spec.arg.name])
        for spec in exported.graph_signature.input_specs
        if spec.kind == InputKind.USER_INPUT and not isinstance(spec.arg, ConstantArgument)
    ]
    nodes = []
    for index, (operator, source) in enumerate(operators):
        operands = [inputs[source]] * (2 if operator in ("Add", "Mul", "Sub", "Div") else 1)
        node = ir.Node("", operator, operands, name=f"node_{index}")
        node.outputs[0].name = f"output_{index}"
        node.outputs[0].type = inputs[source].type
        nodes.append(node)
    graph = ir.Graph(
        inputs, [node.outputs[0] for node in nodes], nodes=nodes, opset_imports={"": 20}, name="main_graph"
    )
    return ONNXProgram(ir.Model(graph, ir_version=10), ExportRecord(Capture(exported), timings={"capture": 0.5}))


def _graph_input(name: str, val: Any) -> ir.Value:
    if not isinstance(val, torch.Tensor):
        return ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    dims = [dim if isinstance(dim, int) else str(dim) for dim in val.shape]
    shape = ir.Shape([*dims, 2] if val.dtype.is_complex else dims)
    return ir.Value(name=name, type=ir.TensorType(dtypes.from_torch(val.dtype)), shape=shape)
