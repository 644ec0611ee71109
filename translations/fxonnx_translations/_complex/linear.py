"""Matrix products, convolutions and covariances of complex tensors, by four real products each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from .._aten import conv as real_conv
from .._aten.join_split import kron as real_kron
from .._aten.linalg.matmul import Term, centered_rows, contracted, read_equation, simple_terms, weights_of_cov
from .._builder.op import Op, Operand
from .._registry import translates
from .arithmetic import multiply
from .parts import Pair, is_complex, join, pair_of, part_dtype


def bilinear(op: Op, product: Callable[[ir.Value, ir.Value], ir.Value], left: ir.Value, right: ir.Value) -> Pair:
    """Return a bilinear product of two operands, each of which may be real, by products of their parts."""
    dtype = part_dtype(op)
    if not is_complex(op, left):
        real, imaginary = pair_of(op, right, dtype)
        left = op.cast(left, dtype)
        return product(left, real), product(left, imaginary)
    (a, b), (c, d) = pair_of(op, left, dtype), pair_of(op, right, dtype)
    if not is_complex(op, right):
        return product(a, c), product(b, c)
    return op.Sub(product(a, c), product(b, d)), op.Add(product(a, d), product(b, c))


def _matmul(op: Op, left: ir.Value, right: ir.Value) -> Pair:
    return bilinear(op, op.MatMul, left, right)


def _scaled(op: Op, value: Pair, factor: Any) -> Pair:
    return value if factor == 1 else multiply(op, value, pair_of(op, factor, part_dtype(op)))


def _sum(op: Op, self: ir.Value, product: Pair, beta: Any, alpha: Any) -> ir.Value:
    real, imaginary = _scaled(op, product, alpha)
    if beta == 0:
        # beta == 0 ignores the operand, which may be NaN.
        return join(op, real, imaginary)
    a, b = _scaled(op, pair_of(op, self, part_dtype(op)), beta)
    return join(op, op.Add(a, real), op.Add(b, imaginary))


@translates("aten::matmul", complex=True)
def matmul(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::matmul(Tensor self, Tensor other) -> Tensor"""
    return join(op, *_matmul(op, self, other))


@translates("aten::mm", "aten::bmm", complex=True)
def mm(op: Op, self: ir.Value, mat2: ir.Value) -> ir.Value:
    """aten::mm(Tensor self, Tensor mat2) -> Tensor
    aten::bmm(Tensor self, Tensor mat2) -> Tensor
    """
    return join(op, *_matmul(op, self, mat2))


@translates("aten::mv", complex=True)
def mv(op: Op, self: ir.Value, vec: ir.Value) -> ir.Value:
    """aten::mv(Tensor self, Tensor vec) -> Tensor"""
    return join(op, *_matmul(op, self, vec))


@translates("aten::dot", complex=True)
def dot(op: Op, self: ir.Value, tensor: ir.Value) -> ir.Value:
    """aten::dot(Tensor self, Tensor tensor) -> Tensor"""
    return join(op, *_matmul(op, self, tensor))


@translates("aten::vdot", complex=True)
def vdot(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::vdot(Tensor self, Tensor other) -> Tensor"""
    (a, b), (c, d) = op.parts(self), op.parts(other)
    real = op.Add(op.MatMul(a, c), op.MatMul(b, d))
    return join(op, real, op.Sub(op.MatMul(a, d), op.MatMul(b, c)))


@translates("aten::vdot")
def vdot_of_real(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::vdot(Tensor self, Tensor other) -> Tensor"""
    return op.MatMul(self, other)


@translates("aten::addmm", complex=True)
def addmm(op: Op, self: ir.Value, mat1: ir.Value, mat2: ir.Value, beta: Operand = 1, alpha: Operand = 1) -> ir.Value:
    """aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return _sum(op, self, _matmul(op, mat1, mat2), beta, alpha)


@translates("aten::addmv", complex=True)
def addmv(op: Op, self: ir.Value, mat: ir.Value, vec: ir.Value, beta: Operand = 1, alpha: Operand = 1) -> ir.Value:
    """aten::addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return _sum(op, self, _matmul(op, mat, vec), beta, alpha)


@translates("aten::baddbmm", complex=True)
def baddbmm(
    op: Op, self: ir.Value, batch1: ir.Value, batch2: ir.Value, beta: Operand = 1, alpha: Operand = 1
) -> ir.Value:
    """aten::baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return _sum(op, self, _matmul(op, batch1, batch2), beta, alpha)


@translates("aten::addbmm", complex=True)
def addbmm(
    op: Op, self: ir.Value, batch1: ir.Value, batch2: ir.Value, beta: Operand = 1, alpha: Operand = 1
) -> ir.Value:
    """aten::addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    real, imaginary = _matmul(op, batch1, batch2)
    product = op.ReduceSum(real, [0], keepdims=0), op.ReduceSum(imaginary, [0], keepdims=0)
    return _sum(op, self, product, beta, alpha)


@translates("aten::einsum", complex=True)
def einsum(op: Op, equation: str, tensors: Sequence[ir.Value], path: Sequence[int] | None = None) -> ir.Value:
    """aten::einsum(str equation, Tensor[] tensors, *, int[]? path=None) -> Tensor"""
    dtype = part_dtype(op)
    parts = [op.parts(tensor) if is_complex(op, tensor) else (op.cast(tensor, dtype),) for tensor in tensors]
    labels, output = read_equation(equation, [op.rank_of(each[0]) for each in parts])
    terms = simple_terms(op, list(map(Term, parts, labels)))
    real, imaginary = contracted(op, terms, output, path).parts
    return join(op, real, imaginary)


@translates("aten::linear", complex=True)
def linear(op: Op, input: ir.Value, weight: ir.Value, bias: ir.Value | None = None) -> ir.Value:
    """aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"""

    def product(left: ir.Value, right: ir.Value) -> ir.Value:
        return op.MatMul(left, right if op.rank_of(right) == 1 else op.Transpose(right, perm=[1, 0]))

    return _with_bias(op, bilinear(op, product, input, weight), bias, 0)


@translates("aten::kron", complex=True)
def kron(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::kron(Tensor self, Tensor other) -> Tensor"""
    part = op.for_parts()
    return join(op, *bilinear(op, lambda left, right: real_kron(part, left, right), self, other))


def _spatial_rank(op: Op, weight: ir.Value) -> int:
    return op.rank_of(weight) - 2 - int(is_complex(op, weight))


def _with_bias(op: Op, value: Pair, bias: ir.Value | None, trailing: int) -> ir.Value:
    if bias is None:
        return join(op, *value)
    parts = pair_of(op, bias, part_dtype(op))
    channels = [-1] + [1] * trailing
    real, imaginary = (op.Reshape(part, channels) if trailing and op.rank_of(part) else part for part in parts)
    return join(op, op.Add(value[0], real), op.Add(value[1], imaginary))


@translates("aten::outer", complex=True)
def outer(op: Op, self: ir.Value, vec2: ir.Value) -> ir.Value:
    """aten::outer(Tensor self, Tensor vec2) -> Tensor"""
    dtype = part_dtype(op)
    (a, b), right = pair_of(op, self, dtype), pair_of(op, vec2, dtype)
    columns = op.Unsqueeze(a, [1]), op.Unsqueeze(b, [1]) if op.rank_of(b) else b
    return join(op, *multiply(op, columns, right))


@translates(*real_conv.CONVOLUTIONS, complex=True)
def conv(
    op: Op,
    input: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> ir.Value:
    """aten::conv1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=[1], SymInt[1] padding=[0], SymInt[1] dilation=[1], SymInt groups=1) -> Tensor
    aten::conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1], SymInt[2] padding=[0, 0], SymInt[2] dilation=[1, 1], SymInt groups=1) -> Tensor
    aten::conv3d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], SymInt[3] padding=[0, 0, 0], SymInt[3] dilation=[1, 1, 1], SymInt groups=1) -> Tensor
    aten::conv1d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=[1], str padding="valid", SymInt[1] dilation=[1], SymInt groups=1) -> Tensor
    aten::conv2d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1], str padding="valid", SymInt[2] dilation=[1, 1], SymInt groups=1) -> Tensor
    aten::conv3d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], str padding="valid", SymInt[3] dilation=[1, 1, 1], SymInt groups=1) -> Tensor
    """
    part = op.for_parts()

    def product(left: ir.Value, right: ir.Value) -> ir.Value:
        return op.shaped(real_conv.conv(part, left, right, None, stride, padding, dilation, groups), op.result.shape)

    return _with_bias(op, bilinear(op, product, input, weight), bias, _spatial_rank(op, weight))


@translates("aten::conv_transpose1d", "aten::conv_transpose2d.input", "aten::conv_transpose3d.input", complex=True)
def conv_transpose(
    op: Op,
    input: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> ir.Value:
    """aten::conv_transpose1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=[1], SymInt[1] padding=[0], SymInt[1] output_padding=[0], SymInt groups=1, SymInt[1] dilation=[1]) -> Tensor
    aten::conv_transpose2d.input(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1], SymInt[2] padding=[0, 0], SymInt[2] output_padding=[0, 0], SymInt groups=1, SymInt[2] dilation=[1, 1]) -> Tensor
    aten::conv_transpose3d.input(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], SymInt[3] padding=[0, 0, 0], SymInt[3] output_padding=[0, 0, 0], SymInt groups=1, SymInt[3] dilation=[1, 1, 1]) -> Tensor
    """
    part = op.for_parts()

    def product(left: ir.Value, right: ir.Value) -> ir.Value:
        return op.shaped(
            real_conv.conv_transpose(part, left, right, None, stride, padding, output_padding, groups, dilation),
            op.result.shape,
        )

    return _with_bias(op, bilinear(op, product, input, weight), bias, _spatial_rank(op, weight))


# ---- covariances


def _covariance(op: Op, rows: Pair, correction: int, fweights: ir.Value | None, aweights: ir.Value | None) -> Pair:
    """Return the covariances [n, n] of the rows: products with conjugates."""
    dtype = op.dtype_of(rows[0])
    weights, divisor = weights_of_cov(op, op.dims(rows[0])[1], dtype, correction, fweights, aweights)
    a, b = (centered_rows(op, part, weights) for part in rows)
    c, d = (op.Transpose(part if weights is None else op.Mul(part, weights), perm=[1, 0]) for part in (a, b))
    real = op.Add(op.MatMul(a, c), op.MatMul(b, d))
    imaginary = op.Sub(op.MatMul(b, c), op.MatMul(a, d))
    return op.Div(real, divisor), op.Div(imaginary, divisor)


def _observations(op: Op, self: ir.Value) -> Pair:
    real, imaginary = (
        part if op.rank_of(part) == 2 else op.Reshape(part, [1, -1]) for part in pair_of(op, self, part_dtype(op))
    )
    return real, imaginary


def _of_rows(op: Op, matrix: Pair) -> ir.Value:
    """Return a matrix of pairs of rows as the result, which is a number for one row."""
    if not op.result.shape:
        matrix = (op.Reshape(matrix[0], []), op.Reshape(matrix[1], []))
    return join(op, *matrix)


@translates("aten::cov", complex=True)
def cov(
    op: Op,
    self: ir.Value,
    correction: int = 1,
    fweights: ir.Value | None = None,
    aweights: ir.Value | None = None,
) -> ir.Value:
    """aten::cov(Tensor self, *, int correction=1, Tensor? fweights=None, Tensor? aweights=None) -> Tensor"""
    return _of_rows(op, _covariance(op, _observations(op, self), correction, fweights, aweights))


@translates("aten::corrcoef", complex=True)
def corrcoef(op: Op, self: ir.Value) -> ir.Value:
    """aten::corrcoef(Tensor self) -> Tensor"""
    rows = _observations(op, self)
    a, b = (centered_rows(op, part, None) for part in rows)
    length = op.Sqrt(op.Add(op.ReduceSumSquare(a, [1], keepdims=1), op.ReduceSumSquare(b, [1], keepdims=1)))
    a, b = op.Div(a, length), op.Div(b, length)
    c, d = (op.Transpose(part, perm=[1, 0]) for part in (a, b))
    real, imaginary = op.Add(op.MatMul(a, c), op.MatMul(b, d)), op.Sub(op.MatMul(b, c), op.MatMul(a, d))
    if op.result.shape:
        low, high = (op.const(limit, op.dtype_of(a)) for limit in (-1.0, 1.0))
        real, imaginary = op.Clip(real, low, high), op.Clip(imaginary, low, high)
    return _of_rows(op, (real, imaginary))
