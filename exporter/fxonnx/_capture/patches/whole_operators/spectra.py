"""Shape-only kernels of Fourier transforms of a given length, which is compared with a size, and of inverse STFTs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fxonnx_translations._torch_compat import check

from ...._own_operators import define_operator
from ...function_transforms import computes_gradients
from ..patch import KernelPatch, Patch, TorchFunctionPatch

__all__ = ["SPECTRA_PATCHES"]


def _axes_and_lengths(rank: int, lengths: Any, axes: Any) -> Iterator[tuple[int, Any]]:
    given = [] if lengths is None else list(lengths) if isinstance(lengths, Sequence) else [lengths]
    if axes is None:
        axes = range(rank - len(given) if given else 0, rank)
    chosen = axes if isinstance(axes, Sequence) else [axes]
    for index, axis in enumerate(chosen):
        length = given[index] if index < len(given) else None
        yield axis % rank, None if type(length) is int and length == -1 else length


def _transform(
    kind: str, original: Callable[..., Tensor], self: Tensor, lengths: Any = None, dim: Any = -1, norm: Any = None
) -> Tensor:
    """Functions of ``torch.fft`` with a given length of an axis, which is compared with a dynamic size.

    Args:
        kind: "complex", "spectrum" for the first half of the spectrum of real numbers, or "signal" for its inverse.
        original: torch's kernel.
        self: The input.
        lengths: The length of the axis, or a list of lengths.
        dim: The axis, or a list of axes, or None.
        norm: The normalization.
    """
    shape = list(self.shape)
    pairs = list(_axes_and_lengths(self.dim(), lengths, dim))
    resized = [(axis, length) for axis, length in pairs if length is not None]
    if not any(isinstance(number, torch.SymInt) for axis, length in resized for number in (shape[axis], length)):
        return original(self, lengths, dim, norm)
    for axis, length in resized:
        shape[axis] = length
    last, length = pairs[-1]
    dtype = self.dtype if self.dtype.is_floating_point or self.dtype.is_complex else torch.get_default_dtype()
    if kind == "spectrum":
        shape[last] = shape[last] // 2 + 1
    if kind == "signal":
        shape[last] = 2 * (shape[last] - 1) if length is None else length
    return self.new_empty(shape, dtype=dtype.to_real() if kind == "signal" else dtype.to_complex())


def _of_one_axis(kind: str, original: Callable[..., Tensor], self: Tensor, *args: Any, **options: Any) -> Tensor:
    return _transform(kind, original, self, *_read(args, options, "n", -1))


def _of_two_axes(kind: str, original: Callable[..., Tensor], self: Tensor, *args: Any, **options: Any) -> Tensor:
    return _transform(kind, original, self, *_read(args, options, "s", (-2, -1)))


def _of_axes(kind: str, original: Callable[..., Tensor], self: Tensor, *args: Any, **options: Any) -> Tensor:
    return _transform(kind, original, self, *_read(args, options, "s", None))


def _read(args: Sequence[Any], options: dict[str, Any], lengths: str, dim: Any) -> tuple[Any, Any, Any]:
    """The lengths, the axes and the normalization, with torch's defaults."""
    given = dict(zip((lengths, "dim", "norm"), args, strict=False)) | options
    return given.get(lengths), given.get("dim", dim), given.get("norm")


def _istft_shape(
    self: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Any = None,
    return_complex: bool = False,
) -> Tensor:
    allowed = {None: (n_fft // 2 + 1, n_fft), True: (n_fft // 2 + 1,), False: (n_fft,)}[onesided]
    check(self.dim() in (2, 3), lambda: f"istft of {self.dim()} axes; it takes two or three")
    check(
        any(self.shape[-2] == bins for bins in allowed),
        lambda: f"istft of {self.shape[-2]} frequencies; n_fft={n_fft} has {' or '.join(map(str, allowed))}",
    )
    step = n_fft // 4 if hop_length is None else hop_length
    if length is None:
        length = step * (self.shape[-1] - 1) + (n_fft - 2 * (n_fft // 2) if center else n_fft)
    dtype = self.dtype if return_complex else self.dtype.to_real()
    return self.new_empty([*self.shape[:-2], length], dtype=dtype)


_OPERATOR = define_operator(
    "fxonnx::istft(Tensor self, int n_fft, int? hop_length, int? win_length, Tensor? window, bool center, "
    "bool normalized, bool? onesided, SymInt length, bool return_complex) -> Tensor",
    torch.ops.aten.istft.default,
    _istft_shape,
)


def _istft_kernel(original: Callable[..., Tensor], self: Tensor, *args: Any, **options: Any) -> Tensor:
    """``aten::istft``, whose own kernel writes one element of all frames after the other."""
    return _istft_shape(self, *args, **options)


def _istft(
    original: Callable[..., Tensor],
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Any = None,
    return_complex: bool = False,
) -> Tensor:
    """``torch.istft`` with a dynamic length."""
    arguments = (input, n_fft, hop_length, win_length, window, center, normalized, onesided, length, return_complex)
    if not isinstance(length, torch.SymInt) or computes_gradients():
        return original(*arguments)
    result: Tensor = torch.ops.fxonnx.istft(*arguments)
    return result


SPECTRA_PATCHES: tuple[Patch, ...] = (
    *(
        KernelPatch(
            f"aten::fft_{name}{suffix}",
            partial(function, kind),
            "its kernel compares the given length with the size of the axis",
        )
        for name, kind in (
            ("fft", "complex"),
            ("ifft", "complex"),
            ("rfft", "spectrum"),
            ("ihfft", "spectrum"),
            ("irfft", "signal"),
            ("hfft", "signal"),
        )
        for suffix, function in (("", _of_one_axis), ("2", _of_two_axes), ("n", _of_axes))
    ),
    KernelPatch("aten::istft", _istft_kernel, "its kernel writes one element of all frames after the other"),
    TorchFunctionPatch("torch:istft", _istft, "its C++ function specializes the length", strict=False),
)
"""Rows of the table of patches."""
