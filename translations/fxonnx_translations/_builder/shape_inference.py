"""Shape inference of intermediate values, as expressions in the user's dim names.

The shape of a translation's result is captured; only the values between need a rule here. The shapes of operators
without a rule come from ``onnx.shape_inference``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import onnx
import onnx.defs
import onnx.shape_inference
import onnx_ir as ir
import sympy

from .builder_protocol import BuilderProtocol
from .constants import END, array_of
from .symbolic_dims import Dim

__all__ = ["broadcast", "infer", "ints_of", "quick"]

Dims: TypeAlias = tuple[Dim, ...]

_ELEMENTWISE = frozenset(
    [
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Pow",
        "Mod",
        "Max",
        "Min",
        "Mean",
        "Sum",
        "And",
        "Or",
        "Xor",
        "Equal",
        "Less",
        "Greater",
        "LessOrEqual",
        "GreaterOrEqual",
        "Where",
        "BitShift",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
        "PRelu",
    ]
)
_SAME_AS_FIRST = frozenset(
    [
        "Abs",
        "Acos",
        "Acosh",
        "Asin",
        "Asinh",
        "Atan",
        "Atanh",
        "BitwiseNot",
        "Cast",
        "CastLike",
        "Ceil",
        "Celu",
        "Clip",
        "Cos",
        "Cosh",
        "CumSum",
        "Dropout",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "Hardmax",
        "Identity",
        "InstanceNormalization",
        "IsInf",
        "IsNaN",
        "LayerNormalization",
        "LeakyRelu",
        "Log",
        "LogSoftmax",
        "LpNormalization",
        "Mish",
        "Neg",
        "Not",
        "RMSNormalization",
        "Reciprocal",
        "Relu",
        "Round",
        "Scatter",
        "ScatterElements",
        "ScatterND",
        "Selu",
        "Shrink",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "Softmax",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Swish",
        "Tan",
        "Tanh",
        "ThresholdedRelu",
        "Trilu",
        "GroupNormalization",
    ]
)


def broadcast(builder: BuilderProtocol, shapes: Sequence[Sequence[Dim]]) -> Dims:
    """Return the shape of an elementwise result.

    Of two different symbolic sizes either is right, since they must be equal, unless a guard keeps one of them at 1.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for axis, dim in enumerate(shape, start=rank - len(shape)):
            known = result[axis]
            if isinstance(dim, int):
                if dim != 1:
                    result[axis] = dim
            elif known == 1 or (not isinstance(known, int) and known != dim and builder.symbols.is_one(known)):
                result[axis] = dim
    return tuple(result)


def ints_of(value: ir.Value | None) -> list[int] | None:
    """Return the numbers of an integer literal, or None if the value is not a literal.

    Literals of user-defined translations may be Constant nodes.
    """
    array = array_of(value)
    node = value.producer() if array is None and value is not None else None
    if node is not None and node.op_type == "Constant":
        constant = ir.convenience.get_const_tensor(node.outputs[0])
        array = None if constant is None else constant.numpy()
    return None if array is None else [int(item) for item in array.reshape(-1)]


def _axes(node: ir.Node, builder: BuilderProtocol) -> list[int] | None:
    attribute = node.attributes.get("axes")
    if attribute is not None:
        return list(attribute.as_ints())
    return ints_of(node.inputs[1]) if len(node.inputs) > 1 else None


def _matmul(node: ir.Node, builder: BuilderProtocol) -> Dims | None:
    left, right = _input_dims(node, builder)[:2]
    if len(left) < 2 or len(right) < 2:
        return None
    return (*broadcast(builder, [left[:-2], right[:-2]]), left[-2], right[-1])


def _transpose(node: ir.Node, builder: BuilderProtocol) -> Dims:
    dims = builder.dims(_first(node))
    attribute = node.attributes.get("perm")
    perm = attribute.as_ints() if attribute is not None else range(len(dims) - 1, -1, -1)
    return tuple(dims[axis] for axis in perm)


def _reshape(node: ir.Node, builder: BuilderProtocol) -> Dims | None:
    target = ints_of(node.inputs[1])
    if target is None:
        return None
    dims = builder.dims(_first(node))
    zero_is_copy = "allowzero" not in node.attributes
    result: list[Dim] = [
        dims[axis] if size == 0 and zero_is_copy and axis < len(dims) else size for axis, size in enumerate(target)
    ]
    if -1 in target:
        known = [dim for axis, dim in enumerate(result) if target[axis] != -1]
        total = sympy.Integer(0) if 0 in known else sympy.Mul(*dims) / sympy.Mul(*known)
        if 0 in known or sympy.denom(total) != 1:
            return None
        result[target.index(-1)] = int(total) if total.is_Integer else total
    return tuple(result)


def _expand(node: ir.Node, builder: BuilderProtocol) -> Dims | None:
    target = ints_of(node.inputs[1])
    return None if target is None else broadcast(builder, [builder.dims(_first(node)), target])


def _unsqueeze(node: ir.Node, builder: BuilderProtocol) -> Dims | None:
    axes, dims = _axes(node, builder), builder.dims(_first(node))
    if axes is None:
        return None
    rank = len(dims) + len(axes)
    wanted = {axis % rank for axis in axes}
    rest = iter(dims)
    return tuple(1 if axis in wanted else next(rest) for axis in range(rank))


def _squeeze(node: ir.Node, builder: BuilderProtocol) -> Dims | None:
    axes, dims = _axes(node, builder), builder.dims(_first(node))
    if axes is None:
        return None
    wanted = {axis % len(dims) for axis in axes}
    return tuple(dim for axis, dim in enumerate(dims) if axis not in wanted)


def _concat(node: ir.Node, builder: BuilderProtocol) -> Dims:
    shapes = _input_dims(node, builder)
    axis = node.attributes["axis"].as_int() % len(shapes[0])
    total = sum(shape[axis] for shape in shapes)
    joined = total if isinstance(total, int) else (int(total) if total.is_Integer else total)
    return (*shapes[0][:axis], joined, *shapes[0][axis + 1 :])


def _gather(node: ir.Node, builder: BuilderProtocol) -> Dims:
    dims, indices = _input_dims(node, builder)[:2]
    attribute = node.attributes.get("axis")
    axis = (attribute.as_int() if attribute is not None else 0) % len(dims)
    return (*dims[:axis], *indices, *dims[axis + 1 :])


def _slice(node: ir.Node, builder: BuilderProtocol) -> Dims | None:
    # Not by onnx.shape_inference, which leaves a named dim unchanged at opset 10.
    named = [node.attributes.get(name) for name in ("starts", "ends", "axes")]
    given = [None if attribute is None else list(attribute.as_ints()) for attribute in named]
    starts, ends, axes, steps = (*given, None) if len(node.inputs) == 1 else _slice_inputs(node)
    if axes is None:
        return None
    result = list(builder.dims(_first(node)))
    for index, axis in enumerate(axes):
        size, step = result[axis], 1 if steps is None else steps[index]
        if starts is not None and ends is not None:
            start, end = starts[index], ends[index]
            if isinstance(size, int):
                result[axis] = len(range(size)[start:end:step])
                continue
            if (abs(step), start, end) == (1, *((0, END) if step > 0 else (-1, _BEGIN))):
                continue
        result[axis] = sympy.Symbol(f"{node.outputs[0].name}_d{axis % len(result)}", integer=True, nonnegative=True)
    return tuple(result)


def _slice_inputs(node: ir.Node) -> tuple[list[int] | None, ...]:
    """Return starts, ends, axes and steps, None where they are not constant; by default the axes are the first ones."""
    starts, ends, axes, steps = [*map(ints_of, node.inputs[1:]), *[None] * 4][:4]
    if len(node.inputs) < 4 and (starts is not None or ends is not None):
        axes = list(range(len(starts or ends or ())))
    if len(node.inputs) > 4 and steps is None:
        # Without the steps the limits do not determine the size.
        starts = None
    return starts, ends, axes, steps


_BEGIN = -(2**63)


def _reduce(node: ir.Node, builder: BuilderProtocol) -> Dims | None:
    dims = builder.dims(_first(node))
    axes = _axes(node, builder)
    if axes is None:
        if len(node.inputs) > 1 and node.inputs[1] is not None:
            return None
        axes = list(range(len(dims)))
    keepdims = node.attributes.get("keepdims")
    keep = keepdims is None or keepdims.as_int() == 1
    wanted = {axis % max(len(dims), 1) for axis in axes}
    return tuple(1 if axis in wanted else dim for axis, dim in enumerate(dims) if keep or axis not in wanted)


def _shape(node: ir.Node, builder: BuilderProtocol) -> Dims:
    rank = len(builder.dims(_first(node)))
    start, end = node.attributes.get("start"), node.attributes.get("end")
    return (len(range(rank)[start.as_int() if start else 0 : end.as_int() if end else rank]),)


def _range(node: ir.Node, builder: BuilderProtocol) -> Dims | None:
    # ONNX would invent a dim name for the range of a size, which equal ranges of other FX nodes would inherit.
    start, limit, delta = node.inputs
    squeeze = None if limit is None else limit.producer()
    if ints_of(start) != [0] or ints_of(delta) != [1] or squeeze is None or squeeze.op_type != "Squeeze":
        return None
    size = builder.size_expr(_first(squeeze))
    return (size,) if size is not None and size.is_nonnegative else None


_RULES: Mapping[str, Callable[[ir.Node, BuilderProtocol], Dims | None]] = {
    "MatMul": _matmul,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Expand": _expand,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
    "Shape": _shape,
    "Range": _range,
    **dict.fromkeys(
        (
            "ReduceMean",
            "ReduceSum",
            "ReduceMax",
            "ReduceMin",
            "ReduceProd",
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSumExp",
            "ReduceSumSquare",
        ),
        _reduce,
    ),
}


def _first(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    if value is None:
        raise ValueError(f"{node.op_type} without its first input")
    return value


def _input_dims(node: ir.Node, builder: BuilderProtocol) -> list[Dims]:
    return [builder.dims(value) for value in node.inputs if value is not None]


def infer(node: ir.Node, builder: BuilderProtocol) -> list[Dims | None]:
    """Return the shapes of a node's outputs; None where neither a rule nor ONNX infers one."""
    dims = _by_rule(node, builder)
    return [dims] if dims is not None and len(node.outputs) == 1 else _infer_with_onnx(node, builder)


def quick(value: ir.Value, builder: BuilderProtocol) -> Dims | None:
    """Return the shape if it is recorded or a rule infers it, without ``onnx.shape_inference``."""
    known = builder.recorded_dims(value)
    if known is not None:
        return known
    node = value.producer()
    if node is not None and node.op_type == "Cast":
        # Cast back from the wider type of an operator without a shape rule.
        return quick(_first(node), builder)
    return _by_rule(node, builder) if node is not None and value.index() == 0 else None


def _by_rule(node: ir.Node, builder: BuilderProtocol) -> Dims | None:
    if node.domain != "":
        return None
    if node.op_type in _SAME_AS_FIRST:
        return builder.dims(_first(node))
    if node.op_type in _ELEMENTWISE:
        return broadcast(builder, _input_dims(node, builder))
    rule = _RULES.get(node.op_type)
    return rule(node, builder) if rule is not None else None


def _infer_with_onnx(node: ir.Node, builder: BuilderProtocol) -> list[Dims | None]:
    unknown: list[Dims | None] = [None] * len(node.outputs)
    if not onnx.defs.has(node.op_type, node.domain):
        return unknown
    opset = builder.opset_version if node.domain == "" else builder.graph.opset_imports[node.domain]
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    types, data = {}, {}
    for value in node.inputs:
        if value is None:
            continue
        # The type is inferred together with the shape.
        dims = builder.dims(value)
        if value.dtype is None:
            return unknown
        builder.write_shape(value, dims)
        types[str(value.name)] = ir.serde.serialize_value(value).type
        if value.const_value is not None and value.const_value.size <= 64 and not value.is_graph_input():
            data[str(value.name)] = ir.serde.serialize_tensor(value.const_value)
    # Outputs without a dtype are inferred together with their shape.
    inferred = onnx.shape_inference.infer_node_outputs(
        schema, ir.serde.serialize_node(node), types, data, opset_imports=_opsets(builder)
    )
    return [_read_type(inferred.get(str(output.name)), output, builder) for output in node.outputs]


def _opsets(builder: BuilderProtocol) -> list[onnx.OperatorSetIdProto]:
    return [
        onnx.OperatorSetIdProto(domain=domain, version=version)
        for domain, version in builder.graph.opset_imports.items()
    ]


def _read_type(type_proto: onnx.TypeProto | None, output: ir.Value, builder: BuilderProtocol) -> Dims | None:
    if type_proto is None or not type_proto.HasField("tensor_type"):
        return None
    tensor = type_proto.tensor_type
    if output.type is None and tensor.elem_type:
        output.type = ir.TensorType(ir.DataType(tensor.elem_type))
    if not tensor.HasField("shape"):
        return None
    result: list[Dim] = []
    for position, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value"):
            result.append(dim.dim_value)
        elif dim.dim_param:
            result.append(builder.expr_of_dim_param(dim.dim_param))
        else:
            result.append(sympy.Symbol(f"{output.name}_d{position}", integer=True, nonnegative=True))
    return tuple(result)
