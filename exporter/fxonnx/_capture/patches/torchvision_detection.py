"""Replacements of functions of torchvision's detectors that depend on the unbacked number of boxes.

torchvision branches on whether there are boxes and loops over masks. The replacements compute the same results for
every number of boxes, including 0, without control flow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from fxonnx_translations._torch_compat import check, sym_int, sym_max, sym_min

from ..._own_operators import define_operator
from .patch import Patch

__all__ = ["DETECTION_PATCHES"]

Tensor = torch.Tensor


def _nms_by_class(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    kept = torch.zeros_like(scores, dtype=torch.bool)
    for index in torch.unique(idxs):
        (places,) = torch.where(idxs == index)
        kept[places[torch.ops.torchvision.nms(boxes[places], scores[places], iou_threshold)]] = True
    (places,) = torch.where(kept)
    return places[scores[places].sort(descending=True, stable=True)[1]]


def _fake_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    count = torch.library.get_ctx().new_dynamic_size()
    return idxs.new_empty(count, dtype=torch.int64)


_OPERATOR = define_operator(
    "fxonnx::batched_nms(Tensor boxes, Tensor scores, Tensor idxs, float iou_threshold) -> Tensor",
    _nms_by_class,
    _fake_nms,
)


def batched_nms(
    original: Callable[..., Any], boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float
) -> Tensor:
    """``batched_nms`` as one operator; torchvision chooses between coordinate offsets and a loop over the classes."""
    kept: Tensor = torch.ops.fxonnx.batched_nms(boxes, scores, idxs, float(iou_threshold))
    return kept


def multiscale_roi_align(
    original: Callable[..., Any],
    x_filtered: list[Tensor],
    boxes: list[Tensor],
    output_size: list[int],
    sampling_ratio: int,
    scales: list[float],
    mapper: Callable[[list[Tensor]], Tensor],
) -> Tensor:
    """``torchvision.ops.poolers._multiscale_roi_align`` for an unbacked number of regions."""
    from torchvision.ops.poolers import _convert_to_roi_format, roi_align

    rois = _convert_to_roi_format(boxes)
    if len(x_filtered) == 1:
        aligned: Tensor = roi_align(x_filtered[0], rois, output_size, scales[0], sampling_ratio)
        return aligned
    levels = mapper(boxes)
    result = x_filtered[0].new_zeros((rois.shape[0], x_filtered[0].shape[1], *output_size))
    for level, (feature, scale) in enumerate(zip(x_filtered, scales, strict=True)):
        (places,) = torch.where(levels == level)
        pooled = roi_align(feature, rois[places], output_size, scale, sampling_ratio)
        result = result.index_put((places,), pooled.to(result.dtype))
    return result


def infer_scale(original: Callable[..., Any], feature: Tensor, original_size: list[int]) -> float:
    """``_infer_scale``: the power of 2 closest to the ratio of two sizes, with a check of this ratio."""
    exponents = []
    for size, before in zip(feature.shape[-2:], original_size, strict=True):
        exponent = round(math.log2(_example(size) / _example(before)))
        exponents.append(exponent)
        # 2 ** (exponent - 0.5) <= size / before <= 2 ** (exponent + 0.5), in integers.
        lower, upper = 2 ** max(0, 1 - 2 * exponent), 2 ** max(0, -1 - 2 * exponent)
        check(size * size * lower >= before * before * 2 ** max(0, 2 * exponent - 1))
        check(size * size * upper <= before * before * 2 ** max(0, 2 * exponent + 1))
    if exponents[0] != exponents[1]:
        raise ValueError("the scales of the features differ in height and width")
    return float(2 ** exponents[0])


def _example(size: int | torch.SymInt) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else size


def decode_boxes(original: Callable[..., Any], self: Any, rel_codes: Tensor, boxes: list[Tensor]) -> Tensor:
    """``BoxCoder.decode`` without its branch on whether there are boxes."""
    decoded: Tensor = self.decode_single(rel_codes, torch.cat(boxes, dim=0))
    return decoded.reshape(decoded.shape[0], rel_codes.shape[1] // 4, 4)


def paste_masks(
    original: Callable[..., Any], masks: Tensor, boxes: Tensor, img_shape: tuple[int, int], padding: int = 1
) -> Tensor:
    """``paste_masks_in_image`` for all masks at once: interpolation as matrix products with row and column weights.

    Masks [boxes, 1, size, size] and boxes [boxes, 4] in pixels become masks [boxes, 1, height, width].
    """
    size = masks.shape[-1]
    scale = float(size + 2 * padding) / size
    masks = F.pad(masks, (padding,) * 4)[:, 0]
    centers = (boxes[:, 2:] + boxes[:, :2]) * 0.5
    halves = (boxes[:, 2:] - boxes[:, :2]) * 0.5 * scale
    low, high = (centers - halves).to(torch.int64), (centers + halves).to(torch.int64)
    rows = _resampling(low[:, 1], high[:, 1], masks.shape[-2], img_shape[0], masks.dtype)
    columns = _resampling(low[:, 0], high[:, 0], masks.shape[-1], img_shape[1], masks.dtype)
    return (rows @ masks @ columns.transpose(1, 2))[:, None]


def _resampling(low: Tensor, high: Tensor, size: int, length: int, dtype: torch.dtype) -> Tensor:
    """Interpolation weights [boxes, length, size] of mask elements per pixel; zero outside of the box."""
    pixels = torch.arange(length, device=low.device)
    extent = (high - low + 1).clamp(min=1)
    places = (pixels - low[:, None] + 0.5) * (size / extent.to(dtype))[:, None] - 0.5
    places = places.clamp(0, size - 1)
    weights = (1 - (places[:, :, None] - torch.arange(size, device=low.device)).abs()).clamp(min=0)
    inside = (pixels >= low[:, None]) & (pixels < (low + extent)[:, None])
    return torch.where(inside[:, :, None], weights, 0.0)


def find_keypoints(original: Callable[..., Any], maps: Tensor, rois: Tensor) -> tuple[Tensor, Tensor]:
    """``heatmaps_to_keypoints`` for all regions at once, on a grid as large as the largest region.

    torchvision resizes the heatmaps of each region to the region's size, in a loop, and takes the position of their
    maxima.

    Heatmaps [regions, keypoints, size, size] and regions [regions, 4] in pixels become keypoints [regions, keypoints,
    3] with a last coordinate of 1, and scores [regions, keypoints].
    """
    extents = (rois[:, 2:] - rois[:, :2]).clamp(min=1)
    counts = extents.ceil()
    # At least one pixel, also without regions.
    width, height = (torch.cat([counts[:, axis], counts.new_ones(1)]).max().to(torch.int64).item() for axis in (0, 1))
    for length in (width, height):
        check(length >= 1)
    rows, is_row = _bicubic(counts[:, 1], maps.shape[-2], height)
    columns, is_column = _bicubic(counts[:, 0], maps.shape[-1], width)
    grid = rows[:, None] @ maps @ columns.transpose(1, 2)[:, None]
    inside = is_row[:, None, :, None] & is_column[:, None, None, :]
    # The first maximum in the order of rows; flattened grids without regions could not be reshaped in ONNX Runtime.
    largest, x = grid.masked_fill(~inside, -math.inf).max(dim=3)
    scores, y = largest.max(dim=2)
    pixels = torch.stack([x.gather(2, y[:, :, None])[:, :, 0], y], dim=2)
    found = (pixels.to(torch.float32) + 0.5) * (extents / counts)[:, None] + rois[:, None, :2]
    return torch.cat([found, torch.ones_like(found[..., :1])], dim=2), scores


def _bicubic(counts: Tensor, size: int, length: Any) -> tuple[Tensor, Tensor]:
    """Weights [regions, length, size] of bicubic interpolation to a size per region, and which pixels it has."""
    pixels = torch.arange(length, device=counts.device)
    places = (pixels + 0.5) * (size / counts)[:, None] - 0.5
    first = places.floor()
    offset = places - first
    weights = torch.zeros((), dtype=counts.dtype, device=counts.device)
    for tap in range(-1, 3):
        distance = (offset - tap).abs()
        near = ((1.25 * distance - 2.25) * distance) * distance + 1
        far = ((-0.75 * distance + 3.75) * distance - 6) * distance + 3
        source = (first + tap).clamp(0, size - 1)
        weights = weights + torch.where(
            source[:, :, None] == torch.arange(size, device=counts.device),
            torch.where(distance <= 1, near, far)[:, :, None],
            0.0,
        )
    return weights, pixels < counts[:, None]


def resize_image(
    original: Callable[..., tuple[Tensor, Any]],
    image: Tensor,
    self_min_size: int,
    self_max_size: int,
    target: Any = None,
    fixed_size: Any = None,
) -> tuple[Tensor, Any]:
    """``_resize_image_and_masks`` without its branch on which of two scales is smaller."""
    height, width = image.shape[-2:]
    if target is not None or fixed_size is not None or (isinstance(height, int) and isinstance(width, int)):
        return original(image, self_min_size, self_max_size, target, fixed_size)
    to_min = self_min_size / sym_min(height, width)
    scale = sym_min(to_min, self_max_size / sym_max(height, width))
    # At least 1: torchvision fails if a side is scaled to 0.
    size: Any = [sym_max(1, sym_int(side * scale)) for side in (height, width)]
    return F.interpolate(image[None], size, mode="bilinear", align_corners=False)[0], None


def batch_images(original: Callable[..., Any], self: Any, images: list[Tensor], size_divisible: int = 32) -> Tensor:
    """``GeneralizedRCNNTransform.batch_images`` with integer rounding, and padding in place of writes to slices."""
    height, width = images[0].shape[1:]
    for image in images[1:]:
        height, width = sym_max(height, image.shape[1]), sym_max(width, image.shape[2])
    height = (height + size_divisible - 1) // size_divisible * size_divisible
    width = (width + size_divisible - 1) // size_divisible * size_divisible
    return torch.stack([F.pad(image, (0, width - image.shape[2], 0, height - image.shape[1])) for image in images])


_DETECTION = "torchvision.models.detection"

DETECTION_PATCHES: tuple[Patch, ...] = tuple(
    Patch(target, replacement, why, optional=True, departs=True)
    for target, replacement, why in (
        (
            "torchvision.ops.boxes:batched_nms",
            batched_nms,
            "it branches on the number of boxes, which is unbacked",
        ),
        (
            "torchvision.ops.poolers:_multiscale_roi_align",
            multiscale_roi_align,
            "it takes the length of a tensor of regions, which is unbacked",
        ),
        (
            "torchvision.ops.poolers:_infer_scale",
            infer_scale,
            "it rounds a ratio of sizes, which specializes them",
        ),
        (
            f"{_DETECTION}.roi_heads:heatmaps_to_keypoints",
            find_keypoints,
            "it loops over the regions, whose number is unbacked",
        ),
        (
            f"{_DETECTION}.transform:paste_masks_in_image",
            paste_masks,
            "it loops over the boxes, whose number is unbacked",
        ),
        (
            f"{_DETECTION}.transform:_resize_image_and_masks",
            resize_image,
            "it branches on which of two scales is smaller",
        ),
        (
            f"{_DETECTION}.transform:GeneralizedRCNNTransform.batch_images",
            batch_images,
            "it rounds sizes up as floats, which specializes them",
        ),
        (
            f"{_DETECTION}._utils:BoxCoder.decode",
            decode_boxes,
            "it branches on whether there are boxes, whose number is unbacked",
        ),
    )
)
"""Patches of torchvision, if it is imported."""
