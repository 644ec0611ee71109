"""Losses: of classes, of pairs of numbers, connectionist temporal classification, and of a linear layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from .._builder.dtypes import FLOAT, HALF_FLOATS, INT32, INT64
from .._builder.loops import arange, loop
from .._builder.numerics import in_float, log_of_sum_of_exponentials
from .._builder.op import Op, Unsupported
from .._builder.symbolic_dims import Dim, is_static
from .._registry import OpCall, translates
from .reduction import reduced

_NONE, _MEAN, _SUM = 0, 1, 2
_REDUCTIONS = ("none", "mean", "sum")
_LOSS_SINCE = 12
"""First opset of NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss."""


def _reduced(op: Op, loss: ir.Value, reduction: int) -> ir.Value:
    if reduction == _NONE or op.rank_of(loss) == 0:
        return loss
    return reduced(op, "ReduceMean" if reduction == _MEAN else "ReduceSum", loss, None, False)


# ---- losses of classes


def _reject_class_loss(call: OpCall) -> str | None:
    """Reject calls that the ONNX losses cannot express; these are decomposed."""
    target, ignored = call.arguments["target"], call.arguments["ignore_index"]
    if call.opset < _LOSS_SINCE:
        return f"the ONNX operators of losses are of opset {_LOSS_SINCE}"
    if target.dtype.is_floating_point:
        return "probabilities of classes"
    if not isinstance(ignored, int):
        return "a symbolic ignore_index"
    if call.arguments.get("label_smoothing", 0.0) and call.arguments["weight"] is not None:
        return "label smoothing with weights of classes"
    return None


def _class_loss(
    op: Op, operator: str, self: ir.Value, target: ir.Value, weight: ir.Value | None, reduction: int, ignored: int
) -> ir.Value:
    """Emit one of the ONNX losses, which require a batch."""
    dtype = op.result.dtype
    # Half types are summed in float32 and rounded once.
    wide = FLOAT if dtype in HALF_FLOATS else dtype
    is_single = op.rank_of(self) == 1
    classes = op.dtype_of(target)
    scores, labels = op.cast(self, wide), target if classes in (INT32, INT64) else op.cast(target, INT64)
    if is_single:
        scores, labels = op.Unsqueeze(scores, [0]), op.Reshape(labels, [1])
    attributes: dict[str, Any] = {"reduction": _REDUCTIONS[reduction], "ignore_index": ignored}
    weights = None if weight is None else op.cast(weight, wide)
    loss: ir.Value = getattr(op, operator)(scores, labels, weights, **attributes)
    if is_single and reduction == _NONE:
        loss = op.reshape(loss, op.result.shape)
    return op.cast(op.shaped(loss, op.result.shape), dtype)


@translates("aten::nll_loss_nd", "aten::nll_loss", "aten::nll_loss2d", accepts=_reject_class_loss)
def nll_loss(
    op: Op,
    self: ir.Value,
    target: ir.Value,
    weight: ir.Value | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
) -> ir.Value:
    """aten::nll_loss_nd(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, SymInt ignore_index=-100) -> Tensor
    aten::nll_loss(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, SymInt ignore_index=-100) -> Tensor
    aten::nll_loss2d(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, SymInt ignore_index=-100) -> Tensor
    """
    return _class_loss(op, "NegativeLogLikelihoodLoss", self, target, weight, reduction, ignore_index)


@translates("aten::cross_entropy_loss", accepts=_reject_class_loss)
def cross_entropy_loss(
    op: Op,
    self: ir.Value,
    target: ir.Value,
    weight: ir.Value | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> ir.Value:
    """aten::cross_entropy_loss(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, SymInt ignore_index=-100, float label_smoothing=0.) -> Tensor"""
    dims = op.dims(self)
    if is_static(dims) and 0 not in dims and not label_smoothing:
        return _class_loss(op, "SoftmaxCrossEntropyLoss", self, target, weight, reduction, ignore_index)
    # The definition of SoftmaxCrossEntropyLoss reshapes to [0, 0, -1], which fails for an empty batch.
    wide = FLOAT if op.result.dtype in HALF_FLOATS else op.result.dtype
    axis = 0 if len(dims) == 1 else 1
    logarithms = op.LogSoftmax(op.cast(self, wide), axis=axis)
    if label_smoothing:
        # The smooth target adds the same to the logarithm of each class.
        mean = op.ReduceMean(logarithms, [axis], keepdims=1)
        logarithms = op.Add(op.Mul(logarithms, 1.0 - label_smoothing), op.Mul(mean, label_smoothing))
    return _class_loss(op, "NegativeLogLikelihoodLoss", logarithms, target, weight, reduction, ignore_index)


# ---- losses of pairs of numbers


@translates("aten::soft_margin_loss")
def soft_margin_loss(op: Op, self: ir.Value, target: ir.Value, reduction: int = _MEAN) -> ir.Value:
    """aten::soft_margin_loss(Tensor self, Tensor target, int reduction=1) -> Tensor"""

    def formula(op: Op, value: ir.Value, label: ir.Value) -> ir.Value:
        # Softplus does not overflow where the exponential does.
        return _reduced(op, op.Softplus(op.Mul(op.Neg(label), value)), reduction)

    return in_float(op, formula, self, target)


@translates("aten::binary_cross_entropy")
def binary_cross_entropy(
    op: Op, self: ir.Value, target: ir.Value, weight: ir.Value | None = None, reduction: int = _MEAN
) -> ir.Value:
    """aten::binary_cross_entropy(Tensor self, Tensor target, Tensor? weight=None, int reduction=1) -> Tensor"""

    def formula(op: Op, p: ir.Value, label: ir.Value, *weights: ir.Value) -> ir.Value:
        dtype = op.dtype_of(p)
        zero, one = op.const(0.0, dtype), op.const(1.0, dtype)
        # log(1 - p) as in log_one_plus; p is at most 1, so that nothing is infinite but the logarithm of 0.
        rest = op.Sub(one, p)
        kept = op.Div(op.Sub(rest, one), p)
        negated = op.Where(op.Less(kept, zero), op.Div(op.Log(rest), kept), p)
        # torch limits both logarithms.
        without = op.Mul(op.Sub(one, label), op.Min(negated, op.const(100.0, dtype)))
        loss = op.Sub(without, op.Mul(label, op.Max(op.Log(p), op.const(-100.0, dtype))))
        for factor in weights:
            loss = op.Mul(loss, factor)
        return _reduced(op, loss, reduction)

    return in_float(op, formula, self, target, *(() if weight is None else (weight,)))


@translates("aten::multilabel_margin_loss")
def multilabel_margin_loss(op: Op, self: ir.Value, target: ir.Value, reduction: int = _MEAN) -> ir.Value:
    """aten::multilabel_margin_loss(Tensor self, Tensor target, int reduction=1) -> Tensor"""
    if op.rank_of(self) == 0:
        self, target = op.Unsqueeze(self, [0]), op.Unsqueeze(target, [0])
    dtype, classes = op.dtype_of(self), op.dims(self)[-1]
    # torch's decomposition takes the labels after the first -1 for class 0.
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
    return op.reshape(loss, op.result.shape) if reduction == _NONE else _reduced(op, loss, reduction)


# ---- connectionist temporal classification


def _padded_targets(op: Op, targets: ir.Value, lengths: ir.Value, batch: Dim) -> ir.Value:
    """Return the targets as [N, S] INT64; concatenated ones are padded with those that follow."""
    targets = op.cast(targets, INT64)
    if op.rank_of(targets) == 2:
        return targets
    (total,) = op.dims(targets)
    first = op.Unsqueeze(op.Sub(op.CumSum(lengths, op.const(0)), lengths), [1])
    positions = op.Min(op.Add(first, op.Unsqueeze(arange(op, total), [0])), op.Sub(op.scalar(total), op.const(1)))
    return op.shaped(op.Gather(targets, positions, axis=0), (batch, total))


def _ctc_loss(
    op: Op, log_probs: ir.Value, targets: ir.Value, input_lengths: ir.Value, target_lengths: ir.Value, blank: int
) -> ir.Value:
    """Return the loss of each sample [N], by a Loop over the time steps of [T, N, C]."""
    dtype = op.dtype_of(log_probs)
    steps, batch, classes = op.dims(log_probs)
    zero, never = op.const(0.0, dtype), op.const(-math.inf, dtype)
    labels = _padded_targets(op, targets, target_lengths, batch)
    # The values of the padding are arbitrary.
    labels = op.Max(op.Min(labels, op.Sub(op.scalar(classes), op.const(1))), op.const(0))
    count = op.dims(labels)[1]
    length = 2 * count + 1
    # Blanks surround the labels.
    empty = op.expand(op.const(blank), (batch, count, 1))
    mixed = op.reshape(op.Concat(empty, op.Unsqueeze(labels, [2]), axis=2), (batch, 2 * count))
    mixed = op.shaped(op.Concat(mixed, op.expand(op.const(blank), (batch, 1)), axis=1), (batch, length))
    scores = op.GatherElements(log_probs, op.expand(op.Unsqueeze(mixed, [0]), (steps, batch, length)), axis=2)
    start = op.expand(never, (batch, 1))
    # A label may follow another one directly if they differ.
    before = op.Concat(op.expand(op.const(blank), (batch, 2)), op.Slice(mixed, [0], [-2], [1]), axis=1)
    skips = op.And(op.Not(op.Equal(mixed, op.const(blank))), op.Not(op.Equal(mixed, before)))

    def step(body: Op, k: ir.Value, states: Sequence[ir.Value]) -> Sequence[ir.Value]:
        (alpha,) = states
        one = body.Concat(start, body.Slice(alpha, [0], [-1], [1]), axis=1)
        two = body.Where(skips, body.Concat(start, start, body.Slice(alpha, [0], [-2], [1]), axis=1), never)
        total = log_of_sum_of_exponentials(body, log_of_sum_of_exponentials(body, alpha, one), two)
        new = body.Add(total, body.Squeeze(body.Gather(scores, k, axis=0), [0]))
        return [body.Where(body.Less(k, op.Unsqueeze(input_lengths, [1])), new, alpha)]

    # Before the first step, only the first blank is reached.
    rest = op.expand(never, (batch, 2 * count))
    initial = op.shaped(op.Concat(op.expand(zero, (batch, 1)), rest, axis=1), (batch, length))
    (alpha,) = loop(op, steps, [initial], step)
    last = op.Unsqueeze(op.Mul(target_lengths, op.const(2)), [1])
    has_label = op.Greater(last, op.const(0))
    ends_in_blank = op.GatherElements(alpha, last, axis=1)
    ends_in_label = op.GatherElements(alpha, op.Max(op.Sub(last, op.const(1)), op.const(0)), axis=1)
    total = log_of_sum_of_exponentials(op, ends_in_blank, op.Where(has_label, ends_in_label, never))
    return op.shaped(op.Neg(op.Squeeze(total, [1])), (batch,))


@translates("aten::ctc_loss.Tensor", "aten::ctc_loss.IntList")
def ctc_loss(
    op: Op,
    log_probs: ir.Value,
    targets: ir.Value,
    input_lengths: ir.Value | Sequence[int],
    target_lengths: ir.Value | Sequence[int],
    blank: int = 0,
    reduction: int = _MEAN,
    zero_infinity: bool = False,
) -> ir.Value:
    """aten::ctc_loss.Tensor(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank=0, int reduction=1, bool zero_infinity=False) -> Tensor
    aten::ctc_loss.IntList(Tensor log_probs, Tensor targets, int[] input_lengths, int[] target_lengths, int blank=0, int reduction=1, bool zero_infinity=False) -> Tensor
    """
    if 0 in op.dims(targets) or 0 in op.dims(log_probs):
        raise Unsupported("ctc_loss without targets or samples")
    dtype = op.dtype_of(log_probs)
    lengths = [
        op.Reshape(op.cast(value, INT64), [-1]) if isinstance(value, ir.Value) else op.const(list(value), INT64)
        for value in (input_lengths, target_lengths)
    ]
    is_single = op.rank_of(log_probs) == 2
    if is_single:
        log_probs = op.Unsqueeze(log_probs, [1])
        targets = op.Unsqueeze(targets, [0]) if op.rank_of(targets) == 1 else targets
    loss = _ctc_loss(op, log_probs, targets, lengths[0], lengths[1], blank)
    if zero_infinity:
        loss = op.Where(op.Equal(loss, op.const(math.inf, dtype)), op.const(0.0, dtype), loss)
    if reduction == _MEAN:
        loss = op.Div(loss, op.cast(op.Max(lengths[1], op.const(1)), dtype))
    return op.Squeeze(loss, [0]) if is_single and reduction == _NONE else _reduced(op, loss, reduction)


# ---- losses of a linear layer


def _chunked_loss(
    op: Op,
    input: ir.Value,
    linear_weight: ir.Value,
    target: ir.Value,
    linear_bias: ir.Value | None,
    weight: ir.Value | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
) -> list[ir.Value | None]:
    """Compute the loss in one piece; the gradients among the results of the operators are for training."""
    if label_smoothing and weight is not None:
        raise Unsupported("label smoothing with weights of classes")
    if op.opset < _LOSS_SINCE or op.is_float(target):
        raise Unsupported(f"a chunked linear_cross_entropy of probabilities, or before opset {_LOSS_SINCE}")
    dtype = op.dtype_of(input)
    wide = FLOAT if dtype in HALF_FLOATS else dtype
    scores = op.MatMul(op.cast(input, wide), op.Transpose(op.cast(linear_weight, wide), perm=[1, 0]))
    if linear_bias is not None:
        scores = op.Add(scores, op.cast(linear_bias, wide))
    kind = _REDUCTIONS.index(reduction)
    loss = cross_entropy_loss(op, scores, target, weight, kind, ignore_index, label_smoothing)
    return [loss, *[None] * (len(op.results) - 1)]


@translates("torch_nn::_linear_cross_entropy_batch_chunked")
def linear_cross_entropy(
    op: Op,
    input: ir.Value,
    linear_weight: ir.Value,
    target: ir.Value,
    linear_bias: ir.Value | None,
    weight: ir.Value | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    **training: Any,
) -> list[ir.Value | None]:
    """torch_nn::_linear_cross_entropy_batch_chunked(Tensor input, Tensor linear_weight, Tensor target, Tensor? linear_bias, Tensor? weight, str reduction, SymInt ignore_index, float label_smoothing, SymInt batch_chunk_size, str acc_policy, ScalarType acc_dtype, bool allow_retain_graph, bool compute_input_grad, bool compute_linear_weight_grad, bool compute_linear_bias_grad) -> (Tensor, Tensor, Tensor, Tensor)"""
    parameters = (linear_bias, weight, reduction, ignore_index, label_smoothing)
    return _chunked_loss(op, input, linear_weight, target, *parameters)


@translates("torch_nn::_linear_cross_entropy_batch_chunked_no_reduction")
def linear_cross_entropies(
    op: Op,
    input: ir.Value,
    linear_weight: ir.Value,
    target: ir.Value,
    linear_bias: ir.Value | None,
    weight: ir.Value | None,
    ignore_index: int,
    **training: Any,
) -> ir.Value | None:
    """torch_nn::_linear_cross_entropy_batch_chunked_no_reduction(Tensor input, Tensor linear_weight, Tensor target, Tensor? linear_bias, Tensor? weight, SymInt ignore_index, SymInt batch_chunk_size, str acc_policy, ScalarType acc_dtype) -> Tensor"""
    parameters = (linear_bias, weight, "none", ignore_index, 0.0)
    return _chunked_loss(op, input, linear_weight, target, *parameters)[0]
