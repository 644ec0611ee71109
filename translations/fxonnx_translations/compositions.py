"""Operators written with older ones, for the opsets at which they do not exist yet.

Each function has the signature of the ONNX operator it stands for and is written as translations are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

if TYPE_CHECKING:
    from .op import Op

__all__ = ["COMPOSITIONS"]


def gelu(op: Op, x: ir.Value, approximate: str = "none") -> ir.Value:
    """Gelu (opset 20)."""
    if approximate == "tanh":
        cubic = op.Mul(op.Mul(x, x), x)
        inner = op.Mul(op.Add(x, op.Mul(cubic, 0.044715)), 0.7978845608028654)
        return op.Mul(op.Mul(x, 0.5), op.Add(op.Tanh(inner), 1.0))
    # This order of operations is the pattern ONNX Runtime fuses into its own Gelu.
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
    # With Pow, not Mul, this is the pattern ONNX Runtime fuses into its own LayerNormalization. It fuses the casts
    # around it as well, and has no kernel for bfloat16.
    square = op.Mul(centered, centered) if _was_bfloat16(x) else op.Pow(centered, 2.0)
    variance = op.ReduceMean(square, axes, keepdims=1)
    result = op.Div(centered, op.Sqrt(op.Add(variance, epsilon)))
    if scale is not None:
        result = op.Mul(result, scale)
    return result if bias is None else op.Add(result, bias)


def rms_normalization(
    op: Op, x: ir.Value, scale: ir.Value, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> ir.Value:
    """RMSNormalization (opset 23); computed in the type of ``x``."""
    rank = op.rank_of(x)
    axes = list(range(axis % rank, rank))
    # With Pow and Div this is the pattern ONNX Runtime fuses into its own kernel, which is not as precise as DOUBLE.
    square = op.Mul(x, x) if op.dtype_of(x) == ir.DataType.DOUBLE else op.Pow(x, 2.0)
    mean_square = op.ReduceMean(square, axes, keepdims=1)
    return op.Mul(op.Div(x, op.Sqrt(op.Add(mean_square, epsilon))), scale)


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
    # One Shape is less than the sizes one by one.
    result = op.shaped(op.Reshape(normalized, op.Shape(x)), dims) if len(symbolic) > 1 else op.reshape(normalized, dims)
    factors = op.numbers(scale)
    if factors is None or any(factor != 1 for factor in factors):
        result = op.Mul(result, _per_channel(op, scale, len(dims)))
    return result if op.is_zero(bias) else op.Add(result, _per_channel(op, bias, len(dims)))


def _per_channel(op: Op, parameter: ir.Value, rank: int) -> ir.Value:
    """A parameter of as many elements as there are channels in the shape that broadcasts along axis 1."""
    shape = [-1] + [1] * (rank - 2)
    stored = op.derived(parameter, "per_channel", lambda tensor: tensor.reshape(shape), force=True)
    return op.Reshape(parameter, shape) if stored is None else stored


def hard_swish(op: Op, x: ir.Value) -> ir.Value:
    """HardSwish (opset 14)."""
    return op.Mul(x, op.HardSigmoid(x, alpha=1.0 / 6.0, beta=0.5))


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


COMPOSITIONS: Mapping[str, tuple[int, Callable[..., ir.Value]]] = {
    # operator: (opset from which it is emitted as such, the composition before)
    "Gelu": (20, gelu),
    "LayerNormalization": (17, layer_normalization),
    "RMSNormalization": (23, rms_normalization),
    # Opset 18 has a GroupNormalization with one scale per group, which torch's has no use for.
    "GroupNormalization": (21, group_normalization),
    "HardSwish": (14, hard_swish),
    "Mish": (18, mish),
    "LessOrEqual": (12, less_or_equal),
    "GreaterOrEqual": (12, greater_or_equal),
    "Celu": (12, celu),
    "Trilu": (14, trilu),
}
