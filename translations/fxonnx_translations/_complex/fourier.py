"""Discrete Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from .._builder.op import Op, Unsupported
from .._builder.symbolic_dims import Dim
from .._registry import translates
from .._torch_compat import FloorDiv

_DFT_SINCE = 17
_LARGEST_MATRIX = 2048
# torch's normalization modes: divide by 1, by the square root of the length, or by the length.
_BY_ROOT, _BY_LENGTH = 1, 2


def _is_power_of_two(length: Dim) -> bool:
    return isinstance(length, int) and length & (length - 1) == 0


def _by_matrix(op: Op, value: ir.Value, axis: int, inverse: bool, onesided: bool) -> ir.Value:
    """Transform a static length by a constant matrix, for the opsets without DFT."""
    dims, dtype = op.dims(value), op.dtype_of(value)
    length = dims[axis]
    if not isinstance(length, int) or length > _LARGEST_MATRIX:
        raise Unsupported(f"a Fourier transform of {length} numbers before opset {_DFT_SINCE}")
    turns = np.outer(np.arange(length), np.arange(length // 2 + 1 if onesided else length)) % length
    matrix = np.exp((2j if inverse else -2j) * math.pi * turns / length) / (length if inverse else 1)
    cosines, sines = (
        op.const(ir.Tensor(part.astype(dtype.numpy()), dtype=dtype)) for part in (matrix.real, matrix.imag)
    )
    last = len(dims) - 2
    order = [other for other in range(last + 1) if other != axis] + [axis]
    back = [order.index(other) for other in range(last + 1)]

    def times(part: ir.Value, factor: ir.Value) -> ir.Value:
        return op.Transpose(op.MatMul(op.Transpose(part, perm=order), factor), perm=back)

    if dims[-1] == 1:
        part = op.Squeeze(value, [-1])
        return op.join(times(part, cosines), times(part, sines))
    a, b = op.parts(value)
    return op.join(
        op.Sub(times(a, cosines), times(b, sines)),
        op.Add(times(a, sines), times(b, cosines)),
    )


def _transform(op: Op, value: ir.Value, axis: int, *, inverse: bool = False, onesided: bool = False) -> ir.Value:
    """Transform one axis of a tensor whose last axis holds one or two parts; the inverse divides by the length."""
    if op.opset < _DFT_SINCE:
        return _by_matrix(op, value, axis, inverse, onesided)
    dims, dtype = op.dims(value), op.dtype_of(value)
    # Except for powers of two, ONNX Runtime accumulates angles and loses half of FLOAT's digits; DOUBLE has enough.
    wide = value if _is_power_of_two(dims[axis]) else op.cast(value, ir.DataType.DOUBLE)
    batched = op.Unsqueeze(wide, [0]) if axis == 0 else wide
    at, flags = max(axis, 1), {"inverse": int(inverse), "onesided": int(onesided)}
    if op.opset >= 20:
        made = op.DFT(batched, None, op.const(at, ir.DataType.INT64), **flags)
    else:
        made = op.DFT(batched, None, axis=at, **flags)
    result = op.cast(op.Squeeze(made, [0]) if axis == 0 else made, dtype)
    length = dims[axis]
    kept = (length // 2 + 1 if isinstance(length, int) else FloorDiv(length, 2) + 1) if onesided else length
    return op.shaped(result, (*dims[:axis], kept, *dims[axis + 1 : -1], 2))


def _normalize(op: Op, value: ir.Value, lengths: Sequence[Dim], normalization: int, *, inverse: bool) -> ir.Value:
    """Apply torch's normalization; the inverse is divided by the lengths already."""
    power = {0: 0.0, _BY_ROOT: -0.5, _BY_LENGTH: -1.0}[normalization] + float(inverse)
    if power == 0:
        return value
    dtype = op.dtype_of(value)
    if all(isinstance(length, int) for length in lengths):
        return op.Mul(value, op.const(float(math.prod(lengths)) ** power, dtype))
    total = op.scalar(math.prod(lengths), dtype)
    if abs(power) == 0.5:
        total = op.Sqrt(total)
    return op.Mul(value, total) if power > 0 else op.Div(value, total)


def _axes(dim: Sequence[int], rank: int) -> list[int]:
    return [axis % rank for axis in dim]


@translates("aten::_fft_c2c", complex=True)
def fft_of_complex(op: Op, self: ir.Value, dim: Sequence[int], normalization: int, forward: bool) -> ir.Value:
    """aten::_fft_c2c(Tensor self, SymInt[] dim, int normalization, bool forward) -> Tensor"""
    dims = op.dims(self)
    axes = _axes(dim, len(dims) - 1)
    value = self
    for axis in axes:
        value = _transform(op, value, axis, inverse=not forward)
    return _normalize(op, value, [dims[axis] for axis in axes], normalization, inverse=not forward)


@translates("aten::_fft_r2c", complex=True)
def fft_of_real(op: Op, self: ir.Value, dim: Sequence[int], normalization: int, onesided: bool) -> ir.Value:
    """aten::_fft_r2c(Tensor self, int[] dim, int normalization, bool onesided) -> Tensor"""
    dims = op.dims(self)
    axes = _axes(dim, len(dims))
    value = _transform(op, op.Unsqueeze(self, [-1]), axes[-1], onesided=onesided)
    for axis in axes[:-1]:
        value = _transform(op, value, axis)
    return _normalize(op, value, [dims[axis] for axis in axes], normalization, inverse=False)


def _whole_spectrum(op: Op, value: ir.Value, axis: int, length: Dim) -> ir.Value:
    """Return the whole spectrum of a real signal from its first half, by Hermitian symmetry."""
    known = length - (length // 2 + 1 if isinstance(length, int) else FloorDiv(length, 2) + 1)
    real, imaginary = op.parts(value)
    if known == 0:
        return value

    def mirrored(part: ir.Value) -> ir.Value:
        middle = op.Slice(part, [1], op.size(known + 1), [axis])
        return op.Slice(middle, [-1], [-(2**63)], [axis], [-1])

    shape = list(op.dims(real))
    shape[axis] = length
    parts = op.Concat(real, mirrored(real), axis=axis), op.Concat(imaginary, op.Neg(mirrored(imaginary)), axis=axis)
    return op.join(op.shaped(parts[0], shape), op.shaped(parts[1], shape))


@translates("aten::_fft_c2r", complex=True)
def fft_to_real(op: Op, self: ir.Value, dim: Sequence[int], normalization: int, last_dim_size: Dim) -> ir.Value:
    """aten::_fft_c2r(Tensor self, int[] dim, int normalization, SymInt last_dim_size) -> Tensor"""
    dims = op.dims(self)
    axes = _axes(dim, len(dims) - 1)
    value = self
    for axis in axes[:-1]:
        value = _transform(op, value, axis, inverse=True)
    value = _transform(op, _whole_spectrum(op, value, axes[-1], last_dim_size), axes[-1], inverse=True)
    lengths = [*(dims[axis] for axis in axes[:-1]), last_dim_size]
    return op.parts(_normalize(op, value, lengths, normalization, inverse=True))[0]
