"""Random numbers with torch's shape, type and distribution, different at each run.

They come from ONNX's RandomUniform and RandomNormal, which ONNX Runtime neither folds nor shares. ONNX Runtime 1.31 has
kernels of them up to opset 21; from 22 on only of Dropout, whose mask provides random bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeGuard

import onnx_ir as ir
import torch

from .._builder.dtypes import DOUBLE, FLOAT, INT64
from .._builder.op import Op, Operand, Unsupported
from .._builder.symbolic_dims import Dim, is_static
from .._registry import translates
from .activation import leaky_relu

# ---- samples


_DIGITS = {ir.DataType.FLOAT16: 11, ir.DataType.BFLOAT16: 8}


def _sampled(
    op: Op, sampler: str, shape: Sequence[Dim], dtype: ir.DataType, offset: float = 0.0, factor: float = 1.0
) -> ir.Value:
    """Return samples of float32 or float64: ``offset + factor * x`` for x uniform from [0, 1), or normal.

    ``factor`` must be greater than 0.
    """
    is_normal = sampler == "RandomNormal"
    if op.opset >= _WITHOUT_KERNELS:
        samples = _normal_of_flips(op, shape, dtype) if is_normal else _uniform_of_flips(op, shape, dtype)
        return op.Add(op.Mul(samples, factor), offset)
    limits = {"mean": offset, "scale": factor} if is_normal else {"low": offset, "high": offset + factor}
    if is_static(shape):
        # The shape attribute must not be empty.
        samples = getattr(op, sampler)(shape=[int(dim) for dim in shape] or [1], dtype=dtype, **limits)
        return op.shaped(samples, shape) if shape else op.Squeeze(samples, [0])
    like = op.expand(op.const(0.0, dtype), shape)
    return op.shaped(getattr(op, f"{sampler}Like")(like, dtype=dtype, **limits), shape)


_WITHOUT_KERNELS = 22
_BINARY_DIGITS = {FLOAT: 24, DOUBLE: 53}


def _uniform_of_flips(op: Op, shape: Sequence[Dim], dtype: ir.DataType) -> ir.Value:
    """Return numbers from [0, 1) whose binary digits are random bits: the mask of Dropout."""
    count = _BINARY_DIGITS[dtype]
    ones = op.expand(op.const(1.0, FLOAT), (count, *shape))
    _, flips = op.multi("Dropout", ones, 0.5, True, outputs=2)
    weights = torch.ldexp(torch.tensor(1.0, dtype=torch.float64), -torch.arange(1, count + 1))
    digits = weights.to(torch.float64 if dtype == DOUBLE else torch.float32).reshape(count, *[1] * len(shape))
    # Distinct powers of 2, so that the sum is exact.
    return op.shaped(op.ReduceSum(op.Mul(op.cast(flips, dtype), op.const(digits)), [0], keepdims=0), shape)


def _normal_of_flips(op: Op, shape: Sequence[Dim], dtype: ir.DataType) -> ir.Value:
    """Return normal samples by the Box-Muller transform of uniform ones."""
    radius = op.Sqrt(op.Mul(op.Log(op.Sub(1.0, _uniform_of_flips(op, shape, dtype))), -2.0))
    return op.Mul(radius, op.Cos(op.Mul(_uniform_of_flips(op, shape, dtype), 2 * math.pi)))


def _carrier(dtype: ir.DataType) -> ir.DataType:
    return DOUBLE if dtype == DOUBLE else FLOAT


def uniform_samples(op: Op, shape: Sequence[Dim], dtype: ir.DataType) -> ir.Value:
    """Return uniform samples from [0, 1) of a float type."""
    samples = _sampled(op, "RandomUniform", shape, _carrier(dtype))
    if dtype not in _DIGITS:
        return samples
    # Rounding could give 1.
    steps = float(1 << _DIGITS[dtype])
    return op.cast(op.Div(op.Floor(op.Mul(samples, steps)), steps), dtype)


def normal_samples(op: Op, shape: Sequence[Dim], dtype: ir.DataType) -> ir.Value:
    """Return samples of the standard normal distribution, of a float type."""
    return op.cast(_sampled(op, "RandomNormal", shape, _carrier(dtype)), dtype)


def _exponential_samples(op: Op, shape: Sequence[Dim], dtype: ir.DataType) -> ir.Value:
    """Return samples of the exponential distribution of rate 1, of float32 or float64; they are greater than 0."""
    samples = _sampled(op, "RandomUniform", shape, dtype)
    smallest = float(torch.finfo(torch.float64 if dtype == DOUBLE else torch.float32).tiny)
    return op.Max(op.Neg(op.Log(op.Sub(1.0, samples))), smallest)


def flips(op: Op, shape: Sequence[Dim], probability: Operand) -> ir.Value:
    """Return Bernoulli samples as BOOL."""
    dtype = DOUBLE if isinstance(probability, ir.Value) and op.dtype_of(probability) == DOUBLE else FLOAT
    samples = _sampled(op, "RandomUniform", shape, dtype)
    return op.shaped(op.Less(samples, op.operand(probability, dtype)), shape)


# ---- uniform and normal


@translates("aten::rand", "aten::rand.generator")
def rand(op: Op, size: Sequence[Dim], **options: Any) -> ir.Value:
    """aten::rand(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    aten::rand.generator(SymInt[] size, *, Generator? generator, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    """
    return uniform_samples(op, op.result.shape, op.result.dtype)


@translates("aten::rand_like", "aten::rand_like.generator")
def rand_like(op: Op, self: ir.Value, **options: Any) -> ir.Value:
    """aten::rand_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
    aten::rand_like.generator(Tensor self, *, Generator? generator, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
    """
    return uniform_samples(op, op.result.shape, op.result.dtype)


@translates("aten::randn", "aten::randn.generator")
def randn(op: Op, size: Sequence[Dim], **options: Any) -> ir.Value:
    """aten::randn(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    aten::randn.generator(SymInt[] size, *, Generator? generator, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    """
    return normal_samples(op, op.result.shape, op.result.dtype)


@translates("aten::randn_like", "aten::randn_like.generator")
def randn_like(op: Op, self: ir.Value, **options: Any) -> ir.Value:
    """aten::randn_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
    aten::randn_like.generator(Tensor self, *, Generator? generator, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
    """
    return normal_samples(op, op.result.shape, op.result.dtype)


@translates("aten::uniform")
def uniform(op: Op, self: ir.Value, to: float = 1.0, generator: None = None, **lower: float) -> ir.Value:
    """aten::uniform(Tensor self, float from=0., float to=1., *, Generator? generator=None) -> Tensor"""
    # "from" is a keyword of Python.
    low, dtype = float(lower.get("from", 0.0)), op.result.dtype
    if dtype == FLOAT and to > low:
        return _sampled(op, "RandomUniform", op.result.shape, FLOAT, low, to - low)
    samples = op.cast(uniform_samples(op, op.result.shape, dtype), _carrier(dtype))
    return op.cast(op.Add(op.Mul(samples, to - low), low), dtype)


@translates(
    "aten::normal.float_float",
    "aten::normal.Tensor_float",
    "aten::normal.float_Tensor",
    "aten::normal.Tensor_Tensor",
)
def normal(op: Op, mean: Operand, std: Operand = 1.0, size: Sequence[Dim] = (), **options: Any) -> ir.Value:
    """aten::normal.float_float(float mean, float std, SymInt[] size, *, Generator? generator=None, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    aten::normal.Tensor_float(Tensor mean, float std=1., *, Generator? generator=None) -> Tensor
    aten::normal.float_Tensor(float mean, Tensor std, *, Generator? generator=None) -> Tensor
    aten::normal.Tensor_Tensor(Tensor mean, Tensor std, *, Generator? generator=None) -> Tensor
    """
    dtype, carrier = op.result.dtype, _carrier(op.result.dtype)
    if _is_number(mean) and _is_number(std):
        return op.cast(_normal_of(op, carrier, mean, std), dtype)
    samples = normal_samples(op, op.result.shape, carrier)
    return op.cast(op.Add(op.Mul(samples, op.operand(std, carrier)), op.operand(mean, carrier)), dtype)


def _is_number(value: Operand) -> TypeGuard[float]:
    return isinstance(value, (int, float))


def _normal_of(op: Op, carrier: ir.DataType, mean: float, std: float) -> ir.Value:
    """Return samples of the result's shape; in float64 the attributes of RandomNormal would be rounded."""
    if std > 0 and carrier == FLOAT:
        return _sampled(op, "RandomNormal", op.result.shape, carrier, float(mean), float(std))
    return op.Add(op.Mul(normal_samples(op, op.result.shape, carrier), float(std)), float(mean))


@translates("aten::normal_functional")
def normal_functional(op: Op, self: ir.Value, mean: float = 0.0, std: float = 1.0, generator: None = None) -> ir.Value:
    """aten::normal_functional(Tensor self, float mean=0., float std=1., *, Generator? generator=None) -> Tensor"""
    return normal(op, mean, std)


# ---- other distributions


@translates("aten::log_normal")
def log_normal(op: Op, self: ir.Value, mean: float = 1.0, std: float = 2.0, generator: None = None) -> ir.Value:
    """aten::log_normal(Tensor self, float mean=1., float std=2., *, Generator? generator=None) -> Tensor"""
    carrier = _carrier(op.result.dtype)
    return op.cast(op.Exp(_normal_of(op, carrier, mean, std)), op.result.dtype)


@translates("aten::exponential")
def exponential(op: Op, self: ir.Value, lambd: float = 1.0, generator: None = None) -> ir.Value:
    """aten::exponential(Tensor self, float lambd=1., *, Generator? generator=None) -> Tensor"""
    samples = _exponential_samples(op, op.result.shape, _carrier(op.result.dtype))
    return op.cast(op.Div(samples, float(lambd)), op.result.dtype)


@translates("aten::cauchy")
def cauchy(op: Op, self: ir.Value, median: float = 0.0, sigma: float = 1.0, generator: None = None) -> ir.Value:
    """aten::cauchy(Tensor self, float median=0., float sigma=1., *, Generator? generator=None) -> Tensor"""
    angle = _sampled(op, "RandomUniform", op.result.shape, DOUBLE, -math.pi / 2, math.pi)
    # In float64 because of the heavy tails, as Sin / Cos: ONNX Runtime has no Tan kernel for it.
    slope = op.Div(op.Sin(angle), op.Cos(angle))
    return op.cast(op.Add(op.Mul(slope, float(sigma)), float(median)), op.result.dtype)


@translates("aten::geometric")
def geometric(op: Op, self: ir.Value, p: float, generator: None = None) -> ir.Value:
    """aten::geometric(Tensor self, float p, *, Generator? generator=None) -> Tensor"""
    trials = op.Ceil(op.Div(_exponential_samples(op, op.result.shape, DOUBLE), -math.log1p(-p)))
    return op.cast(op.Max(trials, 1.0), op.result.dtype)


@translates("aten::bernoulli")
def bernoulli(op: Op, self: ir.Value, generator: None = None) -> ir.Value:
    """aten::bernoulli(Tensor self, *, Generator? generator=None) -> Tensor"""
    return op.cast(flips(op, op.result.shape, self), op.result.dtype)


@translates("aten::bernoulli.p", "aten::bernoulli.Tensor")
def bernoulli_with(op: Op, self: ir.Value, p: Operand = 0.5, generator: None = None) -> ir.Value:
    """aten::bernoulli.p(Tensor self, float p, *, Generator? generator=None) -> Tensor
    aten::bernoulli.Tensor(Tensor self, Tensor p, *, Generator? generator=None) -> Tensor
    """
    return op.cast(flips(op, op.result.shape, p), op.result.dtype)


# ---- integers


def _integers(op: Op, low: Dim, high: Operand) -> ir.Value:
    """Return integers from [low, high), computed in float64."""
    samples = _sampled(op, "RandomUniform", op.result.shape, DOUBLE)
    if isinstance(low, int) and isinstance(high, int) and high - low > 1 << 53:
        # high - low may exceed the range of INT64.
        return op.cast(op.Floor(op.Add(op.Mul(samples, float(high - low)), float(low))), op.result.dtype)
    first = op.scalar(low, INT64)
    end = op.cast(high, INT64) if isinstance(high, ir.Value) else op.scalar(high, INT64)
    count = op.cast(op.Sub(end, first), DOUBLE)
    number = op.cast(op.Floor(op.Mul(samples, count)), INT64)
    return op.cast(op.Add(number, first), op.result.dtype)


@translates("aten::randint", "aten::randint.generator")
def randint(op: Op, high: Dim, size: Sequence[Dim], **options: Any) -> ir.Value:
    """aten::randint(SymInt high, SymInt[] size, *, ScalarType? dtype=4, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    aten::randint.generator(SymInt high, SymInt[] size, *, Generator? generator, ScalarType? dtype=4, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    """
    return _integers(op, 0, high)


@translates("aten::randint.low", "aten::randint.low_generator")
def randint_from(op: Op, low: Dim, high: Dim, size: Sequence[Dim], **options: Any) -> ir.Value:
    """aten::randint.low(SymInt low, SymInt high, SymInt[] size, *, ScalarType? dtype=4, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    aten::randint.low_generator(SymInt low, SymInt high, SymInt[] size, *, Generator? generator, ScalarType? dtype=4, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    """
    return _integers(op, low, high)


@translates(
    "aten::randint_like",
    "aten::randint_like.Tensor",
    "aten::randint_like.generator",
)
def randint_like(op: Op, self: ir.Value, high: Operand, **options: Any) -> ir.Value:
    """aten::randint_like(Tensor self, SymInt high, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
    aten::randint_like.Tensor(Tensor self, Tensor high, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
    aten::randint_like.generator(Tensor self, SymInt high, *, Generator? generator, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
    """
    return _integers(op, 0, high)


@translates("aten::randint_like.low_dtype", "aten::randint_like.low_generator_dtype")
def randint_like_from(op: Op, self: ir.Value, low: Dim, high: Dim, **options: Any) -> ir.Value:
    """aten::randint_like.low_dtype(Tensor self, SymInt low, SymInt high, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
    aten::randint_like.low_generator_dtype(Tensor self, SymInt low, SymInt high, *, Generator? generator, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
    """
    return _integers(op, low, high)


@translates("aten::randperm", "aten::randperm.generator")
def randperm(op: Op, n: Dim, **options: Any) -> ir.Value:
    """aten::randperm(SymInt n, *, ScalarType? dtype=4, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    aten::randperm.generator(SymInt n, *, Generator? generator, ScalarType? dtype=4, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
    """
    samples = _sampled(op, "RandomUniform", [n], DOUBLE)
    positions = op.multi("TopK", samples, op.sizes([n]), outputs=2)[1]
    return op.cast(positions, op.result.dtype)


@translates("aten::multinomial")
def multinomial(
    op: Op, self: ir.Value, num_samples: Dim, replacement: bool = False, generator: None = None
) -> ir.Value:
    """aten::multinomial(Tensor self, SymInt num_samples, bool replacement=False, *, Generator? generator=None) -> Tensor"""
    dtype = _carrier(op.dtype_of(self))
    weights, dims = op.cast(self, dtype), op.dims(self)
    if not replacement or num_samples == 1:
        # The first arrivals of independent exponential processes with these rates.
        order = op.Div(weights, _exponential_samples(op, dims, dtype))
        return op.multi("TopK", order, op.sizes([num_samples]), axis=-1, outputs=2)[1]
    if not isinstance(num_samples, int):
        raise Unsupported("a symbolic number of samples with replacement")
    bounds = op.CumSum(weights, op.const(-1))
    total = op.Slice(bounds, [-1], [2**63 - 1], [len(dims) - 1])
    samples = op.Mul(_sampled(op, "RandomUniform", [*dims[:-1], num_samples], dtype), total)
    # The first category whose cumulative weight exceeds the sample: never one of weight 0.
    beyond = op.Greater(op.Unsqueeze(bounds, [-2]), op.Unsqueeze(samples, [-1]))
    return op.ArgMax(op.cast(beyond, ir.DataType.INT32), axis=-1, keepdims=0)


# ---- dropout


_SELU_LIMIT = 1.7580993408473766
"""alpha * scale of SELU; alpha dropout replaces dropped elements by its negative, the limit of SELU."""


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
    """Return the shape of one number per channel."""
    return [*op.dims(input)[:2], *[1] * (op.rank_of(input) - 2)]


def _shifted(op: Op, input: ir.Value, p: float, shape: Sequence[Dim]) -> ir.Value:
    """Alpha dropout: dropped elements become SELU's limit; an affine map then restores mean and variance."""
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


# ---- randomized leaky ReLU


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
