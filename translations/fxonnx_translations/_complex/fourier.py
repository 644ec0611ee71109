"""Discrete Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from .._aten.join_split import overlap_added
from .._builder.op import Op, Unsupported
from .._builder.symbolic_dims import Dim
from .._registry import OpCall, translates
from .._torch_compat import FloorDiv

_DFT_SINCE = 17
_LARGEST_MATRIX = 2048
# torch's normalization modes: divide by 1, by the square root of the length, or by the length.
_BY_ROOT, _BY_LENGTH = 1, 2


def _is_power_of_two(length: Dim) -> bool:
    return isinstance(length, int) and length & (length - 1) == 0


def _has_dft(op: Op, length: Dim) -> bool:
    """Whether a transform is an operator: targets without a kernel get a product with a matrix, if that is small."""
    is_small = isinstance(length, int) and length <= _LARGEST_MATRIX
    return op.opset >= _DFT_SINCE and (op.has_kernel("DFT", ir.DataType.FLOAT) or not is_small)


def _by_matrix(op: Op, value: ir.Value, axis: int, inverse: bool, onesided: bool) -> ir.Value:
    """Transform a static length by a constant matrix."""
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


def _transform(
    op: Op,
    value: ir.Value,
    axis: int,
    *,
    inverse: bool = False,
    onesided: bool = False,
    length: Dim | None = None,
) -> ir.Value:
    """Transform one axis of a tensor whose last axis holds one or two parts; the inverse divides by the length."""
    if length in (None, op.dims(value)[axis]) and not _has_dft(op, op.dims(value)[axis]):
        return _by_matrix(op, value, axis, inverse, onesided)
    dims, dtype = list(op.dims(value)), op.dtype_of(value)
    count = None
    if length is not None and length != dims[axis]:
        dims[axis], count = length, op.scalar(length)
    # Except for powers of two, ONNX Runtime accumulates angles and loses half of FLOAT's digits; DOUBLE has enough.
    wide = value if _is_power_of_two(dims[axis]) else op.cast(value, ir.DataType.DOUBLE)
    batched = op.Unsqueeze(wide, [0]) if axis == 0 else wide
    at, flags = max(axis, 1), {"inverse": int(inverse), "onesided": int(onesided)}
    if op.opset >= 20:
        made = op.DFT(batched, count, op.const(at, ir.DataType.INT64), **flags)
    else:
        made = op.DFT(batched, count, axis=at, **flags)
    result = op.cast(op.Squeeze(made, [0]) if axis == 0 else made, dtype)
    size = dims[axis]
    kept = (size // 2 + 1 if isinstance(size, int) else FloorDiv(size, 2) + 1) if onesided else size
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


def _wide(op: Op, value: ir.Value, lengths: Sequence[Dim]) -> ir.Value:
    """Return the value in the type of all its transforms, so that there are no casts between them."""
    is_precise = all(not _has_dft(op, length) or _is_power_of_two(length) for length in lengths)
    return value if is_precise else op.cast(value, ir.DataType.DOUBLE)


def _real_or_complex(op: Op, value: ir.Value) -> ir.Value:
    """Return a tensor whose last axis holds one part if the other one is known to be zero."""
    if value in op.builder.parts:
        real, imaginary = op.parts(value)
        if op.is_zero(imaginary):
            return op.Unsqueeze(real, [-1])
    return value


@translates("aten::_fft_c2c", complex=True)
def fft_of_complex(op: Op, self: ir.Value, dim: Sequence[int], normalization: int, forward: bool) -> ir.Value:
    """aten::_fft_c2c(Tensor self, SymInt[] dim, int normalization, bool forward) -> Tensor"""
    dims = op.dims(self)
    axes = _axes(dim, len(dims) - 1)
    lengths = [dims[axis] for axis in axes]
    value = _wide(op, _real_or_complex(op, self) if axes else self, lengths)
    for axis in axes:
        value = _transform(op, value, axis, inverse=not forward)
    return op.cast(_normalize(op, value, lengths, normalization, inverse=not forward), op.dtype_of(self))


@translates("aten::_fft_r2c", complex=True)
def fft_of_real(op: Op, self: ir.Value, dim: Sequence[int], normalization: int, onesided: bool) -> ir.Value:
    """aten::_fft_r2c(Tensor self, int[] dim, int normalization, bool onesided) -> Tensor"""
    dims = op.dims(self)
    axes = _axes(dim, len(dims))
    lengths = [dims[axis] for axis in axes]
    value = _wide(op, op.Unsqueeze(self, [-1]), lengths)
    value = _transform(op, value, axes[-1], onesided=onesided)
    for axis in axes[:-1]:
        value = _transform(op, value, axis)
    result = op.cast(_normalize(op, value, lengths, normalization, inverse=False), op.dtype_of(self))
    return _with_real_bins(op, result, axes[0], lengths[0]) if len(axes) == 1 else result


def _with_real_bins(op: Op, spectrum: ir.Value, axis: int, length: Dim) -> ir.Value:
    """Return the spectrum of real numbers; exact zeros have 0.0 as the imaginary part of the numbers that are real, as torch has."""
    if not op.exact_zeros:
        return spectrum
    real, imaginary = op.parts(spectrum)
    dims = op.dims(imaginary)
    count = op.Squeeze(op.Shape(imaginary, start=axis, end=axis + 1), [0])
    position = op.Range(op.const(0), count, op.const(1))
    # The first one, and of an even length the one in the middle.
    is_real = op.Or(op.Equal(position, 0), op.Equal(op.Mul(position, 2), op.scalar(length)))
    mask = op.Unsqueeze(is_real, list(range(1, len(dims) - axis))) if axis + 1 < len(dims) else is_real
    return op.join(real, op.Where(mask, op.const(0.0, op.dtype_of(imaginary)), imaginary))


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


def _real_signal(op: Op, value: ir.Value, axis: int, length: Dim, *, inverse: bool) -> ir.Value:
    """Transform the first half of a Hermitian spectrum, without its last zeros, to the real signal of the given length."""
    given = op.dims(value)[axis]
    half = length // 2 + 1 if isinstance(length, int) else None
    if half is None or not _has_dft(op, length) or not isinstance(given, int) or given > half:
        if isinstance(given, int) and half is not None and given < half:
            shape, rank = [*op.dims(value)], op.rank_of(value)
            shape[axis] = half
            ends = [half - given if other == axis else 0 for other in range(rank)]
            value = op.shaped(op.Pad(value, [0] * rank + ends), shape)
        return op.parts(_transform(op, _whole_spectrum(op, value, axis, length), axis, inverse=inverse))[0]
    # The numbers of the other half are conjugates: the real part of the result is the real part of twice the first half, except
    # for the numbers that are their own conjugates.
    factors = np.full([given, *[1] * (op.rank_of(value) - 1 - axis)], 2.0)
    factors[0] = 1
    if isinstance(length, int) and length % 2 == 0 and given == half:
        factors[-1] = 1
    dtype = op.dtype_of(value)
    doubled = op.Mul(value, op.const(ir.Tensor(factors.astype(dtype.numpy()), dtype=dtype)))
    made = _transform(op, doubled, axis, inverse=inverse, length=length)
    return op.shaped(op.Gather(made, 0, axis=-1), op.dims(made)[:-1])


_NORMALIZATIONS = {None: 0, "backward": 0, "ortho": _BY_ROOT, "forward": _BY_LENGTH}
_CROPPED = "a dynamic length, or an opset without DFT"


def _require_static_axis(call: OpCall) -> str | None:
    """Reject the calls that are decomposed into padding or slicing, and the transform."""
    value, axis, length = call.arguments["self"], call.arguments["dim"], call.arguments["n"]
    is_static = isinstance(value.shape[axis], int) and (length is None or isinstance(length, int))
    return None if is_static and call.opset >= _DFT_SINCE else _CROPPED


def _signal_of_length(op: Op, self: ir.Value, n: int | None, dim: int, norm: str | None, *, inverse: bool) -> ir.Value:
    axis = dim % (op.rank_of(self) - 1)
    dims = list(op.dims(self))
    given = dims[axis]
    length = 2 * (given - 1) if n is None and isinstance(given, int) else n
    if not isinstance(given, int) or not isinstance(length, int):
        raise Unsupported("a Fourier transform of a symbolic length")
    value = self
    if given > length // 2 + 1:
        dims[axis] = length // 2 + 1
        value = op.shaped(op.Slice(self, [0], [length // 2 + 1], [axis]), dims)
    signal = _real_signal(op, value, axis, length, inverse=inverse)
    # irfft divides by the length, hfft does not, unless norm is "forward".
    power = {0: -1.0, _BY_ROOT: -0.5, _BY_LENGTH: 0.0}[_NORMALIZATIONS[norm]]
    if not inverse:
        power = -1.0 - power
    return _scaled(op, signal, length, power + float(inverse))


def _scaled(op: Op, value: ir.Value, length: int, power: float) -> ir.Value:
    return value if power == 0 else op.Mul(value, op.const(float(length) ** power, op.dtype_of(value)))


@translates("aten::fft_irfft", accepts=_require_static_axis, complex=True)
def fft_irfft(op: Op, self: ir.Value, n: int | None = None, dim: int = -1, norm: str | None = None) -> ir.Value:
    """aten::fft_irfft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor"""
    return _signal_of_length(op, self, n, dim, norm, inverse=True)


@translates("aten::fft_hfft", accepts=_require_static_axis, complex=True)
def fft_hfft(op: Op, self: ir.Value, n: int | None = None, dim: int = -1, norm: str | None = None) -> ir.Value:
    """aten::fft_hfft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor

    The inverse of the conjugate spectrum is the forward transform.
    """
    return _signal_of_length(op, self, n, dim, norm, inverse=False)


@translates("aten::_fft_c2r", complex=True)
def fft_to_real(op: Op, self: ir.Value, dim: Sequence[int], normalization: int, last_dim_size: Dim) -> ir.Value:
    """aten::_fft_c2r(Tensor self, int[] dim, int normalization, SymInt last_dim_size) -> Tensor"""
    dims = op.dims(self)
    axes = _axes(dim, len(dims) - 1)
    lengths = [*(dims[axis] for axis in axes[:-1]), last_dim_size]
    value = _wide(op, self, lengths)
    for axis in axes[:-1]:
        value = _transform(op, value, axis, inverse=True)
    value = _real_signal(op, value, axes[-1], last_dim_size, inverse=True)
    return op.cast(_normalize(op, value, lengths, normalization, inverse=True), op.dtype_of(self))


@translates("aten::fft_ihfft", accepts=_require_static_axis, complex=True)
def fft_ihfft(op: Op, self: ir.Value, n: int | None = None, dim: int = -1, norm: str | None = None) -> ir.Value:
    """aten::fft_ihfft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor

    The conjugate of the forward transform of real numbers is their inverse one.
    """
    dtype = op.result.dtype
    axis = dim % op.rank_of(self)
    given = op.dims(self)[axis]
    length = given if n is None else n
    if not isinstance(given, int) or not isinstance(length, int):
        raise Unsupported("a Fourier transform of a symbolic length")
    value = op.cast(self, dtype)
    if length < given:
        value = op.Slice(value, [0], [length], [axis])
        given = length
    value = _transform(op, op.Unsqueeze(value, [-1]), axis, inverse=True, length=length)
    kept = list(op.dims(value))
    kept[axis] = length // 2 + 1
    half = op.shaped(op.Slice(value, [0], [kept[axis]], [axis]), kept)
    power = {0: -1.0, _BY_ROOT: -0.5, _BY_LENGTH: 0.0}[_NORMALIZATIONS[norm]]
    return _scaled(op, half, length, power + 1.0)


# ---- short-time transforms


def _reject_stft(call: OpCall) -> str | None:
    if call.opset < _DFT_SINCE:
        return f"STFT is of opset {_DFT_SINCE}"
    arguments = call.arguments
    if arguments.get("align_to_window") or not arguments["return_complex"]:
        return "frames aligned to the window, or a real result"
    window = arguments["window"]
    if window is not None and (window.is_complex() or not isinstance(window.shape[0], int)):
        return "a complex window, or one of a dynamic length"
    return None


def _window(op: Op, window: ir.Value | None, length: int, frame: int, dtype: ir.DataType) -> ir.Value | None:
    """Return the window, of zeros outside of its length, in the middle of the frame."""
    if window is None:
        if length == frame:
            return None
        window = op.const([1.0] * length, dtype)
    before = (frame - length) // 2
    numbers = op.numbers(window)
    if numbers is not None:
        return op.const([0.0] * before + numbers + [0.0] * (frame - length - before), dtype)
    value = op.cast(window, dtype)
    return value if length == frame else op.Pad(value, [before, frame - length - before])


@translates("aten::stft", accepts=_reject_stft, complex=True)
def stft(
    op: Op,
    self: ir.Value,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: ir.Value | None = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> ir.Value:
    """aten::stft(Tensor self, int n_fft, int? hop_length=None, int? win_length=None, Tensor? window=None, bool normalized=False, bool? onesided=None, bool? return_complex=None, bool? align_to_window=None) -> Tensor"""
    dtype, shape = op.result.dtype, op.result.shape
    is_complex = self in op.complex_values
    is_single = len(shape) == 2
    # As for DFT, float32 is precise for powers of two only.
    wide = dtype if _is_power_of_two(n_fft) else ir.DataType.DOUBLE
    signal = op.cast(self if is_complex else op.Unsqueeze(self, [-1]), wide)
    if is_single:
        signal = op.Unsqueeze(signal, [0])
    factors = _window(op, window, n_fft if win_length is None else win_length, n_fft, wide)
    step = op.const(n_fft // 4 if hop_length is None else hop_length)
    frame = op.const(n_fft) if factors is None else None
    sides = int(not is_complex if onesided is None else onesided)
    made = op.STFT(signal, step, factors, frame, onesided=sides)
    dims = (1, *shape) if is_single else shape
    made = op.shaped(op.Transpose(op.shaped(made, (dims[0], dims[2], dims[1], 2)), perm=[0, 2, 1, 3]), (*dims, 2))
    value = op.cast(op.Squeeze(made, [0]) if is_single else made, dtype)
    value = op.Mul(value, op.const(n_fft**-0.5, dtype)) if normalized else value
    return value if is_complex else _with_real_bins(op, value, len(shape) - 2, n_fft)


def _frames(op: Op, spectra: ir.Value, n_fft: int, normalized: bool, onesided: bool | None) -> ir.Value:
    """Return the frames [batch, frames, n_fft] of real signals with spectra [batch, bins, frames, 2]."""
    dims = op.dims(spectra)
    value = op.Transpose(spectra, perm=[0, 2, 1, 3])
    if onesided is False or (onesided is None and dims[1] == n_fft):
        half = (dims[0], dims[2], n_fft // 2 + 1, 2)
        value = op.shaped(op.Slice(value, [0], [n_fft // 2 + 1], [2]), half)
    return fft_to_real(op, value, [2], _BY_ROOT if normalized else _BY_LENGTH, n_fft)


def _sums_of_windows(op: Op, frames: ir.Value, window: ir.Value | None, step: int) -> tuple[ir.Value, ir.Value]:
    """Return the sum of the frames times the window, and the sum of the squares of the windows."""
    _, count, size = op.dims(frames)
    dtype = op.dtype_of(frames)
    squares = op.const([1.0] * size, dtype) if window is None else op.Mul(window, window)
    weighted = frames if window is None else op.Mul(frames, window)
    return overlap_added(op, weighted, step), overlap_added(op, op.expand(squares, (1, count, size)), step)


@translates("aten::istft", "fxonnx::istft", complex=True)
def istft(
    op: Op,
    self: ir.Value,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: ir.Value | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Dim | None = None,
    return_complex: bool = False,
) -> ir.Value:
    """aten::istft(Tensor self, int n_fft, int? hop_length=None, int? win_length=None, Tensor? window=None, bool center=True, bool normalized=False, bool? onesided=None, int? length=None, bool return_complex=False) -> Tensor
    fxonnx::istft(Tensor self, int n_fft, int? hop_length, int? win_length, Tensor? window, bool center, bool normalized, bool? onesided, SymInt length, bool return_complex) -> Tensor
    """
    if window is not None and window in op.complex_values:
        raise Unsupported("istft with a complex window")
    step, dtype = n_fft // 4 if hop_length is None else hop_length, op.dtype_of(self)
    spectra = op.Unsqueeze(self, [0]) if op.rank_of(self) == 3 else self
    factors = _window(op, window, n_fft if win_length is None else win_length, n_fft, dtype)
    if return_complex:
        value = op.Transpose(spectra, perm=[0, 2, 1, 3])
        frames = [*op.parts(fft_of_complex(op, value, [2], _BY_ROOT if normalized else _BY_LENGTH, False))]
    else:
        frames = [_frames(op, spectra, n_fft, normalized, onesided)]
    signals = [_signal_of_frames(op, part, factors, step, center, length) for part in frames]
    return op.join(*signals) if return_complex else signals[0]


def _signal_of_frames(
    op: Op, frames: ir.Value, window: ir.Value | None, step: int, center: bool, length: Dim | None
) -> ir.Value:
    size = op.dims(frames)[2]
    total, squares = _sums_of_windows(op, frames, window, step)
    full = op.dims(total)[1]
    first = size // 2 if center else 0
    end = op.const([-first if center else 2**62]) if length is None else op.size(first + length)
    total, squares = (op.Slice(value, [first], end, [1]) for value in (total, squares))
    signal = op.Div(total, squares)
    if length is None:
        signal = op.shaped(signal, (op.dims(frames)[0], full - 2 * first))
    elif not (isinstance(full, int) and isinstance(length, int) and first + length <= full):
        # Zeros after the last frame.
        missing = op.Sub(op.size(length), op.Shape(signal, start=1, end=2))
        zeros = op.const([0, 0, 0], ir.DataType.INT64)
        signal = op.shaped(op.Pad(signal, op.Concat(zeros, missing, axis=0)), (op.dims(frames)[0], length))
    return op.Squeeze(signal, [0]) if len(op.result.shape) == 1 else signal
