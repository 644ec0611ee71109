"""Sums of products by labels: a MatMul where the labels say one, else ONNX's Einsum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch

from .._builder.op import Op
from .._registry import Call, translates
from .view import swapped

_DTYPES = (torch.float32, torch.float64)
"""What ONNX Runtime's kernel takes, without integers, whose sums are INT64 in torch."""


@dataclass(frozen=True)
class _Product:
    """A batched matrix product of two operands.

    Attributes:
        flip_left: Whether the last two axes of the first operand are to be exchanged.
        flip_right: Likewise of the second one.
        flip_result: Likewise of the result.
    """

    flip_left: bool
    flip_right: bool
    flip_result: bool


def _terms(equation: str) -> tuple[list[str], str] | None:
    """The labels of the operands and of the result; None if there is an ellipsis or no result."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    return (inputs.split(","), output) if arrow and "." not in equation else None


def _product(terms: Sequence[str], output: str) -> _Product | None:
    """The product that an equation of two operands is, if all of its leading labels are the same in the same order."""
    left, right = terms
    lead = output[:-2]
    if len(output) < 2 or not all(len(term) == len(output) and term.startswith(lead) for term in (left, right)):
        return None
    a, b, c, d, i, j = (*left[-2:], *right[-2:], *output[-2:])
    shared = {a, b} & {c, d}
    if len({*lead, a, b, c, d}) != len(lead) + 3 or len(shared) != 1:
        return None
    (summed,) = shared
    row, column = (b if a == summed else a), (d if c == summed else c)
    if {i, j} != {row, column}:
        return None
    return _Product(flip_left=a == summed, flip_right=d == summed, flip_result=(i, j) == (column, row))


def _declines(call: Call) -> str | None:
    terms, tensors = _terms(call.arguments["equation"]), call.arguments["tensors"]
    if terms is None or len(terms[0]) != len(tensors):
        return "an equation with an ellipsis or without a result"
    sizes: dict[str, Any] = {}
    for term, tensor in zip(terms[0], tensors, strict=True):
        if len(set(term)) != len(term) or len(term) != tensor.dim():
            return "a label that is repeated in one operand"
        for label, size in zip(term, tensor.shape, strict=True):
            # torch broadcasts sizes of 1, ONNX does not.
            if str(sizes.setdefault(label, size)) != str(size):
                return f"the label {label} stands for two sizes"
    if len(tensors) == 2 and _product(*terms) is not None and all(tensor.is_floating_point() for tensor in tensors):
        return None
    if call.opset < 12 or any(tensor.dtype not in _DTYPES for tensor in tensors):
        return "an element type that ONNX Runtime has no Einsum for"
    return None


@translates("aten::einsum", accepts=_declines)
def einsum(op: Op, equation: str, tensors: Sequence[ir.Value], path: Sequence[int] | None = None) -> ir.Value:
    """aten::einsum(str equation, Tensor[] tensors, *, int[]? path=None) -> Tensor"""
    terms = _terms(equation)
    product = _product(*terms) if terms is not None and len(tensors) == 2 else None
    if product is None:
        return op.Einsum(*tensors, equation=equation.replace(" ", ""))
    left, right = tensors
    if product.flip_result:
        # The transpose of a product is the product of the transposes in the other order.
        left, right = (
            right if product.flip_right else swapped(op, right, -2, -1),
            left if product.flip_left else swapped(op, left, -2, -1),
        )
        return op.MatMul(left, right)
    left = swapped(op, left, -2, -1) if product.flip_left else left
    return op.MatMul(left, swapped(op, right, -2, -1) if product.flip_right else right)
