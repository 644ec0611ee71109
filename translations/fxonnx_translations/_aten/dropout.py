"""Dropout and its kin, which draw random numbers in training mode only."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from .._builder.op import Op, Unsupported
from .._builder.symbolic_dims import Dim
from .._registry import translates
from .activation import leaky_relu
from .random import flips, uniform_samples

_SELU_LIMIT = 1.7580993408473766
"""What alpha dropout subtracts from: -alpha * scale of SELU."""


@translates("aten::dropout")
def dropout(op: Op, input: ir.Value, p: float, train: bool) -> ir.Value:
    """aten::dropout(Tensor input, float p, bool train) -> Tensor"""
    if not train or p == 0:
        return input
    if p == 1:
        return op.Mul(input, op.const(0, op.dtype_of(input)))
    if op.opset < 12:
        raise Unsupported("Dropout in training mode exists from opset 12 on")
    return op.Dropout(input, op.const(float(p)), op.const(True))


@translates("aten::native_dropout")
def native_dropout(op: Op, input: ir.Value, p: float, train: bool | None) -> tuple[ir.Value, ir.Value]:
    """aten::native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)"""
    if train is False or p == 0:
        return input, op.expand(op.const(True), op.dims(input))
    kept = flips(op, op.dims(input), 1.0 - p)
    factor = 0.0 if p == 1 else 1 / (1 - p)
    return op.Mul(input, op.Mul(op.cast(kept, op.dtype_of(input)), factor)), kept


def _feature_shape(op: Op, input: ir.Value) -> Sequence[Dim]:
    """One number per channel."""
    return [*op.dims(input)[:2], *[1] * (op.rank_of(input) - 2)]


def _shifted(op: Op, input: ir.Value, p: float, shape: Sequence[Dim]) -> ir.Value:
    """Alpha dropout: what is dropped becomes SELU's limit, then mean and variance are put right."""
    dtype = op.dtype_of(input)
    if p == 1:
        return op.Mul(input, op.const(0, dtype))
    slope = 1 / math.sqrt((_SELU_LIMIT**2 * p + 1) * (1 - p))
    kept = op.cast(flips(op, shape, 1.0 - p), dtype)
    offset = op.Add(op.Mul(op.Sub(kept, 1.0), _SELU_LIMIT * slope), _SELU_LIMIT * slope * p)
    return op.Add(op.Mul(input, op.Mul(kept, slope)), offset)


@translates("aten::feature_dropout")
def feature_dropout(op: Op, input: ir.Value, p: float, train: bool) -> ir.Value:
    """aten::feature_dropout(Tensor input, float p, bool train) -> Tensor"""
    if not train or p == 0:
        return input
    factor = 0.0 if p == 1 else 1 / (1 - p)
    kept = op.cast(flips(op, _feature_shape(op, input), 1.0 - p), op.dtype_of(input))
    return op.Mul(input, op.Mul(kept, factor))


@translates("aten::alpha_dropout")
def alpha_dropout(op: Op, input: ir.Value, p: float, train: bool) -> ir.Value:
    """aten::alpha_dropout(Tensor input, float p, bool train) -> Tensor"""
    return _shifted(op, input, p, op.dims(input)) if train and p != 0 else input


@translates("aten::feature_alpha_dropout")
def feature_alpha_dropout(op: Op, input: ir.Value, p: float, train: bool) -> ir.Value:
    """aten::feature_alpha_dropout(Tensor input, float p, bool train) -> Tensor"""
    return _shifted(op, input, p, _feature_shape(op, input)) if train and p != 0 else input


@translates("aten::rrelu")
def rrelu(
    op: Op,
    self: ir.Value,
    lower: float = 0.125,
    upper: float = 0.33333333333333331,
    training: bool = False,
    generator: None = None,
) -> ir.Value:
    """aten::rrelu(Tensor self, Scalar lower=0.125, Scalar upper=0.33333333333333331, bool training=False, Generator? generator=None) -> Tensor"""
    if not training:
        return leaky_relu(op, self, (float(lower) + float(upper)) / 2)
    dtype = op.dtype_of(self)
    slope = op.Add(op.Mul(uniform_samples(op, op.dims(self), dtype), float(upper) - float(lower)), float(lower))
    return op.Where(op.Less(self, op.const(0.0, dtype)), op.Mul(self, slope), self)


@translates("aten::rrelu_with_noise_functional")
def rrelu_with_noise(
    op: Op,
    self: ir.Value,
    noise: ir.Value,
    lower: float = 0.125,
    upper: float = 0.33333333333333331,
    training: bool = False,
    generator: None = None,
) -> tuple[ir.Value, ir.Value]:
    """aten::rrelu_with_noise_functional(Tensor self, Tensor noise, Scalar lower=0.125, Scalar upper=0.33333333333333331, bool training=False, Generator? generator=None) -> (Tensor, Tensor noise_out)"""
    if not training:
        return leaky_relu(op, self, (float(lower) + float(upper)) / 2), noise
    dtype = op.dtype_of(self)
    slope = op.Add(op.Mul(uniform_samples(op, op.dims(self), dtype), float(upper) - float(lower)), float(lower))
    slope = op.Where(op.LessOrEqual(self, op.const(0.0, dtype)), slope, op.const(1.0, dtype))
    return op.Mul(self, slope), slope
