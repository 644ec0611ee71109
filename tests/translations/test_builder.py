"""The graph builder: constants, peepholes, opset forms, shape inference and CSE."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest
import sympy
import torch

from fxonnx_translations._builder import dtypes
from fxonnx_translations._builder.builder import Builder, Unsupported
from fxonnx_translations._builder.initializers import TorchTensor
from fxonnx_translations._builder.name_allocator import NameAllocator
from fxonnx_translations._builder.op import Op
from fxonnx_translations._builder.symbolic_dims import SymbolTable
from fxonnx_translations._opsets.missing_ops import replace_missing_op

N = sympy.Symbol("n", integer=True, nonnegative=True)


def make(opset: int = 20) -> Op:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name="main_graph")
    return Op(Builder(graph, SymbolTable(), NameAllocator(), replace_missing_op))


def add_input(op: Op, dims: tuple[int | sympy.Expr, ...], dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
    value = ir.Value(name=op.builder.names.unique("x"), type=ir.TensorType(dtype))
    op.builder.graph.inputs.append(value)
    op.builder.set_dims(value, dims)
    op.builder.symbols.define(value, dims)
    return value


def ops_of(op: Op) -> list[str]:
    return [node.op_type for node in op.builder.graph]


@pytest.mark.parametrize(
    ("one", "other"),
    [(0.0, -0.0), (1, True), (1, 1.0), (0, False), ([0.0], [-0.0]), ([1], [1.0]), ([1], 1), (math.nan, math.inf)],
)
def test_constants_of_different_types_or_signs_are_not_shared(one: object, other: object) -> None:
    op = make()
    first, second = op.const(one), op.const(other)
    assert first is not second
    assert (
        first.const_value.tobytes() != second.const_value.tobytes()
        or first.type != second.type
        or first.shape != second.shape
    )


@pytest.mark.parametrize("value", [0.0, -0.0, True, 7, math.nan, [1, 2], [0.5], [], [[1, 2], [3, 4]]])
def test_equal_constants_are_shared(value: object) -> None:
    op = make()
    assert op.const(value) is op.const(value)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (True, None, np.array(True)),
        (3, None, np.array(3, dtype=np.int64)),
        (2**63 - 1, None, np.array(2**63 - 1, dtype=np.int64)),
        (-(2**63), None, np.array(-(2**63), dtype=np.int64)),
        (0.1, None, np.array(0.1, dtype=np.float32)),
        (0.1, ir.DataType.DOUBLE, np.array(0.1)),
        (-3.5e38, ir.DataType.FLOAT, np.array(-np.inf, dtype=np.float32)),
        ([], None, np.array([], dtype=np.int64)),
        ([], ir.DataType.FLOAT, np.array([], dtype=np.float32)),
        (300, ir.DataType.INT8, np.array(44, dtype=np.int8)),
    ],
)
def test_literals(value: object, dtype: ir.DataType | None, expected: np.ndarray) -> None:
    found = make().const(value, dtype).const_value.numpy()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_literals_take_the_type_of_the_other_operand() -> None:
    op = make()
    result = op.Add(add_input(op, (2,), ir.DataType.FLOAT16), 1)
    assert result.dtype == ir.DataType.FLOAT16


@pytest.mark.parametrize(
    ("emit", "left"),
    [
        (lambda op, x: op.Cast(x, to=ir.DataType.FLOAT), []),
        (lambda op, x: op.Transpose(x, perm=[0, 1, 2]), []),
        (lambda op, x: op.Transpose(op.Transpose(x, perm=[1, 2, 0]), perm=[2, 0, 1]), []),
        (lambda op, x: op.reshape(x, (N, 3, 4)), []),
        (lambda op, x: op.Reshape(x, [0, 3, -1]), []),
        (lambda op, x: op.expand(x, (N, 3, 4)), []),
        (lambda op, x: op.Mul(x, 1), []),
        (lambda op, x: op.Div(x, 1), []),
        (lambda op, x: op.Sub(x, 0.0), ["Sub"]),
        (lambda op, x: op.Add(x, 0.0), ["Add"]),
        (lambda op, x: op.Div(1.0, x), ["Div"]),
        (lambda op, x: op.Mul(x, [[[[1.0]]]]), ["Mul"]),
        (lambda op, x: op.Concat(x, axis=0), []),
        (lambda op, x: op.Unsqueeze(x, []), []),
        (lambda op, x: op.Identity(x), []),
    ],
)
def test_peepholes_eliminate_identities(emit: object, left: list[str]) -> None:
    op = make()
    x = add_input(op, (N, 3, 4))
    result = emit(op, x)  # type: ignore[operator]
    kept = [
        node.op_type for node in op.builder.graph if any(output.uses() or output is result for output in node.outputs)
    ]
    assert kept == left
    assert left or result is x


def test_weights_are_not_literals() -> None:
    op = make()
    x = add_input(op, (2,))
    weight = op.builder.register_weight("gamma", TorchTensor(torch.ones(1), name="gamma"))
    op.Mul(x, weight)
    assert ops_of(op) == ["Mul"]


def test_common_subexpressions_are_eliminated() -> None:
    op = make()
    x = add_input(op, (2, 3))
    assert op.Softmax(x, axis=1) is op.Softmax(x, axis=1)
    assert op.Softmax(x, axis=0) is not op.Softmax(x, axis=1)
    assert op.RandomNormalLike(x) is not op.RandomNormalLike(x)


@pytest.mark.parametrize(("opset", "is_input"), [(11, False), (12, False), (13, True), (20, True)])
def test_axes_are_an_attribute_at_old_opsets(opset: int, is_input: bool) -> None:
    op = make(opset)
    node = op.Unsqueeze(add_input(op, (2,)), [0]).producer()
    assert (len(node.inputs) == 2) == is_input
    assert ("axes" in node.attributes) != is_input


def test_an_operator_that_the_opset_lacks_is_rejected() -> None:
    op = make(17)
    with pytest.raises(Unsupported, match="ONNX has no BitwiseAnd at opset 17"):
        op.BitwiseAnd(add_input(op, (2,), ir.DataType.INT64), add_input(op, (2,), ir.DataType.INT64))


def test_an_unsupported_element_type_is_rejected() -> None:
    op = make()
    with pytest.raises(Unsupported, match="Sin does not accept INT64"):
        op.Sin(add_input(op, (2,), ir.DataType.INT64))


def test_axes_must_be_constant_at_old_opsets() -> None:
    op = make(12)
    axes = add_input(op, (1,), ir.DataType.INT64)
    with pytest.raises(Unsupported, match="axes of Unsqueeze is an attribute and must be a constant"):
        op.Unsqueeze(add_input(op, (2,)), axes)


def test_lower_case_operators_do_not_exist() -> None:
    with pytest.raises(AttributeError, match="Op has no method 'relu'"):
        make().relu  # noqa: B018


@pytest.mark.parametrize(
    ("emit", "dims"),
    [
        (lambda op, x: op.MatMul(x, op.Transpose(x, perm=[0, 2, 1])), (N, 3, 3)),
        (lambda op, x: op.ReduceMean(x, [1], keepdims=0), (N, 4)),
        (lambda op, x: op.ReduceMean(x, [-1], keepdims=1), (N, 3, 1)),
        (lambda op, x: op.Concat(x, x, axis=0), (2 * N, 3, 4)),
        (lambda op, x: op.Gather(x, [[0, 1]], axis=1), (N, 1, 2, 4)),
        (lambda op, x: op.Unsqueeze(x, [0, 4]), (1, N, 3, 4, 1)),
        (lambda op, x: op.Add(x, op.const([[1.0]] * 3)), (N, 3, 4)),
        (lambda op, x: op.Reshape(x, [-1]), (12 * N,)),
        (lambda op, x: op.Shape(x, start=1), (2,)),
        (lambda op, x: op.Slice(x, [1], [3], [1]), (N, 2, 4)),
        (lambda op, x: op.multi("Split", x, [1, 3], axis=2, outputs=2)[1], (N, 3, 3)),
    ],
)
def test_shape_inference(emit: object, dims: tuple[object, ...]) -> None:
    op = make()
    assert op.dims(emit(op, add_input(op, (N, 3, 4)))) == dims  # type: ignore[operator]


def test_rollback_removes_emitted_nodes() -> None:
    op = make()
    x = add_input(op, (N, 3))
    kept = op.Relu(x)
    mark = len(op.builder.created)
    op.Exp(op.Add(kept, op.scalar(N, ir.DataType.FLOAT)))
    op.builder.rollback(mark)
    assert ops_of(op) == ["Relu"]
    assert op.Add(kept, op.scalar(N, ir.DataType.FLOAT)).producer().graph is op.builder.graph


def test_derived_weights_are_lazy_and_not_derived_from_shared_weights() -> None:
    op = make()
    weight = torch.arange(6.0).reshape(2, 3)
    value = op.builder.register_weight("w", TorchTensor(weight, name="w"))
    derived = op.derived(value, "transposed", torch.t)
    assert derived is not None
    assert derived.name == "w::transposed"
    assert op.derived(value, "transposed", torch.t) is derived
    weight[0, 0] = 42.0
    np.testing.assert_array_equal(derived.const_value.numpy(), weight.t().numpy())
    assert Op(op.builder, shared=frozenset({value})).derived(value, "other", torch.t) is None
    assert op.derived(add_input(op, (2, 3)), "transposed", torch.t) is None


@pytest.mark.parametrize(
    ("tensors", "zero_dim", "numbers"),
    [
        ([torch.float16], [torch.float64], []),
        ([torch.int32], [torch.int64], []),
        ([torch.int64], [], [1.5]),
        ([torch.bool], [], [True]),
        ([torch.bool], [], [3]),
        ([torch.uint8, torch.int8], [], []),
        ([torch.int64], [torch.float64], []),
        ([torch.bfloat16, torch.float16], [], []),
        ([], [torch.int32], [2]),
    ],
)
def test_type_promotion_matches_torch(
    tensors: list[torch.dtype], zero_dim: list[torch.dtype], numbers: list[bool | int | float]
) -> None:
    operands = [torch.ones(2, dtype=d) for d in tensors] + [torch.ones((), dtype=d) for d in zero_dim] + numbers
    operands = operands if len(operands) > 1 else [*operands, operands[0]]
    assert dtypes.promote(tensors, zero_dim, numbers) == torch.result_type(*operands)


def test_names_are_unique() -> None:
    names = NameAllocator()
    assert [names.unique("x"), names.unique("x"), names.unique("x_1"), names.unique("x")] == [
        "x",
        "x_1",
        "x_1_1",
        "x_2",
    ]
    assert names.unique("val_0") == "val_0"
    assert names.helper() == "val_1"


def test_a_rejected_operator_does_not_use_its_inputs() -> None:
    op = make(opset=13)
    x = add_input(op, (2,), ir.DataType.INT32)
    inserted = op.Unsqueeze(x, [0])
    with pytest.raises(Unsupported, match="Sin does not accept INT32 at opset 13"):
        op.Sin(inserted)
    assert not inserted.uses()
