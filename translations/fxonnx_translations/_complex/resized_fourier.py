"""Fourier transforms of a given length of axes whose size is dynamic: zeros are appended, or elements are cut off.

torch's decompositions compare both sizes, and neither append nor cut where the answer depends on a dynamic size. All other calls
are decomposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import onnx_ir as ir

from .._aten.join_split import resized
from .._builder.op import Op
from .._builder.symbolic_dims import Dim
from .._registry import Accepts, OpCall, Translation
from .._torch_compat import FloorDiv
from .fourier import fft_of_complex, fft_of_real, fft_to_real
from .parts import is_complex

_BY_ROOT, _BY_LENGTH = 1, 2
_NOT_RESIZED = "no length other than the size of a dynamic axis"

Lengths = Dim | Sequence[Dim] | None
Axes = int | Sequence[int] | None


def _normalization(norm: str | None, *, forward: bool) -> int:
    if norm == "ortho":
        return _BY_ROOT
    return _BY_LENGTH if (norm == "forward") == forward else 0


def _axes_and_lengths(rank: int, lengths: Any, axes: Any) -> list[tuple[int, Any]]:
    """Return the axes, each with its given length or None."""
    given = [] if lengths is None else list(lengths) if isinstance(lengths, Sequence) else [lengths]
    if axes is None:
        axes = range(rank - len(given) if given else 0, rank)
    chosen = [axis % rank for axis in (axes if isinstance(axes, Sequence) else [axes])]
    wanted = [None if length == -1 else length for length in given] or [None] * len(chosen)
    return list(zip(chosen, wanted, strict=True))


def _resizes(*, halved: bool = False) -> Accepts:
    """Return a condition that accepts the calls with a length that may differ from the size of its axis."""

    def accepts(call: OpCall) -> str | None:
        arguments = call.arguments
        shape = arguments["self"].shape
        lengths = arguments["s"] if "s" in arguments else arguments["n"]
        pairs = _axes_and_lengths(len(shape), lengths, arguments["dim"])
        for index, (axis, length) in enumerate(pairs):
            if length is None:
                continue
            needed = length // 2 + 1 if halved and index == len(pairs) - 1 else length
            is_static = isinstance(shape[axis], int) and isinstance(needed, int)
            if not is_static and str(shape[axis]) != str(needed):
                return None
        return _NOT_RESIZED

    return accepts


def _half(length: Dim) -> Dim:
    return length // 2 + 1 if isinstance(length, int) else FloorDiv(length, 2) + 1


def _transformed(op: Op, value: ir.Value, lengths: Lengths, axes: Axes, norm: str | None, *, forward: bool) -> ir.Value:
    rank = op.rank_of(value) - int(is_complex(op, value))
    pairs = _axes_and_lengths(rank, lengths, axes)
    normalization, chosen = _normalization(norm, forward=forward), [axis for axis, _ in pairs]
    value = _as_pair(op, value)
    for axis, length in pairs:
        value = value if length is None else resized(op, value, axis, length)
    return fft_of_complex(op, value, chosen, normalization, forward)


def _spectrum(op: Op, value: ir.Value, lengths: Lengths, axes: Axes, norm: str | None, *, forward: bool) -> ir.Value:
    """Return the first half of the spectrum of a real signal, of the forward transform."""
    pairs = _axes_and_lengths(op.rank_of(value), lengths, axes)
    value = op.cast(value, op.result.dtype)
    for axis, length in pairs:
        value = value if length is None else resized(op, value, axis, length)
    return fft_of_real(op, value, [axis for axis, _ in pairs], _normalization(norm, forward=forward), True)


def _signal(op: Op, value: ir.Value, lengths: Lengths, axes: Axes, norm: str | None, *, forward: bool) -> ir.Value:
    """Return the real signal of the first half of a spectrum, by the inverse transform."""
    return _signal_of_pair(op, _as_pair(op, value), lengths, axes, norm, forward=forward)


def _signal_of_pair(
    op: Op, value: ir.Value, lengths: Lengths, axes: Axes, norm: str | None, *, forward: bool
) -> ir.Value:
    pairs = _axes_and_lengths(op.rank_of(value) - 1, lengths, axes)
    last, size = pairs[-1]
    if size is None:
        size = 2 * (op.dims(value)[last] - 1)
    for axis, length in (*pairs[:-1], (last, _half(size))):
        value = value if length is None else resized(op, value, axis, length)
    return fft_to_real(op, value, [axis for axis, _ in pairs], _normalization(norm, forward=forward), size)


def _as_pair(op: Op, value: ir.Value) -> ir.Value:
    """Return the real and the imaginary part along a last axis."""
    if is_complex(op, value):
        return value
    real = op.cast(value, op.result.dtype)
    return op.join(real, op.expand(op.const(0.0, op.result.dtype), op.dims(real)))


def _conjugate(op: Op, value: ir.Value) -> ir.Value:
    real, imaginary = op.parts(value)
    return op.join(real, op.Neg(imaginary))


def _conjugate_spectrum(
    op: Op, value: ir.Value, lengths: Lengths, axes: Axes, norm: str | None, *, forward: bool
) -> ir.Value:
    """The conjugate of the forward transform of real numbers is their inverse one."""
    return _conjugate(op, _spectrum(op, value, lengths, axes, norm, forward=forward))


def _signal_of_conjugate(
    op: Op, value: ir.Value, lengths: Lengths, axes: Axes, norm: str | None, *, forward: bool
) -> ir.Value:
    """The inverse of the conjugate spectrum is the forward transform."""
    return _signal_of_pair(op, _conjugate(op, _as_pair(op, value)), lengths, axes, norm, forward=forward)


def _along_axis(
    op: Op,
    self: ir.Value,
    n: Dim | None = None,
    dim: int = -1,
    norm: str | None = None,
    *,
    transform: Any,
    forward: bool,
) -> ir.Value:
    """aten::fft_fft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor
    aten::fft_ifft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor
    aten::fft_rfft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor
    aten::fft_ihfft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor
    aten::fft_irfft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor
    aten::fft_hfft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor
    """
    value: ir.Value = transform(op, self, n, dim, norm, forward=forward)
    return value


def _along_axes(
    op: Op,
    self: ir.Value,
    s: Lengths = None,
    dim: Axes = None,
    norm: str | None = None,
    *,
    transform: Any,
    forward: bool,
) -> ir.Value:
    """aten::fft_fft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2, -1], str? norm=None) -> Tensor
    aten::fft_fftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor
    aten::fft_ifft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2, -1], str? norm=None) -> Tensor
    aten::fft_ifftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor
    aten::fft_rfft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2, -1], str? norm=None) -> Tensor
    aten::fft_rfftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor
    aten::fft_ihfft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2, -1], str? norm=None) -> Tensor
    aten::fft_ihfftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor
    aten::fft_irfft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2, -1], str? norm=None) -> Tensor
    aten::fft_irfftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor
    aten::fft_hfft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2, -1], str? norm=None) -> Tensor
    aten::fft_hfftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor
    """
    value: ir.Value = transform(op, self, s, dim, norm, forward=forward)
    return value


_TRANSFORMS = (
    ("fft", _transformed, True),
    ("ifft", _transformed, False),
    ("rfft", _spectrum, True),
    ("ihfft", _conjugate_spectrum, False),
    ("irfft", _signal, False),
    ("hfft", _signal_of_conjugate, True),
)
"""The stem of the operators, their function, and whether it transforms forwards."""


def _translations() -> Iterator[Translation]:
    for stem, transform, forward in _TRANSFORMS:
        is_real = stem in ("irfft", "hfft")
        for function, names in ((_along_axis, (stem,)), (_along_axes, (f"{stem}2", f"{stem}n"))):
            row = partial(function, transform=transform, forward=forward)
            targets = tuple(f"aten::fft_{name}" for name in names)
            # Of a real result, the spectrum may be real too.
            for complex in (False, True) if is_real else (True,):
                yield Translation(row, targets, _resizes(halved=is_real), complex=complex)


TRANSLATIONS = tuple(_translations())
