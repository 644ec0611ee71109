"""Interpolation of images and signals."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import sympy
import torch
from torch.nn import functional as F

from fxonnx_translations._aten.resize import interpolate
from fxonnx_translations._registry import OpCall, build_registry

from .harness import Case, T, run

aten = torch.ops.aten

SIGNAL, IMAGE, VOLUME = T(("n", 2, "w")), T(("n", 2, "h", "w")), T((1, 2, 3, "h", "w"))
FIXED = T((1, 2, 14, 20))


def resized(**options: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: F.interpolate(x, **options)


def like(mode: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda x, y: F.interpolate(x, size=y.shape[2:], mode=mode)


def halves(dtype: torch.dtype, **options: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: F.interpolate(x.to(dtype), **options).float()


def vec_cases() -> list[Case]:
    """The overloads that interpolate() calls, with every way to specify the size."""
    kinds = (
        ("aten.upsample_nearest1d.vec", "nearest", SIGNAL),
        ("aten.upsample_nearest2d.vec", "nearest", IMAGE),
        ("aten.upsample_nearest3d.vec", "nearest", VOLUME),
        ("aten._upsample_nearest_exact1d.vec", "nearest-exact", SIGNAL),
        ("aten._upsample_nearest_exact2d.vec", "nearest-exact", IMAGE),
        ("aten._upsample_nearest_exact3d.vec", "nearest-exact", VOLUME),
        ("aten.upsample_linear1d.vec", "linear", SIGNAL),
        ("aten.upsample_bilinear2d.vec", "bilinear", IMAGE),
        ("aten.upsample_trilinear3d.vec", "trilinear", VOLUME),
        ("aten.upsample_bicubic2d.vec", "bicubic", IMAGE),
    )
    cases = []
    for target, mode, x in kinds:
        ops = ("Unsqueeze", "Resize", "Squeeze") if mode == "linear" else ("Resize",)
        cases += [
            Case(target, resized(scale_factor=2, mode=mode), (x,), "twice", ops=ops),
            Case(target, resized(scale_factor=0.5, mode=mode), (x,), "half", ops=ops),
            Case(target, resized(scale_factor=1, mode=mode), (T((1, 2, 3, 4, 5)[: len(x.shape)]),), "same"),
            Case(target, resized(size=[7] * (len(x.shape) - 2), mode=mode), (x,), "size"),
            Case(target, resized(scale_factor=2, mode=mode), (x,), "opset 11", opset=11),
        ]
        if x is IMAGE:
            cases += [
                Case(target, resized(scale_factor=1.5, mode=mode), (x,), "one and a half"),
                Case(target, resized(scale_factor=1.7, recompute_scale_factor=True, mode=mode), (x,), "recomputed"),
            ]
        if "linear" in mode or mode == "bicubic":
            cases += [
                Case(target, resized(scale_factor=2, mode=mode, align_corners=True), (x,), "aligned", ops=ops),
                Case(
                    target,
                    resized(size=[5] * (len(x.shape) - 2), mode=mode, align_corners=True),
                    (x,),
                    "size aligned",
                ),
                Case(target, resized(size=[1] * (len(x.shape) - 2), mode=mode, align_corners=True), (x,), "to one"),
            ]
    return cases


def nearest_cases() -> list[Case]:
    """Where Resize would pick other elements than torch."""
    cases = []
    for target, mode in (
        ("aten.upsample_nearest2d.vec", "nearest"),
        ("aten._upsample_nearest_exact2d.vec", "nearest-exact"),
    ):
        cases += [
            Case(target, resized(size=(1, 12), mode=mode), (FIXED,), "rounding", ops=("Gather", "Gather")),
            Case(target, resized(scale_factor=0.7, mode=mode), (IMAGE,), "0.7"),
            Case(target, resized(scale_factor=(2.25, 1.3), mode=mode), (IMAGE,), "2.25 and 1.3"),
            Case(target, resized(scale_factor=(1.05, 2.1), mode=mode), (T((1, 2, 3, 4)),), "nearly whole"),
            Case(target, resized(scale_factor=(1.1, 2), mode=mode), (T((1, 2, 4, "h")),), "stays"),
            Case(target, resized(scale_factor=(1.1, 2), mode=mode), (T((1, 2, 4, 64)),), "stays in a large image"),
            Case(target, like(mode), (IMAGE, T(("n", 1, "m", "t"))), "like another"),
            Case(target, like(mode), (IMAGE, T(("n", 1, "m", "t"))), "like another at opset 11", opset=11),
            Case(target, resized(size=(5, 6), mode=mode), (T((1, 2, 3, 4), torch.float64),), "float64"),
            Case(target, resized(scale_factor=2, mode=mode), (T((1, 2, 3, 4), torch.float16),), "float16"),
            Case(target, resized(scale_factor=2, mode=mode), (T((1, 2, 3, 4), torch.uint8, 0, 255),), "uint8"),
            Case(target, halves(torch.bfloat16, scale_factor=2, mode=mode), (IMAGE,), "bfloat16"),
            Case(target, resized(scale_factor=2, mode=mode), (torch.full((1, 1, 2, 2), float("nan")),), "NaN"),
        ]
    return cases


def antialias_cases() -> list[Case]:
    cases = []
    for target, mode in (
        ("aten._upsample_bilinear2d_aa.vec", "bilinear"),
        ("aten._upsample_bicubic2d_aa.vec", "bicubic"),
    ):
        cases += [
            Case(target, resized(scale_factor=0.5, mode=mode, antialias=True), (IMAGE,), "half", ops=("Resize",)),
            Case(target, resized(scale_factor=2, mode=mode, antialias=True), (IMAGE,), "twice", ops=("Resize",)),
            Case(target, resized(size=(3, 5), mode=mode, antialias=True), (IMAGE,), "size"),
            Case(target, resized(size=(3, 5), mode=mode, antialias=True), (IMAGE,), "size at opset 18", opset=18),
        ]
    return cases


def explicit_cases() -> list[Case]:
    """The overloads with sizes and scales, which interpolate() does not call."""
    cases = []
    kinds: tuple[tuple[str, tuple[Any, ...], T], ...] = (
        ("upsample_nearest1d", (), T((2, 2, 5))),
        ("upsample_nearest2d", (), T((2, 2, 4, 5))),
        ("upsample_nearest3d", (), T((2, 2, 3, 4, 5))),
        ("_upsample_nearest_exact1d", (), T((2, 2, 5))),
        ("_upsample_nearest_exact2d", (), T((2, 2, 4, 5))),
        ("_upsample_nearest_exact3d", (), T((2, 2, 3, 4, 5))),
        ("upsample_linear1d", (False,), T((2, 2, 5))),
        ("upsample_bilinear2d", (False,), T((2, 2, 4, 5))),
        ("upsample_trilinear3d", (False,), T((2, 2, 3, 4, 5))),
        ("upsample_bicubic2d", (False,), T((2, 2, 4, 5))),
        ("_upsample_bilinear2d_aa", (False,), T((2, 2, 4, 5))),
        ("_upsample_bicubic2d_aa", (False,), T((2, 2, 4, 5))),
    )
    for name, corners, x in kinds:
        overload = getattr(aten, name).default
        count = len(x.shape) - 2
        size = [int(dim) * 2 + 1 for dim in x.shape[2:]]
        scaled = [int(int(dim) * 2.3) for dim in x.shape[2:]]
        cases += [
            Case(str(overload), lambda x, f=overload, s=size, c=corners: f(x, s, *c), (x,)),
            Case(
                str(overload),
                lambda x, f=overload, s=scaled, c=corners, k=count: f(x, s, *c, *[2.3] * k),
                (x,),
                "scales",
            ),
        ]
    return cases


CASES = (
    *vec_cases(),
    *nearest_cases(),
    *antialias_cases(),
    *explicit_cases(),
    Case("aten.upsample_bilinear2d.vec", like("bilinear"), (IMAGE, T(("n", 1, "m", "t"))), "like another"),
    Case(
        "aten.upsample_bilinear2d.vec",
        like("bilinear"),
        (IMAGE, T(("n", 1, "m", "t"))),
        "like another at opset 13",
        opset=13,
    ),
    Case("aten.upsample_bilinear2d.vec", resized(size=7, mode="bilinear"), (IMAGE,), "size at opset 13", opset=13),
    Case("aten.upsample_bilinear2d.vec", resized(scale_factor=3, mode="bilinear"), (IMAGE,), "three times"),
    Case("aten.upsample_bilinear2d.vec", resized(scale_factor=(0.7, 1.0), mode="bilinear"), (IMAGE,), "0.7 and 1"),
    Case("aten.upsample_bilinear2d.vec", resized(scale_factor=1.2, mode="bilinear"), (IMAGE,), "1.2"),
    Case("aten.upsample_bilinear2d.vec", resized(scale_factor=1.2, mode="bilinear"), (T((1, 1, 2, 3)),), "stays"),
    Case(
        "aten.upsample_bilinear2d.vec",
        resized(scale_factor=(1.2, 2), mode="bilinear"),
        (T((1, 1, 2, 3)),),
        "half stays",
    ),
    Case(
        "aten.upsample_bilinear2d.vec", resized(scale_factor=1.2, mode="bilinear"), (T((1, 1, "m", "t")),), "may stay"
    ),
    Case("aten.upsample_bicubic2d.vec", resized(scale_factor=1.2, mode="bicubic"), (T((1, 1, 2, 3)),), "stays"),
    Case("aten.upsample_bicubic2d.vec", resized(scale_factor=1.2, mode="bicubic"), (T((1, 1, "m", "t")),), "may stay"),
    Case(
        "aten._upsample_bicubic2d_aa.vec",
        resized(scale_factor=1.2, mode="bicubic", antialias=True),
        (T((1, 1, "m", "t")),),
        "may stay",
    ),
    Case("aten.upsample_bicubic2d.vec", resized(scale_factor=(1.3, 2.7), mode="bicubic"), (IMAGE,), "1.3 and 2.7"),
    Case("aten.upsample_linear1d.vec", resized(scale_factor=1 / 3, mode="linear"), (SIGNAL,), "a third"),
    Case(
        "aten.upsample_linear1d.vec", resized(scale_factor=1.1, mode="linear"), (SIGNAL,), "1.1 at opset 11", opset=11
    ),
    Case(
        "aten.upsample_bicubic2d.default",
        lambda x: aten.upsample_bicubic2d.default(x, [2, 3], False, 1.2, 1.2),
        (T((1, 1, 2, 3)),),
        "stays",
    ),
    Case("aten.upsample_trilinear3d.vec", resized(scale_factor=1.2, mode="trilinear"), (VOLUME,), "1.2"),
    Case(
        "aten._upsample_bilinear2d_aa.vec",
        resized(scale_factor=0.3, mode="bilinear", antialias=True),
        (IMAGE,),
        "0.3",
        ops=("Resize",),
    ),
    Case(
        "aten.upsample_bilinear2d.vec", resized(size=7, mode="bilinear"), (T((1, 2, 3, 4), torch.float64),), "float64"
    ),
    Case("aten.upsample_bicubic2d.vec", resized(size=7, mode="bicubic"), (T((1, 2, 3, 4), torch.float64),), "float64"),
    Case("aten.upsample_bicubic2d.vec", like("bicubic"), (IMAGE, T(("n", 1, "m", "t"))), "like another"),
    Case(
        "aten.upsample_bilinear2d.vec",
        resized(scale_factor=0.7, mode="bilinear", align_corners=True),
        (IMAGE,),
        "aligned, 0.7",
    ),
    Case("aten.upsample_bilinear2d.vec", resized(scale_factor=0.7, mode="bilinear"), (FIXED,), "0.7", ops=("Resize",)),
    Case(
        "aten.upsample_bilinear2d.vec",
        resized(scale_factor=2, mode="bilinear"),
        (T((1, 2, 3, 4), torch.float16),),
        "float16",
        atol=2e-3,
    ),
    Case(
        "aten.upsample_bilinear2d.vec",
        halves(torch.bfloat16, scale_factor=2, mode="bilinear"),
        (IMAGE,),
        "bfloat16",
        rtol=1e-2,
        atol=1e-2,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_resize(case: Case) -> None:
    run(case)


SYMBOLIC = sympy.Symbol("h")


def _reason(
    shape: tuple[Any, ...],
    output_size: list[Any] | None,
    factors: list[float | None],
    target: Any = aten.upsample_bilinear2d.vec,
    opset: int = 20,
    **others: Any,
) -> str | None:
    """Return the reason with which the translation rejects a call."""
    arguments = {
        "input": SimpleNamespace(dtype=others.get("dtype", torch.float32), shape=shape),
        "output_size": output_size,
        "align_corners": others.get("align_corners", False),
        "scale_factors": factors,
    }
    _, reasons = build_registry([interpolate]).find(OpCall(target, arguments, opset))
    return reasons[0] if reasons else None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"opset": 17}, "Resize has antialiasing from opset 18 on"),
        ({"align_corners": True}, "ONNX Runtime's antialiasing does not align corners as torch does"),
        ({"dtype": torch.float64}, "ONNX Runtime does not interpolate torch.float64 as torch does"),
        ({}, None),
    ],
)
def test_antialiasing_is_left_to_weighted_sums(options: dict[str, Any], reason: str | None) -> None:
    assert _reason((1, 1, 4, 4), [3, 3], [None, None], aten._upsample_bilinear2d_aa.vec, **options) == reason


@pytest.mark.parametrize(
    ("shape", "output_size", "factors", "reason"),
    [
        ((1, 1, SYMBOLIC, 4), None, [2.0, 2.0], None),
        ((1, 1, SYMBOLIC, 4), None, [2.0, None], "scale factors for some axes only"),
        ((1, 1, SYMBOLIC, 4), None, [1.3, 1.3], None),
        (
            (1, 1, SYMBOLIC, 4),
            [7, 6],
            [1.5, 1.5],
            "scale factor 1.5 of an axis of symbolic size with a given output size",
        ),
        ((1, 1, 2, 2), [3, 3], [1.3, 1.3], "scale factor 1.3 of an axis of size 2 gives another size in ONNX"),
        ((1, 1, 2, 2), None, [1.3, 1.3], None),
    ],
)
def test_sizes_that_onnx_may_round_differently_are_rejected(
    shape: tuple[Any, ...], output_size: list[Any] | None, factors: list[float | None], reason: str | None
) -> None:
    assert _reason(shape, output_size, factors) == reason
