"""Normalization layers, batch normalization and vector norms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
import torch

from .._builder import dtypes
from .._builder.dtypes import BFLOAT16, DOUBLE, FLOAT, FLOAT16
from .._builder.op import Op, ResultSpec
from .._builder.symbolic_dims import Dim, is_static
from .._opsets.op_polyfills import layer_normalization
from .._registry import OpCall, translates
from .reduction import Axes, amax, amin, reduced

# ---- helpers


def _computed_in(op: Op, op_type: str, dtype: ir.DataType) -> ir.DataType:
    """Return the type to compute in: FLOAT where the target has no BFLOAT16 kernel; torch computes in float as well."""
    return FLOAT if dtype == BFLOAT16 and not op.has_kernel(op_type, dtype) else dtype


def _parameter(op: Op, value: ir.Value | None, default: float, size: Dim, dtype: ir.DataType) -> ir.Value:
    """Return a per-channel parameter in the type of the computation; a constant for an absent one."""
    if value is not None:
        return op.widened(value, dtype)
    return op.const([default] * size, dtype) if isinstance(size, int) else op.expand(op.const([default], dtype), [size])


def _per_channel(op: Op, value: ir.Value, rank: int) -> ir.Value:
    return op.Reshape(value, [1, -1, *[1] * (rank - 2)]) if rank > 1 else value


def _affine(op: Op, value: ir.Value, weight: ir.Value | None, bias: ir.Value | None) -> ir.Value:
    """Multiply by a per-channel weight and add a per-channel bias."""
    rank, dtype = op.rank_of(value), op.dtype_of(value)
    if weight is not None:
        value = op.Mul(value, _per_channel(op, op.cast(weight, dtype), rank))
    return value if bias is None else op.Add(value, _per_channel(op, op.cast(bias, dtype), rank))


def _normalized(op: Op, value: ir.Value, axes: Sequence[int], eps: float) -> ir.Value:
    """Normalize to zero mean and unit (biased) variance over the axes."""
    centered = op.Sub(value, op.ReduceMean(value, list(axes), keepdims=1))
    variance = op.ReduceMean(op.Mul(centered, centered), list(axes), keepdims=1)
    return op.Div(centered, op.Sqrt(op.Add(variance, eps)))


# ---- batch and instance normalization


def _scaled_by_statistics(
    op: Op, value: ir.Value, parameters: Sequence[ir.Value | None], eps: float, dtype: ir.DataType
) -> ir.Value:
    """Normalize with given statistics: weight, bias, mean and variance per channel."""
    channels = op.dims(value)[1]
    defaults = zip(parameters, (1.0, 0.0, 0.0, 1.0), strict=True)
    return op.BatchNormalization(
        value, *(_parameter(op, given, default, channels, dtype) for given, default in defaults), epsilon=eps
    )


def _training_batch_norm(op: Op, value: ir.Value, parameters: Sequence[ir.Value | None], eps: float) -> ir.Value:
    """Normalize with the statistics of the batch, as one BatchNormalization that training tools recognize.

    Its new running statistics are never read: their variance is the biased one, torch's is not.
    """
    channels = op.dims(value)[1]
    defaults = zip(parameters, (1.0, 0.0, 0.0, 1.0), strict=True)
    given = [_parameter(op, parameter, default, channels, FLOAT) for parameter, default in defaults]
    # Before opset 14 the number of outputs selects the training mode.
    is_new = op.opset >= 14
    results = op.multi(
        "BatchNormalization",
        value,
        *given,
        outputs=3 if is_new else 5,
        epsilon=eps,
        # ONNX Runtime updates the running statistics in-place and merges equal initializers: with any other momentum it
        # would change the weight of a new layer, which is all ones like its running variance.
        momentum=1.0,
        training_mode=1 if is_new else None,
    )
    return results[0]


@translates("aten::batch_norm")
def batch_norm(
    op: Op,
    input: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    running_mean: ir.Value | None,
    running_var: ir.Value | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> ir.Value:
    """aten::batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, float momentum, float eps, bool cudnn_enabled) -> Tensor

    With ``training`` the statistics are the batch's.
    """
    dtype = _computed_in(op, "BatchNormalization", op.dtype_of(input))
    value = op.widened(input, dtype)
    if not training:
        result = _scaled_by_statistics(op, value, (weight, bias, running_mean, running_var), eps, dtype)
        return op.rounded(result, op.result.dtype)
    if dtype == FLOAT and op.rank_of(value) > 1:
        parameters = (weight, bias, running_mean, running_var)
        return op.rounded(_training_batch_norm(op, value, parameters, eps), op.result.dtype)
    axes = [axis for axis in range(op.rank_of(value)) if axis != 1]
    return op.rounded(_affine(op, _normalized(op, value, axes, eps), weight, bias), op.result.dtype)


@translates("aten::instance_norm")
def instance_norm(
    op: Op,
    input: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    running_mean: ir.Value | None,
    running_var: ir.Value | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> ir.Value:
    """aten::instance_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool use_input_stats, float momentum, float eps, bool cudnn_enabled) -> Tensor"""
    dtype = _computed_in(op, "InstanceNormalization", op.dtype_of(input))
    value = op.widened(input, dtype)
    channels = op.dims(value)[1]
    if not use_input_stats:
        result = _scaled_by_statistics(op, value, (weight, bias, running_mean, running_var), eps, dtype)
    elif dtype == DOUBLE:
        # ONNX Runtime's InstanceNormalization has no kernel for DOUBLE.
        axes = list(range(2, op.rank_of(value)))
        result = _affine(op, _normalized(op, value, axes, eps), weight, bias)
    else:
        scale, shift = _parameter(op, weight, 1.0, channels, dtype), _parameter(op, bias, 0.0, channels, dtype)
        result = op.InstanceNormalization(value, scale, shift, epsilon=eps)
    return op.rounded(result, op.result.dtype)


# ---- layer, RMS and group normalization


@translates("aten::layer_norm")
def layer_norm(
    op: Op,
    input: ir.Value,
    normalized_shape: Sequence[Dim],
    weight: ir.Value | None = None,
    bias: ir.Value | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> ir.Value:
    """aten::layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1.0000000000000001e-05, bool cudnn_enable=True) -> Tensor"""
    dtype = _computed_in(
        op, "LayerNormalization" if op.opset >= _LAYER_NORM_SINCE else "ReduceMean", op.dtype_of(input)
    )
    value, axis = op.widened(input, dtype), -len(normalized_shape)
    shift = None if bias is None else op.widened(bias, dtype)
    if weight is not None:
        scale = op.widened(weight, dtype)
    elif is_static(normalized_shape):
        scale = op.const(torch.ones([int(size) for size in normalized_shape], dtype=dtypes.to_torch_dtype(dtype)))
    else:
        # LayerNormalization requires a scale; ones of a symbolic size would have to be computed.
        return op.rounded(layer_normalization(op, value, None, shift, axis, eps), op.result.dtype)
    return op.rounded(op.LayerNormalization(value, scale, shift, axis=axis, epsilon=eps), op.result.dtype)


_LAYER_NORM_SINCE = 17


def _require_statistics(call: OpCall) -> str | None:
    """Reject the calls whose mean and deviation LayerNormalization does not return, or returns as float32."""
    if call.opset < _LAYER_NORM_SINCE:
        return f"LayerNormalization is of opset {_LAYER_NORM_SINCE}"
    if call.arguments["input"].dtype == torch.float64:
        return "LayerNormalization returns the statistics in float32"
    return None if is_static(call.arguments["normalized_shape"]) else "a scale of a symbolic size"


@translates("aten::native_layer_norm", accepts=_require_statistics)
def native_layer_norm(
    op: Op,
    input: ir.Value,
    normalized_shape: Sequence[Dim],
    weight: ir.Value | None,
    bias: ir.Value | None,
    eps: float,
) -> list[ir.Value]:
    """aten::native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)"""
    scale, shift = (None if part is None else op.cast(part, FLOAT) for part in (weight, bias))
    if scale is None:
        scale = op.const(torch.ones([int(size) for size in normalized_shape]))
    value, axis = op.cast(input, FLOAT), -len(normalized_shape)
    made = op.multi("LayerNormalization", value, scale, shift, outputs=3, axis=axis, epsilon=eps)
    for statistic, result in zip(made[1:], op.results[1:], strict=True):
        statistic.type = ir.TensorType(FLOAT)
        op.shaped(statistic, result.shape)
    return _fitted(op, list(made))


@translates("aten::rms_norm")
def rms_norm(
    op: Op,
    input: ir.Value,
    normalized_shape: Sequence[Dim],
    weight: ir.Value | None = None,
    eps: float | None = None,
) -> ir.Value:
    """aten::rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor"""
    # torch squares 16-bit types in float, and uses float's epsilon for them.
    is_double = op.dtype_of(input) == DOUBLE
    epsilon = torch.finfo(torch.float64 if is_double else torch.float32).eps if eps is None else eps
    dtype = _computed_in(op, "RMSNormalization", op.dtype_of(input))
    scale = _ones(op, normalized_shape, dtype) if weight is None else op.widened(weight, dtype)
    # stash_type is the type of intermediate results, by default FLOAT.
    stash = int(DOUBLE) if is_double else None
    result = op.RMSNormalization(
        op.widened(input, dtype), scale, axis=-len(normalized_shape), epsilon=epsilon, stash_type=stash
    )
    return op.rounded(result, op.result.dtype)


def _ones(op: Op, shape: Sequence[Dim], dtype: ir.DataType) -> ir.Value:
    """The scale of a norm without a weight."""
    # ONNX Runtime's CUDA kernel reads a scale of one element as if it had all. Identity elimination drops one element
    # from the operators that replace RMSNormalization before opset 23.
    if op.opset < 23:
        return op.const([1.0], dtype)
    if all(isinstance(size, int) for size in shape):
        return op.const(torch.ones([int(size) for size in shape]), dtype)
    return op.expand(op.const(1.0, dtype), tuple(shape))


@translates("aten::group_norm")
def group_norm(
    op: Op,
    input: ir.Value,
    num_groups: int,
    weight: ir.Value | None = None,
    bias: ir.Value | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> ir.Value:
    """aten::group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1.0000000000000001e-05, bool cudnn_enabled=True) -> Tensor"""
    dtype = _computed_in(op, "GroupNormalization", op.dtype_of(input))
    value, channels = op.widened(input, dtype), op.dims(input)[1]
    result = op.GroupNormalization(
        value,
        _parameter(op, weight, 1.0, channels, dtype),
        _parameter(op, bias, 0.0, channels, dtype),
        num_groups=num_groups,
        epsilon=eps,
        stash_type=int(DOUBLE) if dtype == DOUBLE else None,
    )
    return op.rounded(result, op.result.dtype)


@translates("aten::native_group_norm")
def native_group_norm(
    op: Op,
    input: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    N: Dim,
    C: Dim,
    HxW: Dim,
    group: int,
    eps: float,
) -> list[ir.Value]:
    """aten::native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, float eps) -> (Tensor, Tensor, Tensor)"""
    normalized = group_norm(op, input, group, weight, bias, eps)
    dtype = DOUBLE if op.dtype_of(input) == DOUBLE else FLOAT
    grouped = op.Reshape(op.cast(input, dtype), [0, group, -1])
    mean = op.ReduceMean(grouped, [2], keepdims=1)
    centered = op.Sub(grouped, mean)
    variance = op.ReduceMean(op.Mul(centered, centered), [2], keepdims=0)
    deviation = op.Reciprocal(op.Sqrt(op.Add(variance, eps)))
    return _fitted(op, [normalized, op.Squeeze(mean, [2]), deviation])


# ---- vector norms


def _reject_complex(call: OpCall) -> str | None:
    """Reject complex tensors: torch's decomposition takes the norm of their magnitudes."""
    return "the norm of complex numbers" if call.arguments["self"].is_complex() else None


@translates("aten::linalg_vector_norm", accepts=_reject_complex, exact="NaN propagates through infinity norms")
def linalg_vector_norm(
    op: Op,
    self: ir.Value,
    ord: float = 2,
    dim: Axes = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> ir.Value:
    """aten::linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""
    result = op.result.dtype
    # ONNX Runtime's reductions have kernels for 32 and 64-bit floats.
    wide = FLOAT if result in (FLOAT16, BFLOAT16) else result
    value = op.cast(self, wide)
    if op.rank_of(value) == 0 and ord != 0:
        return op.cast(op.Abs(value), result)
    if ord == 2:
        norm = reduced(op, "ReduceL2", value, dim, keepdim)
    elif ord == 1:
        norm = reduced(op, "ReduceL1", value, dim, keepdim)
    elif math.isinf(ord):
        axes = [] if dim is None else [dim] if isinstance(dim, int) else dim
        norm = (amax if ord > 0 else amin)(op, op.Abs(value), axes, keepdim)
    elif ord == 0:
        norm = reduced(op, "ReduceSum", op.cast(op.cast(value, ir.DataType.BOOL), wide), dim, keepdim)
    else:
        # An exponent may have any type, so that a number would be FLOAT.
        power = op.Pow(op.Abs(value), op.const(float(ord), wide))
        norm = op.Pow(reduced(op, "ReduceSum", power, dim, keepdim), op.const(1.0 / float(ord), wide))
    return op.cast(norm, result)


@translates(
    "aten::norm.Scalar",
    "aten::norm.ScalarOpt_dim",
    "aten::norm.ScalarOpt_dtype",
    "aten::norm.ScalarOpt_dim_dtype",
    accepts=_reject_complex,
    exact="NaN propagates through infinity norms",
)
def norm(
    op: Op,
    self: ir.Value,
    p: float | None = 2,
    dim: Axes = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> ir.Value:
    """aten::norm.Scalar(Tensor self, Scalar p=2) -> Tensor
    aten::norm.ScalarOpt_dim(Tensor self, Scalar? p, int[1] dim, bool keepdim=False) -> Tensor
    aten::norm.ScalarOpt_dtype(Tensor self, Scalar? p, *, ScalarType dtype) -> Tensor
    aten::norm.ScalarOpt_dim_dtype(Tensor self, Scalar? p, int[1] dim, bool keepdim, *, ScalarType dtype) -> Tensor
    """
    return linalg_vector_norm(op, self, 2 if p is None else p, dim, keepdim, dtype)


# ---- batch normalization with its statistics as results


def _empty(op: Op, result: ResultSpec) -> ir.Value:
    return op.const(torch.empty(0, dtype=result.torch_dtype))


def _fitted(op: Op, values: list[ir.Value]) -> list[ir.Value]:
    """Cast values to the types of the FX node's results; results without a value are empty tensors."""
    found = [op.cast(value, result.dtype) for value, result in zip(values, op.results, strict=False)]
    return [*found, *(_empty(op, result) for result in op.results[len(found) :])]


def _with_batch_statistics(
    op: Op, input: ir.Value, weight: ir.Value | None, bias: ir.Value | None, momentum: float, eps: float
) -> tuple[list[ir.Value], list[ir.Value]]:
    """The normalized input, mean and reciprocal deviation of the batch, and the terms of the running statistics."""
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
    # The reserve is for the backward pass on GPUs.
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
