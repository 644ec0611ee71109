"""Products of groups of rows or columns with a matrix each, as in mixtures of experts."""

from __future__ import annotations

import onnx_ir as ir
import sympy
import torch

from .._builder.loops import arange
from .._builder.op import Op, Unsupported
from .._registry import translates

INT64, BOOL = ir.DataType.INT64, ir.DataType.BOOL


def rows_times_matrices(op: Op, rows: ir.Value, matrices: ir.Value, offs: ir.Value) -> ir.Value:
    """The rows up to the first offset times the first matrix, those up to the second offset times the second, and so on.

    Args:
        op: What to write with.
        rows: [rows, in].
        matrices: [groups, in, out].
        offs: [groups], where each group of rows ends.

    Returns:
        [rows, out]; rows after the last offset give zeros.
    """
    count, columns = op.dims(rows)[0], op.dims(matrices)[2]
    dtype, groups = op.dtype_of(rows), op.dims(matrices)[0]
    ends = op.cast(offs, INT64)
    # The finished part grows by the rows of one group in each iteration.
    done, part = sympy.Symbol("rows_done"), sympy.Symbol("rows_of_group")
    body = op.body("group", [(INT64, ()), (BOOL, ()), (dtype, (done, columns)), (INT64, (1,))])
    number, going, product, begin = body.graph.inputs
    end = body.Gather(ends, body.Unsqueeze(number, [0]), axis=0)
    own = body.shaped(body.Slice(rows, begin, end, [0]), (part, op.dims(rows)[1]))
    own = body.shaped(body.MatMul(own, body.Gather(matrices, number, axis=0)), (part, columns))
    grown = body.shaped(body.Concat(product, own, axis=0), (done + part, columns))
    graph = body.finish([(going, ()), (grown, (done + part, columns)), (end, (1,))])
    nothing = op.expand(op.const(0, dtype), [0, columns])
    last = op.multi(
        "Loop", op.scalar(groups, INT64), op.const(True), nothing, op.const([0], INT64), outputs=2, body=graph
    )
    product, end = last
    product.type, end.type = ir.TensorType(dtype), ir.TensorType(INT64)
    op.shaped(product, (done, columns))
    op.shaped(end, (1,))
    rest = op.Concat(op.const([0, 0], INT64), op.Sub(op.size(count), end), op.const([0], INT64), axis=0)
    return op.shaped(op.Pad(product, rest), (count, columns))


@translates("aten::_grouped_mm")
def grouped_mm(
    op: Op,
    self: ir.Value,
    mat2: ir.Value,
    offs: ir.Value | None = None,
    bias: ir.Value | None = None,
    out_dtype: torch.dtype | None = None,
) -> ir.Value:
    """aten::_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor"""
    if bias is not None:
        raise Unsupported("_grouped_mm with a bias, which torch itself does not compute")
    # Sums of products in half types are rounded once.
    left, right = (op.cast(value, ir.DataType.FLOAT) for value in (self, mat2))
    if offs is None:
        product = op.MatMul(left, right)
    elif op.rank_of(right) == 3:
        product = rows_times_matrices(op, left, right, offs)
    elif op.rank_of(left) == 3:
        # Groups of columns are groups of rows of the transpose.
        columns, matrices = op.Transpose(right, perm=[1, 0]), op.Transpose(left, perm=[0, 2, 1])
        product = op.Transpose(rows_times_matrices(op, columns, matrices, offs), perm=[1, 0])
    else:
        product = _sums_over_groups(op, left, right, op.cast(offs, INT64))
    return op.cast(product, op.result.dtype)


def _sums_over_groups(op: Op, left: ir.Value, right: ir.Value, ends: ir.Value) -> ir.Value:
    """[rows, inner] times [inner, columns] where each group of ``inner`` gives a product of its own."""
    inner, groups = op.dims(right)[0], op.dims(ends)[0]
    begins = op.Concat(op.const([0], INT64), op.Slice(ends, [0], [-1], [0]), axis=0)
    places = arange(op, inner)
    after = op.GreaterOrEqual(places, op.Unsqueeze(op.shaped(begins, (groups,)), [1]))
    inside = op.And(after, op.Less(places, op.Unsqueeze(ends, [1])))
    own = op.Where(op.Unsqueeze(inside, [1]), left, op.const(0.0, op.dtype_of(left)))
    # What is outside of the group may be infinite on the other side, too.
    return op.MatMul(own, op.Where(op.Unsqueeze(inside, [2]), right, op.const(0.0, op.dtype_of(right))))
