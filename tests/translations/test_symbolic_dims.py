"""Size expressions: ONNX Runtime computes the same numbers as sympy."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import sympy
from torch.utils._sympy import functions as sizes

from fxonnx_translations._builder.builder import Builder
from fxonnx_translations._builder.name_allocator import NameAllocator
from fxonnx_translations._builder.symbolic_dims import SymbolTable
from fxonnx_translations._opsets.missing_ops import replace_missing_op

N, M = (sympy.Symbol(name, integer=True, nonnegative=True) for name in "nm")


def evaluate(
    expr: sympy.Expr, shape: tuple[int, int], opset: int, dims: tuple[sympy.Expr, sympy.Expr] = (N, M)
) -> np.ndarray:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name="main_graph")
    table = SymbolTable()
    builder = Builder(graph, table, NameAllocator(), replace_missing_op)
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["a", "b"]))
    graph.inputs.append(x)
    builder.set_dims(x, dims)
    table.define(x, dims)
    result = builder.size(expr)
    assert builder.size(expr) is result
    graph.outputs.append(result)
    result.shape = ir.Shape([1])
    proto = ir.serde.serialize_model(ir.Model(graph, ir_version=8))
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return session.run(None, {"x": np.zeros(shape, dtype=np.float32)})[0]


EXPRESSIONS = (
    N,
    2 * N + 3,
    N * M - 1,
    M - 2 * N,
    N**2,
    sizes.FloorDiv(N, 3),
    sizes.FloorDiv(N - 9, 2),
    sizes.CeilDiv(N, 3),
    sizes.Mod(N, 3),
    sizes.PythonMod(N - 9, 4),
    sizes.ModularIndexing(N, 2, 3),
    sizes.Max(N, M),
    sizes.Min(N, 4),
    sizes.CeilToInt(sizes.IntTrueDiv(N, 2)),
    sizes.FloorToInt(sizes.IntTrueDiv(N, 2) * 1.5),
    sizes.TruncToInt(sizes.ToFloat(N) * 0.7),
    sympy.Piecewise((N, N > M), (M, True)),
)


@pytest.mark.parametrize("opset", [11, 14, 20])
@pytest.mark.parametrize("expr", EXPRESSIONS, ids=str)
def test_expressions(expr: sympy.Expr, opset: int) -> None:
    for shape in ((5, 7), (8, 2), (1, 1)):
        expected = expr.subs({N: shape[0], M: shape[1]})
        assert evaluate(expr, shape, opset).tolist() == [int(expected)]


@pytest.mark.parametrize(
    ("expr", "expected"),
    [(sympy.Gt(N, M), False), (sympy.Ne(N, M), True), (sympy.And(N > 1, M > 1), True), (sympy.Not(N > 1), False)],
)
def test_conditions(expr: sympy.Expr, expected: bool) -> None:
    assert evaluate(expr, (5, 7), 20).tolist() == [expected]


def test_a_symbol_is_solved_from_the_expression_on_its_axis() -> None:
    assert evaluate(N, (7, 2), 20, dims=(2 * N + 1, M)).tolist() == [3]


def test_an_unknown_function_is_rejected() -> None:
    with pytest.raises(TypeError, match=r"the size expression .* which has no ONNX form"):
        evaluate(sympy.Function("mystery")(N), (2, 2), 20)


def test_expressions_have_the_users_dim_names() -> None:
    symbol = sympy.Symbol("s77", integer=True, positive=True)
    table = SymbolTable({symbol: "batch"})
    assert str(table.expr(2 * symbol + 1)) == "2*batch + 1"
    assert table.expr(sympy.Integer(4)) == 4
