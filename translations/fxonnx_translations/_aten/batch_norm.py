"""The batch normalizations of graphs that torch has decomposed, which return statistics, too."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch

from .._builder.op import Op, Result
from .._registry import translates
from .norm import batch_norm

FLOAT, DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE


def _empty(op: Op, result: Result) -> ir.Value:
    return op.const(torch.empty(0, dtype=result.torch_dtype))


def _fitted(op: Op, values: list[ir.Value]) -> list[ir.Value]:
    """In torch's types; what is left over of the results is empty."""
    found = [op.cast(value, result.dtype) for value, result in zip(values, op.results, strict=False)]
    return [*found, *(_empty(op, result) for result in op.results[len(found) :])]


def _with_batch_statistics(
    op: Op, input: ir.Value, weight: ir.Value | None, bias: ir.Value | None, momentum: float, eps: float
) -> tuple[list[ir.Value], list[ir.Value]]:
    """The results of a training step.

    Returns:
        The normalized input, the mean and the reciprocal of the standard deviation of the batch; then what is added
        to the running mean and variance, which are multiplied by ``1 - momentum`` before.
    """
    normalized = batch_norm(op, input, weight, bias, None, None, True, momentum, eps, False)
    dtype = DOUBLE if op.dtype_of(input) == DOUBLE else FLOAT
    value = op.cast(input, dtype)
    dims = op.dims(value)
    axes = [axis for axis in range(len(dims)) if axis != 1]
    mean = op.ReduceMean(value, axes, keepdims=1)
    centered = op.Sub(value, mean)
    variance = op.ReduceMean(op.Mul(centered, centered), axes, keepdims=0)
    count = op.scalar(math.prod(dims[axis] for axis in axes), dtype)
    unbiased = op.Mul(variance, op.Div(count, op.Sub(count, 1.0)))
    mean = op.Squeeze(mean, axes)
    deviation = op.Reciprocal(op.Sqrt(op.Add(variance, eps)))
    return [normalized, mean, deviation], [op.Mul(part, float(momentum)) for part in (mean, unbiased)]


def _updated(op: Op, running: ir.Value, addition: ir.Value, momentum: float) -> ir.Value:
    return op.Add(op.Mul(op.cast(running, op.dtype_of(addition)), 1.0 - momentum), addition)


@translates("aten::_native_batch_norm_legit_no_training", "aten::_batch_norm_no_update")
def without_update(
    op: Op,
    input: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    running_mean: ir.Value | None,
    running_var: ir.Value | None,
    momentum: float,
    eps: float,
) -> list[ir.Value]:
    """aten::_native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor)
    aten::_batch_norm_no_update(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor)
    """
    return _fitted(op, [batch_norm(op, input, weight, bias, running_mean, running_var, False, momentum, eps, False)])


@translates("aten::_batch_norm_with_update_functional")
def with_update(
    op: Op,
    input: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    running_mean: ir.Value,
    running_var: ir.Value,
    momentum: float,
    eps: float,
) -> list[ir.Value]:
    """aten::_batch_norm_with_update_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)"""
    results, additions = _with_batch_statistics(op, input, weight, bias, momentum, eps)
    running = [
        _updated(op, old, new, momentum) for old, new in zip((running_mean, running_var), additions, strict=True)
    ]
    # The reserve serves the backward pass of GPUs.
    return _fitted(op, [*results, _empty(op, op.results[3]), *running])


@translates("aten::_native_batch_norm_legit_functional")
def functional(
    op: Op,
    input: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    running_mean: ir.Value,
    running_var: ir.Value,
    training: bool,
    momentum: float,
    eps: float,
) -> list[ir.Value]:
    """aten::_native_batch_norm_legit_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)"""
    old = (running_mean, running_var)
    if not training:
        normalized = batch_norm(op, input, weight, bias, *old, False, momentum, eps, False)
        empty = [_empty(op, result) for result in op.results[1:3]]
        return _fitted(op, [normalized, *empty, *old])
    results, additions = _with_batch_statistics(op, input, weight, bias, momentum, eps)
    return _fitted(op, [*results, *(_updated(op, *pair, momentum) for pair in zip(old, additions, strict=True))])


@translates("aten::_native_batch_norm_legit.no_stats")
def without_statistics(
    op: Op,
    input: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[ir.Value]:
    """aten::_native_batch_norm_legit.no_stats(Tensor input, Tensor? weight, Tensor? bias, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)"""
    return _fitted(op, _with_batch_statistics(op, input, weight, bias, momentum, eps)[0])


@translates("aten::native_batch_norm")
def native_batch_norm(
    op: Op,
    input: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    running_mean: ir.Value | None,
    running_var: ir.Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[ir.Value]:
    """aten::native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)"""
    if training:
        return _fitted(op, _with_batch_statistics(op, input, weight, bias, momentum, eps)[0])
    return _fitted(op, [batch_norm(op, input, weight, bias, running_mean, running_var, False, momentum, eps, False)])
