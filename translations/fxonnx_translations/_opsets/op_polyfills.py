"""Polyfills: decompositions of operators for the opsets that do not have them yet.

Each function has the signature of its ONNX operator and emits with ``op``, as translations do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir
import torch

from .._builder.dtypes import FLOAT, HALF_FLOATS, to_torch_dtype
from .._builder.op import Op
from .opset_forms import FormError

__all__ = ["POLYFILLS"]


def gelu(op: Op, x: ir.Value, approximate: str = "none") -> ir.Value:
    """Gelu (opset 20)."""
    if approximate == "tanh":
        cubic = op.Mul(op.Mul(x, x), x)
        inner = op.Mul(op.Add(x, op.Mul(cubic, 0.044715)), 0.7978845608028654)
        return op.Mul(op.Mul(x, 0.5), op.Add(op.Tanh(inner), 1.0))
    # This order of operations is the pattern that ONNX Runtime fuses into Gelu.
    erf = op.Erf(op.Div(x, 1.4142135623730951))
    return op.Mul(op.Mul(x, op.Add(erf, 1.0)), 0.5)


def _was_bfloat16(x: ir.Value) -> bool:
    node = x.producer()
    source = None if node is None or node.op_type != "Cast" else node.inputs[0]
    return source is not None and source.dtype == ir.DataType.BFLOAT16


def layer_normalization(
    op: Op,
    x: ir.Value,
    scale: ir.Value | None = None,
    bias: ir.Value | None = None,
    axis: int = -1,
    epsilon: float = 1e-5,
) -> ir.Value:
    """LayerNormalization (opset 17), first output only."""
    rank = op.rank_of(x)
    axes = list(range(axis % rank, rank))
    centered = op.Sub(x, op.ReduceMean(x, axes, keepdims=1))
    # With Pow, not Mul, this is the pattern that ONNX Runtime fuses into LayerNormalization. It includes adjacent
    # casts in the fusion, and has no kernel for bfloat16.
    square = op.Mul(centered, centered) if _was_bfloat16(x) else op.Pow(centered, 2.0)
    variance = op.ReduceMean(square, axes, keepdims=1)
    result = op.Div(centered, op.Sqrt(op.Add(variance, epsilon)))
    if scale is not None:
        result = op.Mul(result, scale)
    return result if bias is None else op.Add(result, bias)


def rms_normalization(
    op: Op, x: ir.Value, scale: ir.Value, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> ir.Value:
    """RMSNormalization (opset 23); half-precision types are normalized in FLOAT."""
    rank, dtype = op.rank_of(x), op.dtype_of(x)
    axes = list(range(axis % rank, rank))
    if dtype in HALF_FLOATS:
        x = op.cast(x, FLOAT)
    # With Pow and Div ONNX Runtime fuses this into its own kernel, which lacks the precision of DOUBLE.
    square = op.Mul(x, x) if op.dtype_of(x) == ir.DataType.DOUBLE else op.Pow(x, 2.0)
    mean_square = op.ReduceMean(square, axes, keepdims=1)
    return op.Mul(op.cast(op.Div(x, op.Sqrt(op.Add(mean_square, epsilon))), dtype), scale)


def group_normalization(
    op: Op,
    x: ir.Value,
    scale: ir.Value,
    bias: ir.Value,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> ir.Value:
    """GroupNormalization with per-channel scale (opset 21), by InstanceNormalization over the groups."""
    dims, dtype = op.dims(x), op.dtype_of(x)
    grouped = op.Reshape(x, [0, num_groups, -1])
    if dtype == ir.DataType.DOUBLE:
        # ONNX Runtime's InstanceNormalization has no kernel for DOUBLE.
        normalized = layer_normalization(op, grouped, None, None, -1, epsilon)
    else:
        ones, zeros = op.const([1.0] * num_groups, dtype), op.const([0.0] * num_groups, dtype)
        normalized = op.InstanceNormalization(grouped, ones, zeros, epsilon=epsilon)
    symbolic = [dim for dim in dims[1:] if not isinstance(dim, int)]
    # One Shape takes fewer nodes than the sizes one by one.
    result = op.shaped(op.Reshape(normalized, op.Shape(x)), dims) if len(symbolic) > 1 else op.reshape(normalized, dims)
    factors = op.numbers(scale)
    if factors is None or any(factor != 1 for factor in factors):
        result = op.Mul(result, _per_channel(op, scale, len(dims)))
    return result if op.is_zero(bias) else op.Add(result, _per_channel(op, bias, len(dims)))


def _per_channel(op: Op, parameter: ir.Value, rank: int) -> ir.Value:
    """Reshape a per-channel parameter so that it broadcasts along axis 1."""
    shape = [-1] + [1] * (rank - 2)
    stored = op.derived(parameter, "per_channel", lambda tensor: tensor.reshape(shape), force=True)
    return op.Reshape(parameter, shape) if stored is None else stored


def hard_swish(op: Op, x: ir.Value) -> ir.Value:
    """HardSwish (opset 14)."""
    return op.Mul(x, op.HardSigmoid(x, alpha=1.0 / 6.0))


def mish(op: Op, x: ir.Value) -> ir.Value:
    """Mish (opset 18)."""
    return op.Mul(x, op.Tanh(op.Softplus(x)))


def less_or_equal(op: Op, a: ir.Value, b: ir.Value) -> ir.Value:
    """LessOrEqual (opset 12); not ``Not(Greater)``, which would be true for NaN."""
    return op.Or(op.Less(a, b), op.Equal(a, b))


def greater_or_equal(op: Op, a: ir.Value, b: ir.Value) -> ir.Value:
    """GreaterOrEqual (opset 12)."""
    return op.Or(op.Greater(a, b), op.Equal(a, b))


def celu(op: Op, x: ir.Value, alpha: float = 1.0) -> ir.Value:
    """Celu (opset 12)."""
    return op.Mul(op.Elu(op.Div(x, alpha), alpha=1.0), alpha)


def trilu(op: Op, x: ir.Value, k: Any = 0, upper: int = 1) -> ir.Value:
    """Trilu (opset 14)."""
    *_, rows, columns = op.dims(x)
    row = op.Unsqueeze(op.Range(0, op.scalar(rows), 1), [1])
    column = op.Unsqueeze(op.Range(0, op.scalar(columns), 1), [0])
    diagonal = op.Add(row, k)
    keep = op.Not(op.Less(column, diagonal)) if upper else op.Not(op.Greater(column, diagonal))
    return op.Where(keep, x, op.const(0, op.dtype_of(x)))


def integer_range(op: Op, start: ir.Value | int, limit: ir.Value | int, delta: ir.Value | int) -> ir.Value:
    """Range (opset 11) of integers with step 1, as the NonZero positions of ones."""
    steps = [delta] if isinstance(delta, int) else op.numbers(delta)
    typed = [value for value in (start, limit) if isinstance(value, ir.Value)]
    dtype = op.dtype_of(typed[0]) if typed else ir.DataType.INT64
    if steps != [1] or dtype not in (ir.DataType.INT64, ir.DataType.INT32):
        raise FormError("only a Range of integers with step 1 has a polyfill")
    is_from_zero = start == 0 or (isinstance(start, ir.Value) and op.is_zero(start))
    first, last = (op.operand(value, ir.DataType.INT64) for value in (start, limit))
    count = op.Reshape(last if is_from_zero else op.Sub(last, first), [1])
    ones = op.ConstantOfShape(count, value=ir.tensor([1], dtype=ir.DataType.INT64))
    positions = op.Reshape(op.NonZero(ones), [-1])
    node = last.producer()
    source = None if node is None or not is_from_zero else node.inputs[0]
    size = None if source is None else op.builder.size_expr(source)
    if size is not None:
        op.shaped(positions, [size])
    return op.cast(positions if is_from_zero else op.Add(positions, first), dtype)


def constant_of_shape(op: Op, shape: ir.Value, value: ir.TensorProtocol | None = None) -> ir.Value:
    """ConstantOfShape (opset 9)."""
    return op.Expand(op.const(0.0) if value is None else op.const(value), shape)


def expand(op: Op, x: ir.Value, shape: Any) -> ir.Value:
    """Expand (opset 8) to static sizes."""
    wanted = shape if isinstance(shape, list) else op.numbers(shape)
    dims = op.dims(x)
    if wanted is None or not all(isinstance(dim, int) for dim in dims):
        raise FormError("only an Expand to static sizes has a polyfill")
    rank = max(len(wanted), len(dims))
    own, target = ([1] * (rank - len(each)) + [int(dim) for dim in each] for each in (dims, wanted))
    repeats = [size if dim == 1 else 1 for dim, size in zip(own, target, strict=True)]
    return op.Tile(op.Reshape(x, own), repeats)


def is_nan(op: Op, x: ir.Value) -> ir.Value:
    """IsNaN (opset 9): neither greater than 0 nor less than 1."""
    zero, one = op.const(0, op.dtype_of(x)), op.const(1, op.dtype_of(x))
    return op.Not(op.Or(op.Greater(x, zero), op.Less(x, one)))


def is_inf(op: Op, x: ir.Value, detect_negative: int = 1, detect_positive: int = 1) -> ir.Value:
    """IsInf (opset 10): greater than the largest finite number, or less than the smallest."""
    dtype = op.dtype_of(x)
    largest = float(torch.finfo(to_torch_dtype(dtype)).max)
    found = []
    if detect_positive:
        found.append(op.Greater(x, op.const(largest, dtype)))
    if detect_negative:
        found.append(op.Less(x, op.const(-largest, dtype)))
    return functools.reduce(op.Or, found)


def sign(op: Op, x: ir.Value) -> ir.Value:
    """Sign (opset 9)."""
    dtype = op.dtype_of(x)
    zero = op.const(0, dtype)
    return op.Sub(op.cast(op.Greater(x, zero), dtype), op.cast(op.Less(x, zero), dtype))


POLYFILLS: Mapping[str, tuple[int, Callable[..., ir.Value]]] = {
    # operator: (opset from which it is emitted, decomposition for the opsets before)
    "Gelu": (20, gelu),
    "LayerNormalization": (17, layer_normalization),
    "RMSNormalization": (23, rms_normalization),
    # GroupNormalization of opset 18 has one scale per group, torch's has one per channel.
    "GroupNormalization": (21, group_normalization),
    "HardSwish": (14, hard_swish),
    "Mish": (18, mish),
    "LessOrEqual": (12, less_or_equal),
    "GreaterOrEqual": (12, greater_or_equal),
    "Celu": (12, celu),
    "Trilu": (14, trilu),
    "Range": (11, integer_range),
    "IsInf": (10, is_inf),
    "IsNaN": (9, is_nan),
    "Sign": (9, sign),
    "ConstantOfShape": (9, constant_of_shape),
    "Expand": (8, expand),
}
