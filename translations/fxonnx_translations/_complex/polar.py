"""Magnitude and angle of a pair of parts, in their element type."""

from __future__ import annotations

import onnx_ir as ir

from .._aten.elementwise import atan2, hypot
from .._builder.dtypes import to_torch_dtype
from .._builder.op import Op
from .parts import Pair

__all__ = ["angle_of", "magnitude_of"]


def magnitude_of(op: Op, value: Pair) -> ir.Value:
    """Return |z|, without overflow of the squares."""
    return hypot(op.for_parts(to_torch_dtype(op.dtype_of(value[0]))), *value)


def angle_of(op: Op, value: Pair) -> ir.Value:
    """Return the angle in (-pi, pi]."""
    real, imaginary = value
    dtype = op.dtype_of(real)
    if dtype != ir.DataType.DOUBLE:
        return atan2(op.for_parts(to_torch_dtype(dtype)), imaginary, real)
    # ONNX Runtime has no Atan for DOUBLE: one Newton step from the angle in FLOAT gives full precision.
    largest = op.Max(op.Abs(real), op.Abs(imaginary))
    usable = op.And(op.Greater(largest, op.const(0.0, dtype)), op.Not(op.IsInf(largest)))
    scale = op.Where(usable, largest, op.const(1.0, dtype))
    x, y = op.Div(real, scale), op.Div(imaginary, scale)
    narrow = op.for_parts(to_torch_dtype(ir.DataType.FLOAT))
    guess = op.cast(atan2(narrow, op.cast(y, ir.DataType.FLOAT), op.cast(x, ir.DataType.FLOAT)), dtype)
    sine, cosine = op.Sin(guess), op.Cos(guess)
    across = op.Sub(op.Mul(y, cosine), op.Mul(x, sine))
    along = op.Add(op.Mul(x, cosine), op.Mul(y, sine))
    step = op.Where(usable, op.Div(across, op.Where(usable, along, scale)), op.const(0.0, dtype))
    # Angles below the smallest FLOAT are lost in the initial value, not in the step.
    return op.Add(guess, step)
