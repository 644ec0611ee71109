"""Half-precision operators that are computed in FLOAT, because the target has no kernel for their type.

Each such operator stands between Casts. The FLOAT result is remembered as the unrounded form of the rounded one: a
continuous operator that is computed in FLOAT as well uses it directly, so that a chain of operators has Casts at its ends
only, and rounds once. Operators whose result jumps (comparisons, ArgMax, Floor ...) use the rounded value, as torch does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from .builder_protocol import BuilderProtocol
from .dtypes import HALF_FLOATS

__all__ = ["is_continuous", "is_small_parameter", "unrounded_inputs"]

_MOVES = frozenset(
    ["Concat", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"]
)
"""Operators that move elements: ONNX Runtime has kernels of all types."""

_CONTINUOUS_NAMES = (
    "Abs Add Atan Attention AveragePool BatchNormalization Celu Clip Conv ConvTranspose Cos Cosh CumSum DepthToSpace "
    "Div Einsum Elu Erf Exp Expand Gelu Gemm GlobalAveragePool GlobalMaxPool GroupNormalization HardSigmoid HardSwish "
    "InstanceNormalization LayerNormalization LeakyRelu Log LogSoftmax LpNormalization MatMul Max MaxPool Mean Min "
    "Mish Mul Neg PRelu Pad Pow RMSNormalization Reciprocal ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax ReduceMean "
    "ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Resize RotaryEmbedding Selu Sigmoid Sin Sinh Softmax "
    "Softplus Softsign SpaceToDepth Sqrt Sub Sum Tan Tanh Tile Trilu Where"
)
_CONTINUOUS = _MOVES | frozenset(_CONTINUOUS_NAMES.split())

_MAX_PARAMETER = 2**16
"""Maximum number of elements of a parameter that is stored in FLOAT; matrices are not, for the size of the file."""


def is_continuous(op_type: str) -> bool:
    """Whether a rounding error of an input changes the result by a similar error at most."""
    return op_type in _CONTINUOUS


def unrounded_inputs(
    builder: BuilderProtocol, op_type: str, values: Sequence[ir.Value | None]
) -> list[ir.Value | None] | None:
    """Return the unrounded inputs of an operator that has a half-precision kernel, or None if it needs that kernel.

    An operator that moves elements keeps a value unrounded for the operators after it.
    """
    known = builder.unrounded
    if not known or not any(value in known for value in values):
        return None
    halves = [value for value in values if value is not None and value.dtype in HALF_FLOATS]
    if op_type == "LayerNormalization" and values[0] in known:
        return [None if value is None else builder.widened(value, ir.DataType.FLOAT) for value in values]
    if op_type not in _MOVES or not all(value in known or value.is_initializer() for value in halves):
        return None
    return [
        builder.widened(value, ir.DataType.FLOAT) if value in halves and value is not None else value
        for value in values
    ]


def is_small_parameter(builder: BuilderProtocol, value: ir.Value) -> bool:
    """Whether a value is a parameter per channel, such as a bias: only one of its axes is larger than 1."""
    sizes = builder.dims(value) if value.is_initializer() else ()
    large = [size for size in sizes if size != 1]
    return value.is_initializer() and len(large) <= 1 and math.prod(int(size) for size in large) <= _MAX_PARAMETER
