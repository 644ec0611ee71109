"""Missing kernels: operators are computed in a wider type."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F

import fxonnx
from fxonnx_translations._builder.builder import Builder, Unsupported
from fxonnx_translations._builder.name_allocator import NameAllocator
from fxonnx_translations._builder.op import Op
from fxonnx_translations._builder.op_schema import schema_info
from fxonnx_translations._builder.symbolic_dims import SymbolTable
from fxonnx_translations._opsets.missing_ops import replace_missing_op
from fxonnx_translations._opsets.ort_kernels import MISSING_KERNELS

from .harness import Case, T, run

_BFLOAT16 = torch.bfloat16

CASES = (
    Case("aten.add.Tensor", lambda x: x + 1.5, (T(("n", 3), _BFLOAT16),), ops=("Cast", "Add", "Cast")),
    Case("aten.linear.default", lambda x, w: F.linear(x, w), (T(("n", 3), _BFLOAT16), T((2, 3), _BFLOAT16))),
    Case("aten.gt.Scalar", lambda x: x > 0, (T(("n", 3), _BFLOAT16),), ops=("Cast", "Greater")),
    Case("aten.softmax.int", lambda x: x.softmax(-1), (T(("n", 3), _BFLOAT16),)),
    Case("aten.acos.default", torch.acos, (T(("n", 3), _BFLOAT16, -1, 1),), "not in the schema", opset=18),
    # By default a chain of operators is computed in the wider type and rounds once.
    Case(
        "aten.mul.Tensor",
        lambda x: (x + 256) * 3,
        (T(("n", 3), _BFLOAT16),),
        "rounds once",
        ops=("Cast", "Add", "Mul", "Cast"),
        rtol=8e-3,
    ),
    Case(
        "aten.mul.Tensor",
        lambda x: (x + 256) * 3,
        (T(("n", 3), _BFLOAT16),),
        "rounds twice",
        ops=("Cast", "Add", "Cast", "Cast", "Mul", "Cast"),
        rtol=0,
        atol=0,
        numerics="exact",
    ),
    # A result that jumps is the rounded numbers'.
    Case(
        "aten.gt.Scalar",
        lambda x: (x + 256) > 256,
        (T(("n", 3), _BFLOAT16),),
        "of rounded numbers",
        ops=("Cast", "Add", "Cast", "Cast", "Greater"),
    ),
    Case(
        "aten.floor.default",
        lambda x: (x + 256).floor(),
        (T(("n", 3), _BFLOAT16),),
        "of rounded numbers",
        rtol=0,
        atol=0,
    ),
    Case("aten.to.dtype", lambda x: (x + 256).float(), (T(("n", 3), _BFLOAT16),), "a cast rounds", rtol=0, atol=0),
    # Operators that only move elements do not end a chain.
    Case(
        "aten.mul.Tensor",
        lambda x: torch.cat([(x * 3).t()[1:], (x * 5).t()[:2]]) * 3,
        (T(("n", 3), _BFLOAT16),),
        "moved",
        ops=("Cast", "Mul", "Transpose", "Slice", "Mul", "Transpose", "Slice", "Concat", "Mul", "Cast"),
        rtol=1e-2,
    ),
    Case("aten.relu.default", torch.relu, (T(("n", 3), torch.int64),)),
    Case(
        "aten.where.self", lambda x, y: torch.where(x > 0, x, y), (T(("n", 3), torch.int16), T(("n", 3), torch.int16))
    ),
    Case(
        "aten.maximum.default",
        torch.maximum,
        (T(("n", 3), torch.int16), T(("n", 3), torch.int16)),
        ops=("Cast", "Cast", "Max", "Cast"),
    ),
    Case("aten.tril.default", lambda x: x.tril(), (T((3, 3), torch.int8, -100, 100),)),
    Case("aten.add.Tensor", lambda x: x + x, (T(("n", 3), torch.int8, -100, 100),), "wraps around"),
    Case("aten.add.Tensor", lambda x: x + x, (T(("n", 3), torch.int8, -100, 100),), "wraps around", opset=13),
    Case("aten.mul.Tensor", lambda x: x * x, (T(("n", 3), torch.uint8, 0, 256),), "wraps around", opset=13),
    Case("aten.sub.Tensor", lambda x: x - 7, (T(("n", 3), torch.uint8, 0, 9),), "wraps around", opset=13),
    *(
        Case("aten.exp.default", lambda x: x.exp(), (T(("n", 3), _BFLOAT16),), f"bfloat16, opset {opset}", opset=opset)
        for opset in (13, 18, 23)
    ),
    Case("aten.nonzero.default", torch.nonzero, (torch.tensor([0.0, -0.0, torch.nan, 1e-310, 2.0]).double(),)),
    Case(
        "aten.scaled_dot_product_attention.default",
        F.scaled_dot_product_attention,
        (T((1, 2, "n", 8), _BFLOAT16), T((1, 2, "m", 8), _BFLOAT16), T((1, 2, "m", 8), _BFLOAT16)),
        "rounds once",
    ),
    Case(
        "aten.embedding_bag.padding_idx",
        lambda indices, weight: F.embedding_bag(indices, weight, mode="sum"),
        (T(("n", 6), torch.int64, 0, 9), T((9, 3), _BFLOAT16)),
        "rounds once",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_wider(case: Case) -> None:
    run(case)


def test_types_with_a_kernel_are_not_cast() -> None:
    program = fxonnx.export(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()).eval(), (torch.ones(2, 3),))
    assert [node.op_type for node in program.model.graph] == ["Gemm", "Relu"]


def _builder(dtype: ir.DataType, opset: int = 20) -> tuple[Op, ir.Value]:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name="main_graph")
    builder = Builder(graph, SymbolTable(), NameAllocator(), replace_missing_op)
    value = ir.Value(name="x", type=ir.TensorType(dtype))
    graph.inputs.append(value)
    builder.set_dims(value, (2, 3))
    return Op(builder), value


def _nodes(op: Op) -> list[str]:
    return [node.op_type for node in op.builder.graph]


def test_a_literal_is_converted_at_export() -> None:
    op, x = _builder(ir.DataType.BFLOAT16)
    assert op.dtype_of(op.Mul(x, op.const(0.1, ir.DataType.BFLOAT16))) == ir.DataType.BFLOAT16
    assert _nodes(op) == ["Cast", "Mul", "Cast"]
    factor = op.builder.graph.node(1).inputs[1]
    # 0.1 rounded to bfloat16.
    assert factor is not None
    assert factor.const_value is not None
    assert factor.const_value.numpy().item() == 0.10009765625


def test_one_cast_serves_all_uses() -> None:
    op, x = _builder(ir.DataType.BFLOAT16)
    op.Exp(x)
    op.Sqrt(x)
    assert _nodes(op) == ["Cast", "Exp", "Cast", "Sqrt", "Cast"]


def test_a_type_without_a_wider_one_is_rejected() -> None:
    op, x = _builder(ir.DataType.DOUBLE)
    with pytest.raises(Unsupported, match="ONNX Runtime has no kernel of Hardmax for DOUBLE"):
        op.Hardmax(x)
    assert _nodes(op) == []


@pytest.mark.parametrize(("operator", "widened"), [("ReduceSum", True), ("ReduceMax", False)])
def test_uint64_is_computed_as_int64_where_the_order_is_irrelevant(operator: str, widened: bool) -> None:
    op, x = _builder(ir.DataType.UINT64)
    if widened:
        getattr(op, operator)(x, [0])
        assert _nodes(op) == ["Cast", operator, "Cast"]
    else:
        with pytest.raises(Unsupported, match="UINT64"):
            getattr(op, operator)(x, [0])


def test_bfloat16_is_rejected_at_opsets_without_it() -> None:
    op, x = _builder(ir.DataType.BFLOAT16, 11)
    with pytest.raises(Unsupported, match="Cast does not accept BFLOAT16 at opset 11"):
        op.Exp(x)


def test_float16_is_left_to_the_runtime() -> None:
    op, x = _builder(ir.DataType.FLOAT16)
    op.Add(op.Exp(x), x)
    assert _nodes(op) == ["Exp", "Add"]


def test_the_table_names_operators_of_onnx() -> None:
    assert [
        name for name in MISSING_KERNELS if all(schema_info(name, opset) is None for opset in (11, 20, 24, 26))
    ] == []
