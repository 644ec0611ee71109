"""Embedding tables."""

from __future__ import annotations

import onnx_ir as ir
import torch

from ..op import Op, Unsupported
from ..registry import translates
from ..symbols import Dim
from .scatter import scatter_op

aten = torch.ops.aten

INT64, FLOAT = ir.DataType.INT64, ir.DataType.FLOAT


@translates(aten.embedding.default)
def embedding(
    op: Op,
    weight: ir.Value,
    indices: ir.Value,
    padding_idx: Dim = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> ir.Value:
    """aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) -> Tensor"""
    return op.Gather(weight, indices, axis=0)


@translates(aten.one_hot.default)
def one_hot(op: Op, self: ir.Value, num_classes: int = -1) -> ir.Value:
    """aten::one_hot(Tensor self, int num_classes=-1) -> Tensor"""
    if num_classes >= 0:
        depth = op.const(num_classes)
    else:
        depth = op.Add(op.ReduceMax(op.Reshape(self, [-1]), [0], keepdims=0), 1)
    return op.OneHot(self, depth, op.const([0, 1]), axis=-1)
