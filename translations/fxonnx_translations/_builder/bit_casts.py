"""Bit casts: the bytes of a tensor as elements of another type of the same size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir
import torch

from .builder import Unsupported
from .dtypes import (
    BOOL,
    DOUBLE,
    FLOAT,
    FLOAT8,
    FLOAT8E8M0,
    INT32,
    INT64,
    INTEGERS,
    SUB_BYTE_INTEGERS,
    UINT8,
    to_torch_dtype,
)
from .op import Op

__all__ = ["bit_cast", "bits_of_float"]

_BIT_CAST_SINCE = 26

_WHOLE_NUMBERS = INTEGERS | SUB_BYTE_INTEGERS | {BOOL}
_BIASES = {
    ir.DataType.FLOAT8E4M3FN: 7,
    ir.DataType.FLOAT8E4M3FNUZ: 8,
    ir.DataType.FLOAT8E5M2: 15,
    ir.DataType.FLOAT8E5M2FNUZ: 16,
}


@dataclass(frozen=True)
class _Float:
    """A floating-point type: the bias of the exponent, and the bits of exponent and mantissa."""

    bias: int
    exponent: int
    mantissa: int


_WIDE_FLOATS = {
    ir.DataType.FLOAT16: _Float(15, 5, 10),
    ir.DataType.BFLOAT16: _Float(127, 8, 7),
    FLOAT: _Float(127, 8, 23),
    DOUBLE: _Float(1023, 11, 52),
}


def bits_of_float(op: Op, value: ir.Value) -> ir.Value:
    """Return the bits of a float of more than 8 bits as INT64; NaN has the bits of torch's constant.

    Arithmetic, because ONNX has BitCast from opset 26 on only: a binary search for the exponent, with exact products by powers
    of two. The quotient q in [1, 2) and the exponent field f of a normal number are together (f - 1 + q) 2**mantissa; a
    subnormal number has q < 1 and f = 1.
    """
    kind = _WIDE_FLOATS[op.dtype_of(value)]
    wide = op.Cast(value, to=DOUBLE)
    magnitude = op.Abs(wide)
    is_small = op.Less(magnitude, 1.0)
    quotient = op.Where(is_small, op.Mul(magnitude, 2.0 ** (kind.bias - 1)), magnitude)
    field = op.Where(is_small, op.const(0.0, DOUBLE), op.const(kind.bias - 1.0, DOUBLE))
    for step in (1 << bit for bit in reversed(range(kind.exponent - 1))):
        is_larger = op.GreaterOrEqual(quotient, 2.0**step)
        quotient = op.Where(is_larger, op.Mul(quotient, 2.0**-step), quotient)
        field = op.Where(is_larger, op.Add(field, float(step)), field)
    unit = op.const(1 << kind.mantissa, INT64)
    bits = op.Add(op.Mul(op.Cast(field, to=INT64), unit), op.Cast(op.Mul(quotient, 2.0**kind.mantissa), to=INT64))
    infinity = ((1 << kind.exponent) - 1) << kind.mantissa
    bits = op.Where(op.IsInf(wide), op.const(infinity, INT64), bits)
    width = kind.exponent + kind.mantissa
    # The sign bit of 64 bits is the smallest number.
    sign = op.const(-(1 << 63) if width == 63 else 1 << width, INT64)
    bits = op.Where(_is_negative(op, wide), op.Add(bits, sign), bits)
    return op.Where(op.IsNaN(wide), op.const(infinity | 1 << (kind.mantissa - 1), INT64), bits)


def bit_cast(op: Op, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return the elements of another type with the same bits; NaN has the bits that torch's casts return.

    Raises:
        Unsupported: If the type has another size, or the opset has no BitCast for types of more than 8 bits.
    """
    given, size = op.dtype_of(value), to_torch_dtype(dtype).itemsize
    if to_torch_dtype(given).itemsize != size:
        raise Unsupported("a view as a dtype of another size regroups bytes, which ONNX cannot express")
    if given == dtype:
        return value
    if given in _WHOLE_NUMBERS and dtype in _WHOLE_NUMBERS:
        return _reinterpreted(op, value, dtype)
    if size > 1 and op.opset < _BIT_CAST_SINCE and given in _WIDE_FLOATS and dtype in _WHOLE_NUMBERS:
        return _reinterpreted(op, bits_of_float(op, value), dtype)
    if size > 1:
        return op.BitCast(value, to=dtype)
    codes = _reinterpreted(op, value, UINT8) if given in _WHOLE_NUMBERS else _codes(op, value)
    return _reinterpreted(op, codes, dtype) if dtype in _WHOLE_NUMBERS else _from_codes(op, codes, dtype)


def _reinterpreted(op: Op, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return integers of the same bits: the cast of a negative number wraps around."""
    if value.dtype in SUB_BYTE_INTEGERS:
        # A byte of torch is sign-extended.
        value = op.Cast(value, to=ir.DataType.INT8 if value.dtype.is_signed() else UINT8)
    return op.Cast(value, to=dtype)


def _from_codes(op: Op, codes: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return the float8 numbers of bytes, from a table of all of them."""
    numbers = torch.arange(256, dtype=torch.uint8).view(to_torch_dtype(dtype)).to(torch.float32)
    value = op.Gather(op.const(numbers), op.Cast(codes, to=INT32))
    return op.Cast(value, to=dtype) if dtype == FLOAT8E8M0 else op.Cast(value, to=dtype, saturate=0)


def _codes(op: Op, self: ir.Value) -> ir.Value:
    """Return the bytes of float8 numbers; NaN has the bits that torch's casts return."""
    dtype = op.dtype_of(self)
    value = op.Cast(self, to=FLOAT)
    if dtype == FLOAT8E8M0:
        exponent = op.Round(op.Add(op.Mul(op.Log(value), 1 / math.log(2)), 127.0))
        return op.Cast(op.Where(op.IsNaN(value), 255.0, exponent), to=UINT8)
    if dtype not in FLOAT8:
        raise Unsupported(f"the bytes of {dtype.name} cannot be computed")
    is_e5 = dtype in (ir.DataType.FLOAT8E5M2, ir.DataType.FLOAT8E5M2FNUZ)
    kind = _Float(_BIASES[dtype], 5, 2) if is_e5 else _Float(_BIASES[dtype], 4, 3)
    nan, infinity = torch.tensor([math.nan, math.inf]).to(to_torch_dtype(dtype)).view(torch.uint8).tolist()
    magnitude = op.Abs(value)
    numbers = op.Add(_magnitude_codes(op, magnitude, kind), op.Where(_is_negative(op, value), 128.0, 0.0))
    if dtype == ir.DataType.FLOAT8E5M2:
        infinities = op.Where(op.Less(value, 0.0), infinity + 128.0, float(infinity))
        numbers = op.Where(op.Equal(magnitude, math.inf), infinities, numbers)
    return op.Cast(op.Where(op.IsNaN(value), float(nan), numbers), to=UINT8)


def _magnitude_codes(op: Op, magnitude: ir.Value, kind: _Float) -> ir.Value:
    """Return the bits of exponent and mantissa as FLOAT, by a binary search for the exponent.

    With the exponent e of a normal number, counted from the least one, and the quotient q = magnitude / 2**e in [1, 2),
    the exponent field is e + 1 and the mantissa q - 1: together e + q. A subnormal number is q alone.
    """
    # The least normal number becomes 1.
    quotient = op.Mul(magnitude, 2.0 ** (kind.bias - 1))
    exponent = None
    for step in (1 << bit for bit in reversed(range(kind.exponent))):
        is_larger = op.GreaterOrEqual(quotient, 2.0**step)
        quotient = op.Where(is_larger, op.Mul(quotient, 2.0**-step), quotient)
        part = op.Where(is_larger, float(step), 0.0)
        exponent = part if exponent is None else op.Add(exponent, part)
    return op.Mul(quotient if exponent is None else op.Add(exponent, quotient), 2.0**kind.mantissa)


def _is_negative(op: Op, value: ir.Value) -> ir.Value:
    """Return whether the sign bit is set: 1 / -0.0 is negative."""
    return op.Less(op.Where(op.Equal(value, 0.0), op.Reciprocal(value), value), 0.0)
