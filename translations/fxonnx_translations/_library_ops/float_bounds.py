"""Bounds of float tensors, to prove that quantized integers stay within limits that are narrower than their type."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from .._builder.op import Op

__all__ = ["is_within"]

_MOVES = frozenset(
    {"MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Gather", "Identity"}
)
_UNIT = frozenset({"Sigmoid", "HardSigmoid", "Softmax"})


def is_within(op: Op, x: ir.Value, scale: ir.Value, zero_point: ir.Value, limits: tuple[float, float]) -> bool:
    """Whether QuantizeLinear of a value gives integers within limits, before it saturates at its type's.

    Args:
        op: The op object.
        x: FLOAT.
        scale: The scale; the answer is only known for one number.
        zero_point: The zero point; as ``scale``.
        limits: The smallest and the largest integer; an infinite one holds.
    """
    scales, zeros = op.numbers(scale), op.numbers(zero_point)
    if scales is None or zeros is None or len(scales) != 1 or len(zeros) != 1 or scales[0] <= 0:
        return False
    # Division and rounding are monotonic: the bounds of the quotients are the quotients of the bounds.
    least, most = (float(np.round(np.float32(bound) / np.float32(scales[0]))) + zeros[0] for bound in _bounds(op, x))
    return limits[0] <= least and most <= limits[1]


def _bounds(op: Op, value: ir.Value | None) -> tuple[float, float]:
    """The lower and upper bound of a float tensor."""
    node = None if value is None else value.producer()
    if node is None or node.domain:
        return -math.inf, math.inf
    if node.op_type in _MOVES:
        return _bounds(op, node.inputs[0])
    if node.op_type in _UNIT:
        return 0.0, 1.0
    if node.op_type == "Tanh":
        return -1.0, 1.0
    if node.op_type == "Relu":
        low, high = _bounds(op, node.inputs[0])
        return max(low, 0.0), max(high, 0.0)
    if node.op_type == "Clip":
        return _clipped(op, node)
    if node.op_type == "DequantizeLinear":
        return _dequantized(op, node)
    return -math.inf, math.inf


def _clipped(op: Op, node: ir.Node) -> tuple[float, float]:
    low, high = _bounds(op, node.inputs[0])
    limits = [None if value is None else op.numbers(value) for value in (*node.inputs[1:], None, None)[:2]]
    least, most = limits
    if most:
        low, high = min(low, most[0]), min(high, most[0])
    if least and not most:
        low, high = max(low, least[0]), max(high, least[0])
    elif least and most:
        # With crossed limits, the upper one wins.
        low, high = min(max(low, least[0]), most[0]), min(max(high, least[0]), most[0])
    return low, high


def _dequantized(op: Op, node: ir.Node) -> tuple[float, float]:
    integers = node.inputs[0]
    while integers is not None and (source := integers.producer()) is not None and source.op_type in _MOVES:
        integers = source.inputs[0]
    clip = None if integers is None else integers.producer()
    scale, zero_point = (*node.inputs[1:], None)[:2]
    if clip is None or clip.op_type != "Clip" or scale is None:
        return -math.inf, math.inf
    low, high = _clipped(op, clip)
    scales, zeros = op.numbers(scale), [0] if zero_point is None else op.numbers(zero_point)
    if scales is None or zeros is None or len(scales) != 1 or len(zeros) != 1:
        return -math.inf, math.inf
    # In the order of ONNX Runtime, in float32.
    low, high = (float(np.float32(bound - zeros[0]) * np.float32(scales[0])) for bound in (low, high))
    return low, high
