"""Matrix products, grouped matmul and pairwise distances."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
import sympy
import torch

from ..._builder.dtypes import BOOL, INT64
from ..._builder.loops import arange
from ..._builder.op import Op, Operand, Unsupported
from ..._builder.stored_codes import transposed_dequantization
from ..._builder.symbolic_dims import Dim
from ..._registry import translates
from ..view import swapped

# ---- products


@translates("aten::linear")
def linear(op: Op, input: ir.Value, weight: ir.Value, bias: ir.Value | None = None) -> ir.Value:
    """aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"""
    # Gemm accepts integers, but ONNX Runtime has no kernels for them.
    if op.rank_of(input) == 2 and op.rank_of(weight) == 2 and op.is_float(input):
        # ONNX Runtime dequantizes rows faster than columns, where it does not fuse the Gemm of quantized activations.
        columns = None if _is_dequantized(input) else transposed_dequantization(op.builder, weight, [1, 0])
        if columns is not None:
            return op.Gemm(input, columns, bias) if bias is not None else op.MatMul(input, columns)
        return op.Gemm(input, weight, bias, transB=1) if bias is not None else op.Gemm(input, weight, transB=1)
    if op.rank_of(weight) == 1:
        product = op.MatMul(input, weight)
    else:
        # Storing the transpose saves a node; a weight with other uses is transposed at run time instead.
        transposed = op.derived(weight, "transposed", torch.t)
        product = op.MatMul(input, op.Transpose(weight, perm=[1, 0]) if transposed is None else transposed)
    return product if bias is None else op.Add(product, bias)


def _is_dequantized(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type == "DequantizeLinear"


@translates("aten::matmul")
def matmul(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::matmul(Tensor self, Tensor other) -> Tensor"""
    return op.MatMul(self, other)


@translates("aten::mm")
def mm(op: Op, self: ir.Value, mat2: ir.Value) -> ir.Value:
    """aten::mm(Tensor self, Tensor mat2) -> Tensor"""
    return op.MatMul(self, mat2)


@translates("aten::bmm")
def bmm(op: Op, self: ir.Value, mat2: ir.Value) -> ir.Value:
    """aten::bmm(Tensor self, Tensor mat2) -> Tensor"""
    return op.MatMul(self, mat2)


@translates("aten::mv")
def mv(op: Op, self: ir.Value, vec: ir.Value) -> ir.Value:
    """aten::mv(Tensor self, Tensor vec) -> Tensor"""
    return op.MatMul(self, vec)


@translates("aten::dot")
def dot(op: Op, self: ir.Value, tensor: ir.Value) -> ir.Value:
    """aten::dot(Tensor self, Tensor tensor) -> Tensor"""
    return op.MatMul(self, tensor)


@translates("aten::outer")
def outer(op: Op, self: ir.Value, vec2: ir.Value) -> ir.Value:
    """aten::outer(Tensor self, Tensor vec2) -> Tensor"""
    left, right = op.promote(self, vec2)
    return op.Mul(op.Unsqueeze(left, [1]), right)


# ---- products added to a tensor


def _scaled(op: Op, value: ir.Value, factor: Operand) -> ir.Value:
    return value if factor == 1 else op.Mul(value, op.operand(factor, op.dtype_of(value)))


def sum_of_products(op: Op, self: ir.Value, product: ir.Value, beta: Operand, alpha: Operand) -> ir.Value:
    """beta * self + alpha * product in the result's type; beta == 0 ignores self, including NaN."""
    total = _scaled(op, product, alpha)
    total = op.expand(total, op.result.shape) if beta == 0 else op.Add(_scaled(op, self, beta), total)
    return op.cast(total, op.result.dtype)


def wide(op: Op, *values: ir.Value) -> tuple[ir.Value, ...]:
    """Half types as float32: torch rounds once, after the last step."""
    half = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    return tuple(op.cast(value, ir.DataType.FLOAT) if op.dtype_of(value) in half else value for value in values)


@translates("aten::addmm")
def addmm(op: Op, self: ir.Value, mat1: ir.Value, mat2: ir.Value, beta: Operand = 1, alpha: Operand = 1) -> ir.Value:
    """aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    if op.dims(mat1)[1] == 0:
        # ONNX Runtime's Gemm ignores beta if the product has no terms.
        return op.expand(_scaled(op, self, beta), op.result.shape)
    if op.is_float(self) and isinstance(beta, (int, float)) and isinstance(alpha, (int, float)) and beta != 0:
        return op.Gemm(mat1, mat2, self, alpha=float(alpha), beta=float(beta))
    return sum_of_products(op, self, op.MatMul(mat1, mat2), beta, alpha)


@translates("aten::addmv")
def addmv(op: Op, self: ir.Value, mat: ir.Value, vec: ir.Value, beta: Operand = 1, alpha: Operand = 1) -> ir.Value:
    """aten::addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return sum_of_products(op, self, op.MatMul(mat, vec), beta, alpha)


@translates("aten::baddbmm")
def baddbmm(
    op: Op, self: ir.Value, batch1: ir.Value, batch2: ir.Value, beta: Operand = 1, alpha: Operand = 1
) -> ir.Value:
    """aten::baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    base, left, right = wide(op, self, batch1, batch2)
    return sum_of_products(op, base, op.MatMul(left, right), beta, alpha)


@translates("aten::addbmm")
def addbmm(
    op: Op, self: ir.Value, batch1: ir.Value, batch2: ir.Value, beta: Operand = 1, alpha: Operand = 1
) -> ir.Value:
    """aten::addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    product = op.MatMul(*wide(op, batch1, batch2))
    (base,) = wide(op, self)
    return sum_of_products(op, base, op.ReduceSum(product, [0], keepdims=0), beta, alpha)


@translates("aten::_trilinear")
def _trilinear(
    op: Op,
    i1: ir.Value,
    i2: ir.Value,
    i3: ir.Value,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> ir.Value:
    """aten::_trilinear(Tensor i1, Tensor i2, Tensor i3, int[] expand1, int[] expand2, int[] expand3, int[] sumdim, int unroll_dim=1) -> Tensor"""
    factors: list[ir.Value] = []
    for value, axes in ((i1, expand1), (i2, expand2), (i3, expand3)):
        factors.extend(wide(op, op.Unsqueeze(value, sorted(axes)) if axes else value))
    product = op.Mul(op.Mul(factors[0], factors[1]), factors[2])
    total = op.ReduceSum(product, sorted(sumdim), keepdims=0) if sumdim else product
    return op.cast(total, op.result.dtype)


# ---- grouped products


def rows_times_matrices(op: Op, rows: ir.Value, matrices: ir.Value, offs: ir.Value) -> ir.Value:
    """Grouped matrix product: the rows up to the first offset times the first matrix, and so on.

    Args:
        op: The op object.
        rows: [rows, in].
        matrices: [groups, in, out].
        offs: [groups], the end of each group of rows.

    Returns:
        [rows, out]; rows after the last offset are zero.
    """
    count, columns = op.dims(rows)[0], op.dims(matrices)[2]
    dtype, groups = op.dtype_of(rows), op.dims(matrices)[0]
    ends = op.cast(offs, INT64)
    bounds = op.shaped(op.Concat(op.const([0], INT64), ends, axis=0), (groups + 1,))
    # Only groups with rows are multiplied: a token of a mixture of experts has a few of many.
    has_rows = op.Less(op.shaped(op.Slice(bounds, [0], [-1], [0]), (groups,)), ends)
    numbers = op.Reshape(op.NonZero(has_rows), [-1])
    # Each iteration adds the rows of one group to the finished part.
    done, part = sympy.Symbol("rows_done"), sympy.Symbol("rows_of_group")
    body = op.body("group", [(INT64, ()), (BOOL, ()), (dtype, (done, columns))])
    iteration, going, product = body.graph.inputs
    number = body.Gather(numbers, body.Unsqueeze(iteration, [0]), axis=0)
    begin, end = (body.Gather(bounds, index, axis=0) for index in (number, body.Add(number, body.const([1], INT64))))
    own = body.shaped(body.Slice(rows, begin, end, [0]), (part, op.dims(rows)[1]))
    matrix = body.Squeeze(body.Gather(matrices, number, axis=0), [0])
    own = body.shaped(body.MatMul(own, matrix), (part, columns))
    grown = body.shaped(body.Concat(product, own, axis=0), (done + part, columns))
    graph = body.finish([(going, ()), (grown, (done + part, columns))])
    nothing = op.expand(op.const(0, dtype), [0, columns])
    product = op.Loop(op.Size(numbers), op.const(True), nothing, body=graph)
    product.type = ir.TensorType(dtype)
    # Other products have other numbers of rows: with the same name, ONNX Runtime would reuse their memory.
    op.shaped(product, (sympy.Symbol(f"{product.name}_rows"), columns))
    rest = op.Concat(
        op.const([0, 0], INT64),
        op.Sub(op.size(count), op.Slice(bounds, [-1], [2**62], [0])),
        op.const([0], INT64),
        axis=0,
    )
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
    # Products of half types are summed in float32 and rounded once.
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
    """[rows, inner] times [inner, columns], with one product per group of ``inner``."""
    inner, groups = op.dims(right)[0], op.dims(ends)[0]
    begins = op.Concat(op.const([0], INT64), op.Slice(ends, [0], [-1], [0]), axis=0)
    positions = arange(op, inner)
    after = op.GreaterOrEqual(positions, op.Unsqueeze(op.shaped(begins, (groups,)), [1]))
    inside = op.And(after, op.Less(positions, op.Unsqueeze(ends, [1])))
    own = op.Where(op.Unsqueeze(inside, [1]), left, op.const(0.0, op.dtype_of(left)))
    # Both operands are masked: an infinity outside of the group, times zero, would be NaN.
    return op.MatMul(own, op.Where(op.Unsqueeze(inside, [2]), right, op.const(0.0, op.dtype_of(right))))


# ---- pairwise distances


def _norm(op: Op, differences: ir.Value, p: float) -> ir.Value:
    """Return the p-norm over the last axis."""
    dtype = op.dtype_of(differences)
    if p == 0:
        nonzero = op.cast(op.Not(op.Equal(differences, op.const(0.0, dtype))), dtype)
        return op.ReduceSum(nonzero, [-1], keepdims=0)
    if p in (1, 2):
        return op.ReduceL1(differences, [-1], keepdims=0) if p == 1 else op.ReduceL2(differences, [-1], keepdims=0)
    sizes = op.Abs(differences)
    if math.isinf(p):
        return op.ReduceMax(sizes, [-1], keepdims=0)
    powers = op.ReduceSum(op.Pow(sizes, op.const(p, dtype)), [-1], keepdims=0)
    return op.Pow(powers, op.const(1 / p, dtype))


@translates("aten::_cdist_forward", "aten::cdist")
def cdist(op: Op, x1: ir.Value, x2: ir.Value, p: float = 2.0, compute_mode: int | None = None) -> ir.Value:
    """aten::_cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor
    aten::cdist(Tensor x1, Tensor x2, float p=2., int? compute_mode=None) -> Tensor
    """
    if 0 in op.result.shape or op.dims(x1)[-1] == 0:
        return op.expand(op.const(0.0, op.result.dtype), op.result.shape)
    return _norm(op, op.Sub(op.Unsqueeze(x1, [-2]), op.Unsqueeze(x2, [-3])), p)


@translates("aten::_pdist_forward", "aten::pdist")
def pdist(op: Op, self: ir.Value, p: float = 2.0) -> ir.Value:
    """aten::_pdist_forward(Tensor self, float p=2.) -> Tensor
    aten::pdist(Tensor self, float p=2.) -> Tensor
    """
    rows, columns = op.dims(self)
    if not isinstance(rows, int):
        raise Unsupported(f"the pairs of a symbolic number of rows, {rows}")
    if rows < 2 or columns == 0:
        return op.expand(op.const(0.0, op.result.dtype), op.result.shape)
    first, second = torch.triu_indices(rows, rows, 1)
    pairs = (op.Gather(self, op.const(position), axis=0) for position in (first, second))
    return _norm(op, op.Sub(*pairs), p)


# ---- covariances


def _observations(op: Op, self: ir.Value) -> ir.Value:
    """Return one row per variable."""
    value = op.cast(self, op.result.dtype)
    return value if op.rank_of(value) == 2 else op.Reshape(value, [1, -1])


def _products_of_rows(op: Op, left: ir.Value, right: ir.Value) -> ir.Value:
    product = op.MatMul(left, swapped(op, right, 0, 1))
    return product if op.result.shape else op.Reshape(product, [])


def weights_of_cov(
    op: Op, count: Dim, dtype: ir.DataType, correction: int, fweights: ir.Value | None, aweights: ir.Value | None
) -> tuple[ir.Value | None, ir.Value]:
    """Return the weights of the observations, if any, and the divisor of a covariance, which is limited to 0."""
    counts, factors = (None if each is None else op.cast(each, dtype) for each in (fweights, aweights))
    weights = op.Mul(counts, factors) if counts is not None and factors is not None else counts or factors
    total = op.scalar(count, dtype) if weights is None else op.ReduceSum(weights, [0], keepdims=0)
    subtracted = op.const(float(correction), dtype)
    if weights is not None and factors is not None and correction:
        of_factors = op.ReduceSum(op.Mul(weights, factors), [0], keepdims=0)
        subtracted = op.Div(op.Mul(of_factors, subtracted), total)
    return weights, op.Max(op.Sub(total, subtracted), op.const(0.0, dtype))


def centered_rows(op: Op, rows: ir.Value, weights: ir.Value | None) -> ir.Value:
    """Subtract the mean of each row."""
    if weights is None:
        return op.Sub(rows, op.ReduceMean(rows, [1], keepdims=1))
    sums = op.ReduceSum(op.Mul(rows, weights), [1], keepdims=1)
    return op.Sub(rows, op.Div(sums, op.ReduceSum(weights, [0], keepdims=0)))


@translates("aten::cov")
def cov(
    op: Op,
    self: ir.Value,
    correction: int = 1,
    fweights: ir.Value | None = None,
    aweights: ir.Value | None = None,
) -> ir.Value:
    """aten::cov(Tensor self, *, int correction=1, Tensor? fweights=None, Tensor? aweights=None) -> Tensor"""
    rows, dtype = _observations(op, self), op.result.dtype
    weights, divisor = weights_of_cov(op, op.dims(rows)[1], dtype, correction, fweights, aweights)
    centered = centered_rows(op, rows, weights)
    weighted = centered if weights is None else op.Mul(centered, weights)
    return op.Div(_products_of_rows(op, centered, weighted), divisor)


@translates("aten::corrcoef")
def corrcoef(op: Op, self: ir.Value) -> ir.Value:
    """aten::corrcoef(Tensor self) -> Tensor"""
    rows, dtype = _observations(op, self), op.result.dtype
    centered = centered_rows(op, rows, None)
    units = op.Div(centered, op.ReduceL2(centered, [1], keepdims=1))
    if not op.result.shape:
        # torch divides the variance by itself.
        variance = op.ReduceSumSquare(centered, keepdims=0)
        return op.Div(variance, variance)
    return op.Clip(_products_of_rows(op, units, units), op.const(-1.0, dtype), op.const(1.0, dtype))
