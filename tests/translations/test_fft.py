"""Discrete Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from .harness import Case, T, run

C64, C128, F64 = torch.complex64, torch.complex128, torch.float64
_TO_COMPLEX = {"return_complex": True}
_SIGNAL = T((100,))
_Z = T(("n", 12), C64)


def _istft(n_fft: int, **options: Any) -> Callable[..., torch.Tensor]:
    """An inverse short-time transform whose windows add up to more than 0 everywhere."""

    def function(spectra: torch.Tensor) -> torch.Tensor:
        given = dict(options)
        window = torch.hann_window(given.get("win_length", n_fft), dtype=spectra.real.dtype) + 0.1
        result = torch.istft(spectra, n_fft, window=window, **given)
        return torch.view_as_real(result) if result.is_complex() else result

    return function


def _istfts() -> Iterator[Case]:
    for name, n_fft, bins, options in (
        ("quarters", 16, 9, {}),
        ("no divisor", 15, 8, {"hop_length": 4}),
        ("far apart", 12, 7, {"hop_length": 12}),
        ("every element", 6, 4, {"hop_length": 1}),
        ("short window", 16, 9, {"win_length": 9, "hop_length": 4}),
        ("not centered", 16, 9, {"center": False}),
        ("normalized", 16, 9, {"normalized": True}),
        ("two-sided", 16, 16, {"onesided": False}),
        ("two-sided by size", 16, 16, {}),
        ("complex", 16, 16, {"onesided": False, "return_complex": True}),
        ("cut", 16, 9, {"length": 5}),
        ("longer than all frames", 16, 9, {"length": 100}),
        ("longer, not centered", 16, 9, {"length": 40, "center": False}),
    ):
        yield Case("aten.istft.default", _istft(n_fft, **options), (T(("n", bins, "m"), C64),), name, atol=1e-4)
    yield Case("aten.istft.default", _istft(16), (T((9, "m"), C64),), "no batch", atol=1e-4)
    yield Case(
        "fxonnx.istft.default",
        lambda spectra: torch.ops.fxonnx.istft(
            spectra, 8, 2, None, torch.hann_window(8), True, False, None, 2 * spectra.shape[-1] + 5, False
        ),
        (T((2, 5, "m"), C64),),
        atol=1e-4,
    )
    yield Case("aten.istft.default", _istft(16), (T((2, 9, 7), C64),), "static", atol=1e-4)
    yield Case("aten.istft.default", _istft(10), (T((2, 6, "m"), C128),), "double", opset=17)
    yield Case("aten.istft.default", _istft(10), (T((2, 6, "m"), C64),), "opset 13", opset=13, atol=1e-4)
    yield Case(
        "aten.istft.default",
        lambda spectra: torch.istft(spectra, 8, 4, window=torch.ones(8), center=False),
        (T((2, 5, "m"), C64),),
        "no window",
        atol=1e-4,
    )


def _windows() -> Iterator[Case]:
    backward = torch.ops.aten.unfold_backward
    for size, step in ((1, 1), (4, 1), (4, 3), (3, 2), (3, 3), (3, 5)):
        yield Case(
            "aten.unfold_backward.default",
            lambda x, size=size, step=step: backward(x.unfold(1, size, step) * 2, x.shape, 1, size, step),
            (T((2, "n", 3)),),
            f"{size} by {step}",
        )
    yield Case(
        "aten.unfold_backward.default",
        lambda x: backward(x.unfold(-1, 4, 3), x.shape, -1, 4, 3),
        (T(("n",)),),
        "vector",
    )
    yield Case(
        "aten.unfold_backward.default",
        lambda x: backward(x.unfold(0, 2, 1).double(), [9, 3], 0, 2, 1),
        (T((9, 3)),),
        "static",
        opset=11,
    )


CASES = (
    *_istfts(),
    *_windows(),
    *(
        Case(
            f"aten.fft_{name}.default",
            lambda x, f=name, n=length, norm=norm: getattr(torch.fft, f)(x, n, norm=norm),
            (T((2, "n"), torch.float32 if name in ("rfft", "ihfft") else C64),),
            f"{length} of a dynamic size {norm}",
        )
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
        for length, norm in ((1, None), (8, None), (7, "ortho"), (8, "forward"))
    ),
    *(
        Case(
            f"aten.fft_{name}.default",
            lambda x, f=name, s=sizes: getattr(torch.fft, f)(x, s),
            (T((2, "m", "n"), torch.float32 if "rfft" in name[:4] or "ihfft" in name else C64),),
            f"{sizes} of dynamic sizes",
        )
        for name in (f"{kind}{count}" for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft") for count in "2n")
        for sizes in ((3, 8), (6, 5))
    ),
    *(
        Case(
            f"aten.fft_{name}.default", lambda x, f=name: getattr(torch.fft, f)(x, n=8), (T((2, "n")),), "real, dynamic"
        )
        for name in ("fft", "ifft", "irfft", "hfft")
    ),
    Case("aten.fft_irfftn.default", lambda x: torch.fft.irfftn(x, (3, 8)), (T((2, "m", "n")),), "real, dynamic"),
    Case("aten.fft_hfft2.default", lambda x: torch.fft.hfft2(x, (3, 8)), (T((2, "m", "n")),), "real, dynamic"),
    Case(
        "aten.fft_irfft.default",
        lambda x: torch.fft.irfft(x, x.shape[0]),
        (T(("m", "n"), C64),),
        "of a dynamic size to another one",
    ),
    Case("aten._fft_c2c.default", lambda x: torch.ops.aten._fft_c2c(x, [1], 0, True), (_Z,)),
    Case("aten._fft_c2c.default", lambda x: torch.ops.aten._fft_c2c(x, [0, 1], 2, False), (_Z,), "dynamic length"),
    Case("aten._fft_c2c.default", lambda x: torch.ops.aten._fft_c2c(x, [1], 1, False), (T((2, 1000), C64),), "long"),
    Case("aten._fft_c2c.default", lambda x: torch.ops.aten._fft_c2c(x, [0], 1, True), (T((16,), C128),), "double"),
    Case("aten._fft_c2c.default", lambda x: torch.ops.aten._fft_c2c(x, [1], 0, True), (_Z,), "opset 13", opset=13),
    Case("aten._fft_c2c.default", lambda x: torch.ops.aten._fft_c2c(x, [0, 1], 0, False), (_Z,), "opset 18", opset=18),
    Case("aten._fft_r2c.default", lambda x: torch.ops.aten._fft_r2c(x, [1], 0, True), (T(("n", 13)),)),
    Case(
        "aten._fft_r2c.default", lambda x: torch.ops.aten._fft_r2c(x, [0, 1], 1, False), (T(("n", 13)),), "both sides"
    ),
    Case(
        "aten._fft_r2c.default", lambda x: torch.ops.aten._fft_r2c(x, [1, 0], 2, True), (T(("n", 8)),), "dynamic length"
    ),
    Case("aten._fft_r2c.default", lambda x: torch.ops.aten._fft_r2c(x, [1], 0, True), (T(("n", 13)),), "old", opset=13),
    Case("aten._fft_c2r.default", lambda x: torch.ops.aten._fft_c2r(x, [1], 2, 13), (T(("n", 7), C64),)),
    Case("aten._fft_c2r.default", lambda x: torch.ops.aten._fft_c2r(x, [0, 1], 0, 12), (T(("n", 7), C64),), "even"),
    Case(
        "aten._fft_c2r.default",
        lambda x: torch.ops.aten._fft_c2r(x, [0], 2, 2 * (x.shape[0] - 1)),
        (T(("n", 2), C64),),
        "dynamic length",
    ),
    *(
        case
        for name in ("irfft", "hfft")
        for length in (None, 9, 16, 21, 22, 23, 24, 40)
        for case in (
            Case(
                f"aten.fft_{name}.default", lambda x, f=name, n=length: getattr(torch.fft, f)(x, n), (_Z,), f"{length}"
            ),
            Case(
                f"aten.fft_{name}.default",
                lambda x, f=name, n=length: getattr(torch.fft, f)(x, n, 0, "ortho"),
                (T((12, 3), C64),),
                f"{length}, first axis",
            ),
        )
    ),
    *(
        Case(
            "aten.fft_ihfft.default",
            partial(torch.fft.ihfft, n=length, dim=dim, norm=norm),
            (T(("n", 12), dtype),),
            name,
        )
        for length in (None, 8, 9, 12, 15, 16)
        for dim, norm, dtype, name in (
            (1, None, torch.float32, f"{length}"),
            (-1, "ortho", F64, f"{length}, float64"),
            (-1, "forward", torch.int64, f"{length}, int64"),
        )
    ),
    Case("aten.fft_irfft2.default", lambda x: torch.fft.irfft2(x, (8, 12)), (T((6, 9)),), "real, cropped and padded"),
    Case("aten.fft_irfftn.default", lambda x: torch.fft.irfftn(x, (5, 12)), (T((2, 6, 9), C64),), "cropped"),
    Case("aten.fft_hfft2.default", lambda x: torch.fft.hfft2(x, (8, 12)), (T((6, 9)),), "real, cropped and padded"),
    Case("aten.fft_fft2.default", lambda x: torch.fft.fft2(x, (8, 12)), (T(("n", 6, 9)),), "real, cropped and padded"),
    Case("aten.fft_ifftn.default", lambda x: torch.fft.ifftn(x), (T((4, 6, 9)),), "real"),
    Case("aten.fft_irfft.default", lambda x: torch.fft.irfft(x, 16), (T((2, 9), C128),), "double", opset=18),
    Case("aten.fft_irfft.default", lambda x: torch.fft.irfft(x, 16, norm="forward"), (_Z,), "forward"),
    Case("aten.fft_irfft.default", lambda x: torch.fft.irfft(x, 9), (_Z,), "opset 13", opset=13),
    Case("aten.fft_irfft.default", lambda x: torch.fft.irfft(x, dim=0), (_Z,), "dynamic axis"),
    Case("aten.fft_hfft.default", lambda x: torch.fft.hfft(x, norm="forward"), (_Z,), "forward"),
    Case("aten.fft_hfft.default", lambda x: torch.fft.hfft(x, norm="ortho"), (_Z,)),
    *(
        Case("aten.stft.default", function, inputs, name, opset)
        for name, function, inputs, opset in (
            (
                "window",
                lambda x: torch.stft(x, 16, 4, window=torch.hann_window(16), **_TO_COMPLEX),
                (T((2, 100)),),
                None,
            ),
            ("one signal", lambda x: torch.stft(x, 16, 4, window=torch.hann_window(16), **_TO_COMPLEX), (_SIGNAL,), 17),
            ("no window", lambda x: torch.stft(x, 8, **_TO_COMPLEX), (_SIGNAL,), None),
            ("short window", lambda x: torch.stft(x, 16, 5, 7, normalized=True, **_TO_COMPLEX), (_SIGNAL,), None),
            (
                "no power of 2",
                lambda x: torch.stft(x, 12, 5, window=torch.hann_window(12), **_TO_COMPLEX),
                (_SIGNAL,),
                None,
            ),
            ("window as input", lambda x, w: torch.stft(x, 12, 3, 9, w, **_TO_COMPLEX), (_SIGNAL, T((9,))), None),
            ("both sides", lambda x: torch.stft(x, 8, onesided=False, center=False, **_TO_COMPLEX), (_SIGNAL,), None),
            ("complex", lambda x: torch.stft(x, 8, center=False, **_TO_COMPLEX), (T((2, 40), C64),), None),
            ("float64", lambda x: torch.stft(x, 12, **_TO_COMPLEX), (T((2, 40), F64),), None),
            ("dynamic batch", lambda x: torch.stft(x, 8, 3, **_TO_COMPLEX), (T(("n", 40)),), None),
            ("dynamic length", lambda x: torch.stft(x, 4, 3, **_TO_COMPLEX), (T((2, "w")),), None),
            ("opset 13", lambda x: torch.stft(x, 8, 3, **_TO_COMPLEX), (T((2, 40)),), 13),
        )
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fft(case: Case) -> None:
    run(case)
