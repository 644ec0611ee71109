"""Matrix products."""

from __future__ import annotations

import onnx_ir as ir
import torch

from .._builder.op import Op, Operand
from .._registry import translates


@translates("aten::linear")
def linear(op: Op, input: ir.Value, weight: ir.Value, bias: ir.Value | None = None) -> ir.Value:
    """aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"""
    # Gemm takes integers, but ONNX Runtime's does not.
    if op.rank_of(input) == 2 and op.rank_of(weight) == 2 and op.is_float(input):
        return op.Gemm(input, weight, bias, transB=1) if bias is not None else op.Gemm(input, weight, transB=1)
    if op.rank_of(weight) == 1:
        product = op.MatMul(input, weight)
    else:
        # Storing the transpose saves a node; a weight that others read, too, is transposed at run time instead.
        transposed = op.derived(weight, "transposed", torch.t)
        product = op.MatMul(input, op.Transpose(weight, perm=[1, 0]) if transposed is None else transposed)
    return product if bias is None else op.Add(product, bias)


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


def _scaled(op: Op, value: ir.Value, factor: Operand) -> ir.Value:
    return value if factor == 1 else op.Mul(value, op.operand(factor, op.dtype_of(value)))


def sum_of_products(op: Op, self: ir.Value, product: ir.Value, beta: Operand, alpha: Operand) -> ir.Value:
    """beta * self + alpha * product in the result's type, where beta == 0 ignores self, NaN and all."""
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
        # ONNX Runtime's Gemm forgets beta where there is nothing to multiply.
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


@translates("aten::outer")
def outer(op: Op, self: ir.Value, vec2: ir.Value) -> ir.Value:
    """aten::outer(Tensor self, Tensor vec2) -> Tensor"""
    left, right = op.promote(self, vec2)
    return op.Mul(op.Unsqueeze(left, [1]), right)
