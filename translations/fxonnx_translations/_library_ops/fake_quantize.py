"""Fake quantization: quantize and dequantize in floating point."""

from __future__ import annotations

import onnx_ir as ir
import torch

from .._aten.indexing.axes import axis_of
from .._builder.dtypes import FLOAT
from .._builder.op import Op, Unsupported
from .._registry import translates
from .affine import RANGES, broadcast_parameter, can_quantize, dequantize, of_whole_tensor, quantize, zero_dim
from .stored_weights import quantize_stored

aten = torch.ops.aten


def _narrowest(quant_min: int, quant_max: int) -> ir.DataType | None:
    fitting = (dtype for dtype, (low, high) in RANGES.items() if low <= quant_min and quant_max <= high)
    return next(fitting, None)


def _fake_quantized(
    op: Op,
    self: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value,
    quant_min: int,
    quant_max: int,
    axis: int | None = None,
) -> ir.Value:
    stored = quantize_stored(op, self, scale, zero_point, (quant_min, quant_max), axis)
    if stored is not None:
        return stored
    x, dtype = op.cast(self, FLOAT), _narrowest(quant_min, quant_max)
    if dtype is not None and can_quantize(op, dtype, zero_point, axis):
        integers = quantize(op, x, scale, zero_point, (quant_min, quant_max), dtype, axis)
        return op.cast(dequantize(op, integers, scale, zero_point, axis), op.dtype_of(self))
    rank = op.rank_of(self)
    step, shift = (broadcast_parameter(op, op.cast(value, FLOAT), axis, rank) for value in (scale, zero_point))
    clamped = op.Clip(_shifted(op, x, scale, zero_point, axis), float(quant_min), float(quant_max))
    return op.cast(op.Mul(op.Sub(clamped, shift), step), op.dtype_of(self))


def _shifted(op: Op, x: ir.Value, scale: ir.Value, zero_point: ir.Value, axis: int | None) -> ir.Value:
    """Return the quantized values before clamping; if the zero points are not integers, torch adds them before rounding."""
    rank = op.rank_of(x)
    step, shift = (broadcast_parameter(op, op.cast(value, FLOAT), axis, rank) for value in (scale, zero_point))
    quotient = op.Mul(x, op.Reciprocal(step))
    if op.is_float(zero_point):
        return op.Round(op.Add(quotient, shift))
    return op.Add(op.Round(quotient), shift)


def _inside(
    op: Op,
    self: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value,
    quant_min: int,
    quant_max: int,
    axis: int | None = None,
) -> ir.Value:
    """Return the mask of elements within the limits."""
    integers = _shifted(op, op.cast(self, FLOAT), scale, zero_point, axis)
    return op.And(op.GreaterOrEqual(integers, float(quant_min)), op.LessOrEqual(integers, float(quant_max)))


@translates("aten::fake_quantize_per_tensor_affine", "aten::fake_quantize_per_tensor_affine.tensor_qparams")
def fake_quantize_per_tensor_affine(
    op: Op, self: ir.Value, scale: float | ir.Value, zero_point: int | ir.Value, quant_min: int, quant_max: int
) -> ir.Value:
    """aten::fake_quantize_per_tensor_affine(Tensor self, float scale, int zero_point, int quant_min, int quant_max) -> Tensor
    aten::fake_quantize_per_tensor_affine.tensor_qparams(Tensor self, Tensor scale, Tensor zero_point, int quant_min, int quant_max) -> Tensor
    """
    return _fake_quantized(op, self, *of_whole_tensor(op, scale, zero_point), quant_min, quant_max)


@translates("aten::fake_quantize_per_tensor_affine_cachemask")
def fake_quantize_per_tensor_affine_cachemask(
    op: Op, self: ir.Value, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> tuple[ir.Value, ir.Value]:
    """aten::fake_quantize_per_tensor_affine_cachemask(Tensor self, float scale, int zero_point, int quant_min, int quant_max) -> (Tensor output, Tensor mask)"""
    parameters = (*of_whole_tensor(op, scale, zero_point), quant_min, quant_max)
    return _fake_quantized(op, self, *parameters), _inside(op, self, *parameters)


@translates("aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
    op: Op,
    self: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value,
    fake_quant_enabled: ir.Value,
    quant_min: int,
    quant_max: int,
) -> tuple[ir.Value, ir.Value]:
    """aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams(Tensor self, Tensor scale, Tensor zero_point, Tensor fake_quant_enabled, int quant_min, int quant_max) -> (Tensor output, Tensor mask)"""
    parameters = (*of_whole_tensor(op, scale, zero_point), quant_min, quant_max)
    enabled = op.cast(zero_dim(op, fake_quant_enabled), ir.DataType.BOOL)
    output = op.Where(enabled, _fake_quantized(op, self, *parameters), self)
    return output, op.Or(_inside(op, self, *parameters), op.Not(enabled))


@translates("aten::fake_quantize_per_channel_affine")
def fake_quantize_per_channel_affine(
    op: Op, self: ir.Value, scale: ir.Value, zero_point: ir.Value, axis: int, quant_min: int, quant_max: int
) -> ir.Value:
    """aten::fake_quantize_per_channel_affine(Tensor self, Tensor scale, Tensor zero_point, int axis, int quant_min, int quant_max) -> Tensor

    Infinity gives a limit; torch's kernel casts it to an integer, which is undefined behavior.
    """
    return _fake_quantized(op, self, scale, zero_point, quant_min, quant_max, axis_of(op, self, axis))


@translates("aten::fake_quantize_per_channel_affine_cachemask")
def fake_quantize_per_channel_affine_cachemask(
    op: Op, self: ir.Value, scale: ir.Value, zero_point: ir.Value, axis: int, quant_min: int, quant_max: int
) -> tuple[ir.Value, ir.Value]:
    """aten::fake_quantize_per_channel_affine_cachemask(Tensor self, Tensor scale, Tensor zero_point, int axis, int quant_min, int quant_max) -> (Tensor output, Tensor mask)"""
    axis = axis_of(op, self, axis)
    output = _fake_quantized(op, self, scale, zero_point, quant_min, quant_max, axis)
    return output, _inside(op, self, scale, zero_point, quant_min, quant_max, axis)


# ---- quantized tensors, which torch.export represents by their dequantized values

_QUANTIZED_LIMITS = {torch.quint8: (0, 2**8 - 1), torch.qint8: (-(2**7), 2**7 - 1)}

_EXACT_ON_QUANTIZED = frozenset(
    {"Expand", "Flatten", "Gather", "Identity", "MaxPool", "Relu", "Reshape", "Slice", "Split", "Squeeze"}
    | {"Transpose", "Unsqueeze"}
)
"""Operators whose results need not be rounded if their first input is a dequantized tensor."""


@translates("aten::quantize_per_tensor", "aten::quantize_per_tensor.tensor_qparams")
def quantize_per_tensor(
    op: Op, self: ir.Value, scale: float | ir.Value, zero_point: int | ir.Value, dtype: torch.dtype
) -> ir.Value:
    """aten::quantize_per_tensor(Tensor self, float scale, int zero_point, ScalarType dtype) -> Tensor
    aten::quantize_per_tensor.tensor_qparams(Tensor self, Tensor scale, Tensor zero_point, ScalarType dtype) -> Tensor
    """
    return _fake_quantized(op, self, *of_whole_tensor(op, scale, zero_point), *_limits(dtype))


@translates("aten::dequantize.self")
def dequantize_self(op: Op, self: ir.Value) -> ir.Value:
    """aten::dequantize.self(Tensor self) -> Tensor"""
    value: ir.Value | None = self
    while value is not None:
        node = value.producer()
        if node is not None and node.op_type == "DequantizeLinear":
            return op.Identity(self)
        value = node.inputs[0] if node is not None and node.op_type in _EXACT_ON_QUANTIZED else None
    raise Unsupported(
        "dequantize of a result whose rounding torch.export does not record; export the nn.Module in place of its "
        "ExportedProgram, or quantize it with PT2E"
    )


def _limits(dtype: torch.dtype) -> tuple[int, int]:
    if dtype not in _QUANTIZED_LIMITS:
        raise Unsupported(f"quantize_per_tensor to {dtype}")
    return _QUANTIZED_LIMITS[dtype]
