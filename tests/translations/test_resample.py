"""Resizing without Resize, where ONNX Runtime differs from torch: antialiasing with aligned corners, float64, uint8."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from .harness import Case, T, run

aten = torch.ops.aten
F64, U8 = torch.float64, torch.uint8


def _rows() -> Iterator[Case]:
    for mode, name in (("bilinear", "bilinear2d"), ("bicubic", "bicubic2d")):
        for corners in (False, True):
            for dtype, antialias in ((torch.float32, True), (F64, True), (U8, True), (U8, False)):
                if dtype == torch.float32 and not corners:
                    continue
                target = f"aten._upsample_{name}_aa.vec" if antialias else f"aten.upsample_{name}.vec"
                high = 256.0 if dtype == U8 else 2.0
                what = f"{str(dtype)[6:]}{' corners' if corners else ''}"

                def resized(x, size, mode=mode, antialias=antialias, corners=corners):
                    return F.interpolate(x, size, mode=mode, antialias=antialias, align_corners=corners)

                dynamic = T(("n", 3, "h", "w"), dtype, 0.0, high)
                yield Case(target, lambda x, resized=resized: resized(x, (3, 5)), (dynamic,), f"{what} smaller")
                larger, much = T((2, 5, 6, 9), dtype, 0.0, high), T((1, 2, 1, 90), dtype, 0.0, high)
                yield Case(target, lambda x, resized=resized: resized(x, (13, 9)), (larger,), f"{what} larger")
                yield Case(target, lambda x, resized=resized: resized(x, (1, 7)), (much,), f"{what} much smaller")


_HALF_SIZE = (None, False, [0.7, 1.3])
_BYTES, _DOUBLES = T(("n", 3, "h", "w"), U8, 0, 256), T(("n", 3, "h", "w"), F64)
_INFINITE = torch.tensor([[[[float("inf"), 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]]]])

CASES = (
    *_rows(),
    Case(
        "aten._upsample_bilinear2d_aa.vec", lambda x: aten._upsample_bilinear2d_aa(x, *_HALF_SIZE), (_BYTES,), "factors"
    ),
    Case(
        "aten._upsample_bicubic2d_aa.vec", lambda x: aten._upsample_bicubic2d_aa(x, *_HALF_SIZE), (_DOUBLES,), "factors"
    ),
    Case("aten.upsample_bilinear2d.vec", lambda x: aten.upsample_bilinear2d(x, *_HALF_SIZE), (_BYTES,), "byte factors"),
    Case("aten.upsample_bicubic2d.vec", lambda x: aten.upsample_bicubic2d(x, *_HALF_SIZE), (_BYTES,), "byte factors"),
    Case(
        "aten._upsample_bilinear2d_aa.vec",
        lambda x: F.interpolate(x, scale_factor=1.1, mode="bilinear", antialias=True),
        (T((2, 3, "h", 9), F64),),
        "a size that stays in spite of a factor",
    ),
    Case(
        "aten.upsample_bilinear2d.vec",
        lambda x: F.interpolate(x, scale_factor=1.05, mode="bilinear") + 1,
        (T((2, 3, 8, 9), U8, 0, 200),),
        "sizes that stay in spite of a factor",
        ops=("Add",),
    ),
    Case(
        "aten._upsample_bilinear2d_aa.default",
        lambda x: aten._upsample_bilinear2d_aa.default(x, [3, 5], True, 0.5, 0.4),
        (_DOUBLES,),
    ),
    Case(
        "aten._upsample_bicubic2d_aa.default",
        lambda x: aten._upsample_bicubic2d_aa.default(x, [3, 5], False),
        (T((2, 3, 8, 9)),),
        opset=11,
    ),
    Case(
        "aten.upsample_bilinear2d.default",
        lambda x: aten.upsample_bilinear2d.default(x, [3, 5], False),
        (_BYTES,),
        "bytes",
        opset=13,
    ),
    Case(
        "aten.upsample_bicubic2d.default",
        lambda x: aten.upsample_bicubic2d.default(x, [9, 15], False),
        (_BYTES,),
        "bytes",
    ),
    Case(
        "aten._upsample_bicubic2d_aa.vec",
        lambda x: F.interpolate(x, (1, 3), mode="bicubic", antialias=True),
        (_INFINITE,),
        "infinite",
        opset=17,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_resample(case: Case) -> None:
    run(case)
