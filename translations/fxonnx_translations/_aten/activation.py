"""Activation functions, softmax and clamp."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch

from .._builder.dtypes import DOUBLE, FLOAT, HALF_FLOATS, from_torch, held
from .._builder.numerics import exp_minus_one, in_float
from .._builder.op import Op, Operand
from .._builder.symbolic_dims import Dim
from .._registry import OpCall, translates

_FloatOrDim = float | Dim
"""A parameter: a number, or the value of a tensor (``k.item()``), which no attribute can hold."""


def _is_constant(*parameters: _FloatOrDim) -> bool:
    return all(isinstance(one, int | float) for one in parameters)


def _as_float(parameter: _FloatOrDim) -> _FloatOrDim:
    return float(parameter) if isinstance(parameter, int) else parameter


# ---- activation functions


@translates("aten::relu")
def relu(op: Op, self: ir.Value) -> ir.Value:
    """aten::relu(Tensor self) -> Tensor"""
    if op.is_float(self):
        return op.Relu(self)
    # Relu does not accept integers before opset 14, and ONNX Runtime has kernels for only two integer types.
    return op.Clip(self, op.const(0, op.dtype_of(self)))


@translates("aten::relu6")
def relu6(op: Op, self: ir.Value) -> ir.Value:
    """aten::relu6(Tensor self) -> Tensor"""
    return op.Clip(self, 0, 6)


@translates("aten::hardtanh")
def hardtanh(op: Op, self: ir.Value, min_val: Operand = -1, max_val: Operand = 1) -> ir.Value:
    """aten::hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor"""
    dtype = op.dtype_of(self)
    return op.Clip(self, op.operand(min_val, dtype), op.operand(max_val, dtype))


@translates("aten::gelu")
def gelu(op: Op, self: ir.Value, approximate: str = "none") -> ir.Value:
    """aten::gelu(Tensor self, *, str approximate="none") -> Tensor"""
    return op.Gelu(self) if approximate == "none" else op.Gelu(self, approximate=approximate)


@translates("aten::silu")
def silu(op: Op, self: ir.Value) -> ir.Value:
    """aten::silu(Tensor self) -> Tensor"""
    # Not Swish (opset 24): ONNX Runtime 1.31 fuses these two into one kernel, and its Swish takes 1.7 times as long.
    return op.Mul(self, op.Sigmoid(self))


@translates("aten::mish")
def mish(op: Op, self: ir.Value) -> ir.Value:
    """aten::mish(Tensor self) -> Tensor"""
    return op.Mish(self)


@translates("aten::hardsigmoid")
def hardsigmoid(op: Op, self: ir.Value) -> ir.Value:
    """aten::hardsigmoid(Tensor self) -> Tensor"""
    # beta is 0.5 by default. OpenCV 5.0 takes a product with any tensor for a HardSwish if beta is written.
    return op.HardSigmoid(self, alpha=1.0 / 6.0)


@translates("aten::hardswish")
def hardswish(op: Op, self: ir.Value) -> ir.Value:
    """aten::hardswish(Tensor self) -> Tensor"""
    return op.HardSwish(self)


@translates("aten::leaky_relu")
def leaky_relu(op: Op, self: ir.Value, negative_slope: _FloatOrDim = 0.01) -> ir.Value:
    """aten::leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor"""

    def formula(op: Op, x: ir.Value) -> ir.Value:
        dtype = op.dtype_of(x)
        scaled = op.Mul(x, op.operand(negative_slope, dtype))
        return op.Where(op.Greater(x, op.const(0.0, dtype)), x, scaled)

    if not _is_constant(negative_slope):
        return in_float(op, formula, self)
    slope = float(negative_slope)
    if not op.holds(slope, op.result.dtype):
        return in_float(op, lambda op, x: op.LeakyRelu(x, alpha=slope), self)
    return op.LeakyRelu(self, alpha=slope)


@translates("aten::elu")
def elu(
    op: Op, self: ir.Value, alpha: _FloatOrDim = 1, scale: _FloatOrDim = 1, input_scale: _FloatOrDim = 1
) -> ir.Value:
    """aten::elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor"""

    def plain(op: Op, x: ir.Value) -> ir.Value:
        return op.Mul(op.Elu(x, alpha=float(alpha)), float(scale))

    if input_scale == 1 and _is_constant(alpha, scale):
        is_held = op.holds(alpha, op.result.dtype) and op.holds(scale, op.result.dtype)
        return plain(op, self) if is_held else in_float(op, plain, self)

    def formula(op: Op, x: ir.Value) -> ir.Value:
        dtype = op.dtype_of(x)
        # Only the negative side is scaled before the exponential.
        power = exp_minus_one(op, op.Mul(x, op.operand(_as_float(input_scale), dtype)))
        negative = op.Mul(power, op.operand(_as_float(alpha), dtype))
        chosen = op.Where(op.Greater(x, op.const(0.0, dtype)), x, negative)
        return op.Mul(chosen, op.operand(_as_float(scale), dtype))

    return in_float(op, formula, self)


_SELU = {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}


@translates("aten::selu")
def selu(op: Op, self: ir.Value) -> ir.Value:
    """aten::selu(Tensor self) -> Tensor"""
    return in_float(op, lambda op, x: op.Selu(x, **_SELU), self)


_MAX_CELU_ALPHA = 16.0
"""ONNX Runtime's Celu subtracts 1 from an exponential: the rounding error is a multiple of alpha."""


@translates("aten::celu")
def celu(op: Op, self: ir.Value, alpha: _FloatOrDim = 1.0) -> ir.Value:
    """aten::celu(Tensor self, Scalar alpha=1.) -> Tensor"""

    def formula(op: Op, x: ir.Value) -> ir.Value:
        dtype = op.dtype_of(x)
        zero, factor = op.const(0.0, dtype), op.operand(_as_float(alpha), dtype)
        negative = op.Mul(exp_minus_one(op, op.Div(op.Min(x, zero), factor)), factor)
        return op.Where(op.Greater(x, zero), x, negative)

    if not _is_constant(alpha) or abs(alpha) > _MAX_CELU_ALPHA:
        return in_float(op, formula, self)
    return in_float(op, lambda op, x: op.Celu(x, alpha=float(alpha)), self)


_LINEAR_SOFTPLUS = 18
"""log(1 + exp(x)) - x is less than half a unit in the last place of float32 above it."""


@translates("aten::softplus")
def softplus(op: Op, self: ir.Value, beta: _FloatOrDim = 1, threshold: _FloatOrDim = 20) -> ir.Value:
    """aten::softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor"""
    dtype = op.result.dtype
    if not _is_constant(beta, threshold):
        return in_float(op, lambda op, x: _softplus(op, x, beta, threshold), self)
    # The result jumps at the threshold, which torch does not round.
    is_half = dtype in HALF_FLOATS and not (op.holds(beta, dtype) and held(threshold, dtype) == threshold)
    x = op.cast(self, FLOAT) if is_half else self
    scaled = op.Mul(x, float(beta))
    smooth = op.Div(op.Softplus(scaled), float(beta))
    if 0 < beta <= 1 and threshold >= _LINEAR_SOFTPLUS and dtype != DOUBLE:
        # Above it Softplus is the identity in these types, and the product does not overflow.
        return op.cast(smooth, dtype)
    return op.cast(op.Where(op.Greater(scaled, float(threshold)), x, smooth), dtype)


def _softplus(op: Op, x: ir.Value, beta: _FloatOrDim, threshold: _FloatOrDim) -> ir.Value:
    dtype = op.dtype_of(x)
    factor = op.operand(_as_float(beta), dtype)
    scaled = op.Mul(x, factor)
    is_linear = op.Greater(scaled, op.operand(_as_float(threshold), dtype))
    return op.Where(is_linear, x, op.Div(op.Softplus(scaled), factor))


def _rounded_limit(call: OpCall) -> str | None:
    dtype, limit = call.arguments["self"].dtype, call.arguments["lambd"]
    if dtype in (torch.float16, torch.bfloat16) and held(limit, from_torch(dtype)) != limit:
        return None
    return "torch's decomposition is right where the type holds the limit"


@translates("aten::softshrink", accepts=_rounded_limit)
def softshrink(op: Op, self: ir.Value, lambd: float = 0.5) -> ir.Value:
    """aten::softshrink(Tensor self, Scalar lambd=0.5) -> Tensor"""

    def formula(op: Op, x: ir.Value) -> ir.Value:
        low, high = op.const(-float(lambd)), op.const(float(lambd))
        below = op.Where(op.Less(x, low), op.Add(x, high), op.Mul(x, op.const(0.0)))
        return op.Where(op.Greater(x, high), op.Sub(x, high), below)

    return in_float(op, formula, self)


@translates("aten::log_sigmoid")
def log_sigmoid(op: Op, self: ir.Value) -> ir.Value:
    """aten::log_sigmoid(Tensor self) -> Tensor"""
    # log(sigmoid(x)) would be -inf for x < -88, where log_sigmoid(x) is x.
    smooth = op.Softplus(op.Neg(self))
    # torch's zero of large numbers is positive.
    return op.Sub(op.const(0.0, op.dtype_of(self)), smooth) if op.exact_numerics else op.Neg(smooth)


@translates("aten::prelu")
def prelu(op: Op, self: ir.Value, weight: ir.Value) -> ir.Value:
    """aten::prelu(Tensor self, Tensor weight) -> Tensor"""
    rank = op.rank_of(self)
    if rank > 2 and op.dims(weight) != (1,):
        # One slope per channel, and channels are axis 1.
        weight = op.Reshape(weight, [-1] + [1] * (rank - 2))
    elif rank == 0:
        weight = op.Reshape(weight, [])
    return op.PRelu(self, weight)


@translates("aten::glu")
def glu(op: Op, self: ir.Value, dim: int = -1) -> ir.Value:
    """aten::glu(Tensor self, int dim=-1) -> Tensor"""
    axis = dim % op.rank_of(self)
    value, gate = (
        op.shaped(half, op.result.shape) for half in op.multi("Split", self, axis=axis, num_outputs=2, outputs=2)
    )
    return in_float(op, _gated, value, gate)


def _gated(op: Op, value: ir.Value, gate: ir.Value) -> ir.Value:
    return op.Mul(value, op.Sigmoid(gate))


# ---- softmax


def _exponential(op: Op, operator: str, self: ir.Value, dim: int) -> ir.Value:
    value = op.cast(self, op.result.dtype)
    if op.rank_of(self) == 0:
        row = getattr(op, operator)(op.Unsqueeze(value, [0]), axis=0)
        return op.Squeeze(row, [0])
    normalized: ir.Value = getattr(op, operator)(value, axis=dim % op.rank_of(self))
    return normalized


@translates("aten::softmax.int")
def softmax(op: Op, self: ir.Value, dim: int, dtype: torch.dtype | None = None) -> ir.Value:
    """aten::softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor"""
    return _exponential(op, "Softmax", self, dim)


@translates("aten::_softmax")
def safe_softmax(op: Op, self: ir.Value, dim: int, half_to_float: bool) -> ir.Value:
    """aten::_softmax(Tensor self, int dim, bool half_to_float) -> Tensor"""
    return _exponential(op, "Softmax", self, dim)


@translates("aten::log_softmax.int")
def log_softmax(op: Op, self: ir.Value, dim: int, dtype: torch.dtype | None = None) -> ir.Value:
    """aten::log_softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor"""
    return _exponential(op, "LogSoftmax", self, dim)


@translates("aten::_log_softmax")
def unsafe_log_softmax(op: Op, self: ir.Value, dim: int, half_to_float: bool) -> ir.Value:
    """aten::_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor"""
    return _exponential(op, "LogSoftmax", self, dim)


# ---- clamp


def bound(op: Op, value: Operand | None, dtype: ir.DataType) -> ir.Value | None:
    """Return an optional limit of clamp in the element type of the clamped tensor."""
    return None if value is None else op.operand(value, dtype)


@translates("aten::clamp", "aten::clamp.Tensor")
def clamp(op: Op, self: ir.Value, min: Operand | None = None, max: Operand | None = None) -> ir.Value:
    """aten::clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor
    aten::clamp.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor
    """
    dtype = op.result.dtype
    value, low, high = op.cast(self, dtype), bound(op, min, dtype), bound(op, max, dtype)
    if op.exact_zeros and op.is_float(value):
        # A zero keeps its sign beside a limit of zero; ONNX Runtime's Max and Min choose either.
        value = value if low is None else op.selected(op.Less(value, low), low, value)
        return value if high is None else op.selected(op.Greater(value, high), high, value)
    # Clip ignores a limit that is NaN, and clips infinities to the largest finite number if a limit is absent.
    if low is not None and high is not None and _is_number(min) and _is_number(max):
        return op.Clip(value, low, high)
    if low is not None:
        value = op.Max(value, low)
    return value if high is None else op.Min(value, high)


def _is_number(limit: Operand | None) -> bool:
    return isinstance(limit, (int, float)) and not math.isnan(limit)


@translates("aten::clamp_min", "aten::clamp_min.Tensor")
def clamp_min(op: Op, self: ir.Value, min: Operand) -> ir.Value:
    """aten::clamp_min(Tensor self, Scalar min) -> Tensor
    aten::clamp_min.Tensor(Tensor self, Tensor min) -> Tensor
    """
    return clamp(op, self, min, None)


@translates("aten::clamp_max", "aten::clamp_max.Tensor")
def clamp_max(op: Op, self: ir.Value, max: Operand) -> ir.Value:
    """aten::clamp_max(Tensor self, Scalar max) -> Tensor
    aten::clamp_max.Tensor(Tensor self, Tensor max) -> Tensor
    """
    return clamp(op, self, None, max)
