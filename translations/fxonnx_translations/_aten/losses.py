"""Losses whose decomposition by torch is not what its kernels compute."""

from __future__ import annotations

import onnx_ir as ir

from .._builder.loops import arange
from .._builder.op import Op
from .._registry import translates

INT64 = ir.DataType.INT64
_MEAN, _SUM = 1, 2


@translates("aten::multilabel_margin_loss")
def multilabel_margin_loss(op: Op, self: ir.Value, target: ir.Value, reduction: int = _MEAN) -> ir.Value:
    """aten::multilabel_margin_loss(Tensor self, Tensor target, int reduction=1) -> Tensor"""
    if op.rank_of(self) == 0:
        self, target = op.Unsqueeze(self, [0]), op.Unsqueeze(target, [0])
    dtype, classes = op.dtype_of(self), op.dims(self)[-1]
    # torch's decomposition counts the places after the first -1 as labels of class 0.
    ended = op.CumSum(op.cast(op.Less(target, op.const(0, op.dtype_of(target))), INT64), op.const(op.rank_of(self) - 1))
    is_label = op.Equal(ended, op.const(0))
    label = op.Where(is_label, op.cast(target, INT64), op.const(0))
    # [..., label, class]
    chosen = op.Unsqueeze(op.GatherElements(self, label, axis=-1), [-1])
    counts = op.Unsqueeze(is_label, [-1])
    matches = op.And(counts, op.Equal(op.Unsqueeze(label, [-1]), arange(op, classes)))
    others = op.Equal(op.ReduceSum(op.cast(matches, INT64), [-2], keepdims=1), op.const(0))
    margins = op.Relu(op.Add(op.Sub(op.Unsqueeze(self, [-2]), chosen), op.const(1.0, dtype)))
    margins = op.Where(op.And(counts, others), margins, op.const(0.0, dtype))
    loss = op.Div(op.ReduceSum(margins, [-2, -1], keepdims=0), op.scalar(classes, dtype))
    if reduction == _MEAN:
        return op.ReduceMean(loss, keepdims=0)
    return op.ReduceSum(loss, keepdims=0) if reduction == _SUM else op.reshape(loss, op.result.shape)
