from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import fxonnx
from tests.models.torchvision_shim import import_torchvision

from .harness import Case, T, run

import_torchvision()

from .torchvision_kernels import make_operators_run  # noqa: E402  # needs an importable torchvision

make_operators_run()

import fxonnx._capture.patches.torchvision_detection  # noqa: E402  # brings operators of its own

OPS = torch.ops.torchvision
DOUBLE = torch.float64

# batch index, left, top, right, bottom: inside, across the borders, beyond them, outside, empty, small
ROIS = torch.tensor(
    [
        [0, 1.2, 0.7, 6.1, 5.4],
        [1, -2.5, -1.5, 4.0, 12.5],
        [0, 3.0, 2.0, 40.0, 30.0],
        [1, 50.0, 50.0, 60.0, 60.0],
        [0, 4.0, 4.0, 4.0, 4.0],
        [1, 2.5, 0.5, 3.5, 1.5],
    ]
)
UPSIDE_DOWN = torch.tensor([[1, 6.0, 7.0, 2.0, 1.5], [0, 1.0, 7.0, 6.0, 1.5]])
IMAGE = T(("n", 3, "h", "w"))
SENSITIVE = T(("n", 12, "h", "w"))
BOXES = torch.tensor(
    [
        [0.0, 0.0, 2.0, 2.0],
        [0.0, 0.0, 2.0, 2.0],
        [1.0, 0.0, 3.0, 2.0],
        [10.0, 10.0, 12.0, 12.0],
        [10.0, 10.0, 12.0, 13.0],
        [5.0, 5.0, 5.0, 5.0],
    ]
)
SCORES = torch.tensor([0.5, 0.5, 0.9, 0.1, 0.3, 0.2])
CLASSES = torch.tensor([0, 1, 0, 1, 1, 0])


def _align(ratio: int, aligned: bool, scale: float = 0.5) -> Callable[..., Any]:
    return lambda image, rois: OPS.roi_align(image, rois, scale, 3, 2, ratio, aligned)


_POOL = partial(OPS.roi_pool, spatial_scale=1.0, pooled_height=3, pooled_width=2)


def _first(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda image, rois: function(image, rois)[0]


class Deform(torch.nn.Module):
    def __init__(self, groups: int, offset_groups: int, use_mask: bool, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(6, 4 // groups, 3, 2, generator=generator, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.randn(6, generator=generator, dtype=dtype))
        self.numbers = (2, 1, 1, 2, 1, 2, groups, offset_groups, use_mask)

    def forward(self, image: torch.Tensor, offset: torch.Tensor, mask: torch.Tensor) -> Any:
        return OPS.deform_conv2d(image, self.weight, offset, mask, self.bias, *self.numbers)


def _deform_inputs(offset_groups: int, dtype: torch.dtype = torch.float32) -> tuple[T, T, T]:
    windows = 6 * offset_groups
    return T(("n", 4, 7, 9), dtype), T(("n", 2 * windows, 4, 11), dtype), T(("n", windows, 4, 11), dtype)


CASES = (
    *(
        Case("torchvision.nms.default", lambda b, s, t=threshold: OPS.nms(b, s, t), (BOXES, SCORES), f"{threshold}")
        # 1/3 is the overlap of the first and the third box, 2/3 that of the fourth and the fifth.
        for threshold in (0.0, 0.1, 1 / 3, 0.5, 2 / 3, 1.0, 1.5)
    ),
    Case("torchvision.nms.default", lambda b, s: OPS.nms(b, s, 0.5), (BOXES[:0], SCORES[:0]), "empty"),
    *(
        Case(
            "fxonnx.batched_nms.default",
            lambda b, s, c, t=threshold: torch.ops.fxonnx.batched_nms(b, s, c, t),
            (BOXES, SCORES, CLASSES),
            f"{threshold}",
        )
        for threshold in (0.1, 0.5, 1.0)
    ),
    *(
        Case(
            "torchvision.roi_align.default",
            _align(ratio, aligned),
            (IMAGE, torch.cat([ROIS, UPSIDE_DOWN])),
            f"{ratio}-{'aligned' if aligned else 'plain'}-{opset}",
            opset,
        )
        for opset in (13, 20, 23)
        for ratio in (-1, 0, 2)
        for aligned in (True, False)
    ),
    Case("torchvision.roi_align.default", _align(-1, True), (IMAGE, ROIS[:0]), "no-regions", 23),
    Case("torchvision.roi_align.default", _align(2, True), (T(("n", 3, "h", "w"), DOUBLE), ROIS.double()), "double"),
    *(
        Case(
            "torchvision.roi_pool.default",
            _first(partial(OPS.roi_pool, spatial_scale=scale, pooled_height=3, pooled_width=2)),
            (IMAGE, ROIS),
            f"{scale}-{opset}",
            opset,
        )
        for opset in (13, 20, 23)
        for scale in (0.5, 1.0)
    ),
    Case("torchvision.roi_pool.default", _first(_POOL), (T(("n", 3, "h", "w"), DOUBLE), ROIS.double()), "double"),
    Case(
        "torchvision.roi_pool.default",
        _first(_POOL),
        (torch.full((2, 1, 5, 5), torch.nan), ROIS),
        "nan",
        23,
        numerics="exact",
    ),
    *(
        Case(
            "torchvision.ps_roi_align.default",
            lambda image, rois, r=ratio: OPS.ps_roi_align(image, rois, 0.5, 3, 2, r),
            (SENSITIVE, ROIS),
            f"{ratio}-{opset}",
            opset,
        )
        for ratio in (-1, 2)
        for opset in (13, 23)
    ),
    *(
        Case(
            "torchvision.ps_roi_pool.default",
            lambda image, rois, s=scale: OPS.ps_roi_pool(image, rois, s, 3, 2),
            (SENSITIVE, ROIS),
            f"{scale}-{opset}",
            opset,
        )
        for scale in (0.5, 1.0)
        for opset in (13, 23)
    ),
    Case("torchvision.deform_conv2d.default", Deform(1, 1, True), _deform_inputs(1), "mask"),
    Case("torchvision.deform_conv2d.default", Deform(2, 2, True), _deform_inputs(2), "groups", 23),
    Case("torchvision.deform_conv2d.default", Deform(1, 2, False), _deform_inputs(2), "no-mask"),
    Case("torchvision.deform_conv2d.default", Deform(1, 1, True, DOUBLE), _deform_inputs(1, DOUBLE), "double"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_eager(case: Case) -> None:
    run(case)


def test_roi_pool_cannot_return_the_positions_of_the_maxima() -> None:
    class Model(torch.nn.Module):
        def forward(self, image: torch.Tensor, rois: torch.Tensor) -> Any:
            return OPS.roi_pool(image, rois, 1.0, 2, 2)[1] + 1

    with pytest.raises(fxonnx.ExportError):
        fxonnx.export(Model(), (torch.ones(2, 3, 4, 4), ROIS))


def test_float64_boxes_and_negative_thresholds_are_rejected() -> None:
    class Model(torch.nn.Module):
        def __init__(self, threshold: float) -> None:
            super().__init__()
            self.threshold = threshold

        def forward(self, boxes: torch.Tensor, scores: torch.Tensor) -> Any:
            return OPS.nms(boxes, scores, self.threshold)

    with pytest.raises(fxonnx.UnsupportedOperatorError, match="NonMaxSuppression accepts FLOAT only"):
        fxonnx.export(Model(0.5), (BOXES.double(), SCORES.double()))
    with pytest.raises(fxonnx.UnsupportedOperatorError, match="negative threshold"):
        fxonnx.export(Model(-0.5), (BOXES, SCORES))
