"""The torchvision operators in plain Python, for torch builds that torchvision's C++ library does not load beside."""

from __future__ import annotations

import math
from functools import cache

import torch
from torchvision import _meta_registrations as shapes

__all__ = ["make_operators_run"]

Tensor = torch.Tensor


@cache
def make_operators_run() -> tuple[torch.library.Library, ...]:
    """Registers the kernels below where the operators have none; cached, because they live as long as the library."""
    if torch._C._dispatch_has_kernel_for_dispatch_key("torchvision::nms", "CPU"):
        return ()
    kernels = torch.library.Library("torchvision", "IMPL", "CPU")
    fakes = torch.library.Library("torchvision", "IMPL", "Meta")
    for kernel in (nms, roi_align, roi_pool, ps_roi_align, ps_roi_pool, deform_conv2d):
        kernels.impl(kernel.__name__, kernel)
        if kernel is not nms:
            fakes.impl(kernel.__name__, getattr(shapes, f"meta_{kernel.__name__}"))
    return kernels, fakes


def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Greedy: the best box left suppresses those that overlap it by more than the threshold."""
    left = scores.sort(descending=True, stable=True).indices.tolist()
    areas = (dets[:, 2] - dets[:, 0]) * (dets[:, 3] - dets[:, 1])
    kept = []
    while left:
        best, *left = left
        kept.append(best)
        sides = torch.minimum(dets[best, 2:], dets[left, 2:]) - torch.maximum(dets[best, :2], dets[left, :2])
        common = sides.clamp(min=0).prod(1)
        overlap = (common / (areas[best] + areas[left] - common)).tolist()
        left = [box for box, part in zip(left, overlap, strict=True) if not part > iou_threshold]
    return torch.tensor(kept, dtype=torch.int64)


def _bilinear(image: Tensor, y: float, x: float) -> Tensor:
    """A sample of [channels, height, width]; zero more than one position outside, the border's value before that."""
    height, width = image.shape[1:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return image.new_zeros(image.shape[0])
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    down, across = y - top, x - left
    upper = image[:, top, left] * (1 - across) + image[:, top, right] * across
    lower = image[:, bottom, left] * (1 - across) + image[:, bottom, right] * across
    return upper * (1 - down) + lower * down


def _samples(start: float, window: float, place: int, count: int) -> list[float]:
    return [start + place * window + (number + 0.5) * window / count for number in range(count)]


def _mean_of_samples(image: Tensor, box: list[float], size: tuple[int, int], ratio: int, at: tuple[int, int]) -> Tensor:
    """The mean of one window's samples; ``box`` is (left, top, width, height)."""
    left, top, width, height = box
    rows, columns = (ratio if ratio > 0 else math.ceil(side / n) for side, n in zip((height, width), size, strict=True))
    total = image.new_zeros(image.shape[0])
    for y in _samples(top, height / size[0], at[0], rows):
        for x in _samples(left, width / size[1], at[1], columns):
            total = total + _bilinear(image, y, x)
    return total / (rows * columns)


def roi_align(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Mean of bilinear samples per window."""
    result = input.new_zeros(rois.shape[0], input.shape[1], pooled_height, pooled_width)
    offset, least = (0.5, -math.inf) if aligned else (0.0, 1.0)
    for number, (batch, *corners) in enumerate(rois.tolist()):
        left, top, right, bottom = (corner * spatial_scale - offset for corner in corners)
        box = [left, top, max(right - left, least), max(bottom - top, least)]
        if sampling_ratio <= 0 and min(box[2:]) <= 0:
            continue
        for i in range(pooled_height):
            for j in range(pooled_width):
                size = (pooled_height, pooled_width)
                result[number, :, i, j] = _mean_of_samples(input[int(batch)], box, size, sampling_ratio, (i, j))
    return result


def _mapping(regions: int, outputs: int, height: int, width: int) -> Tensor:
    channels = torch.arange(outputs * height * width, dtype=torch.int32)
    return channels.reshape(1, outputs, height, width).repeat(regions, 1, 1, 1)


def ps_roi_align(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int
) -> tuple[Tensor, Tensor]:
    """As roi_align, aligned, but every window reads channels of its own."""
    outputs = input.shape[1] // (pooled_height * pooled_width)
    maps = input.unflatten(1, (outputs, pooled_height, pooled_width))
    result = input.new_zeros(rois.shape[0], outputs, pooled_height, pooled_width)
    for number, (batch, *corners) in enumerate(rois.tolist()):
        left, top, right, bottom = (corner * spatial_scale - 0.5 for corner in corners)
        box = [left, top, right - left, bottom - top]
        for i in range(pooled_height):
            for j in range(pooled_width):
                size, image = (pooled_height, pooled_width), maps[int(batch), :, i, j]
                result[number, :, i, j] = _mean_of_samples(image, box, size, sampling_ratio, (i, j))
    return result, _mapping(rois.shape[0], outputs, pooled_height, pooled_width)


def _round(value: float) -> int:
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def _span(start: int, length: int, place: int, count: int, last: int) -> slice:
    window = length / count
    first, behind = math.floor(place * window) + start, math.ceil((place + 1) * window) + start
    return slice(min(max(first, 0), last), min(max(behind, 0), last))


def roi_pool(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[Tensor, Tensor]:
    """Maximum per window; the positions of the maxima are not computed."""
    result = input.new_zeros(rois.shape[0], input.shape[1], pooled_height, pooled_width)
    rows, columns = input.shape[2:]
    for number, (batch, *corners) in enumerate(rois.tolist()):
        left, top, right, bottom = (_round(corner * spatial_scale) for corner in corners)
        for i in range(pooled_height):
            for j in range(pooled_width):
                y = _span(top, max(bottom - top + 1, 1), i, pooled_height, rows)
                x = _span(left, max(right - left + 1, 1), j, pooled_width, columns)
                window = input[int(batch), :, y, x]
                if window.numel():
                    # NaN never becomes the maximum.
                    result[number, :, i, j] = window.where(~window.isnan(), torch.finfo(torch.float32).min).amax((1, 2))
    return result, torch.zeros(result.shape, dtype=torch.int32)


def ps_roi_pool(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[Tensor, Tensor]:
    """Mean per window, which reads channels of its own; the last row and column never count."""
    outputs = input.shape[1] // (pooled_height * pooled_width)
    maps = input.unflatten(1, (outputs, pooled_height, pooled_width))
    result = input.new_zeros(rois.shape[0], outputs, pooled_height, pooled_width)
    rows, columns = input.shape[2:]
    for number, (batch, *corners) in enumerate(rois.tolist()):
        left, top, right, bottom = (_round(corner * spatial_scale) for corner in corners)
        for i in range(pooled_height):
            for j in range(pooled_width):
                y = _span(top, max(bottom - top, 1), i, pooled_height, rows - 1)
                x = _span(left, max(right - left, 1), j, pooled_width, columns - 1)
                window = maps[int(batch), :, i, j, y, x]
                if window.numel():
                    result[number, :, i, j] = window.mean((1, 2))
    return result, _mapping(rois.shape[0], outputs, pooled_height, pooled_width)


def deform_conv2d(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> Tensor:
    """Convolution of bilinear samples, zero outside, at moved positions."""
    batch, channels, height, width = input.shape
    kernel = weight.shape[2:]
    rows, columns = offset.shape[2:]
    moves = offset.unflatten(1, (offset_groups, kernel.numel(), 2))
    row = (torch.arange(rows) * stride_h - pad_h)[:, None]
    column = torch.arange(columns) * stride_w - pad_w
    taps = []
    for tap in range(kernel.numel()):
        y = moves[:, :, tap, 0] + row + tap // kernel[1] * dilation_h
        x = moves[:, :, tap, 1] + column + tap % kernel[1] * dilation_w
        # grid_sample counts from -1 at the first pixel to 1 at the last one.
        grid = torch.stack([2 * x / (width - 1) - 1, 2 * y / (height - 1) - 1], -1).flatten(0, 1)
        images = input.reshape(batch * offset_groups, -1, height, width)
        taken = torch.nn.functional.grid_sample(images.double(), grid.double(), align_corners=True)
        taken = taken.unflatten(0, (batch, offset_groups))
        if use_mask:
            taken = taken * mask.unflatten(1, (offset_groups, -1))[:, :, tap : tap + 1]
        taps.append(taken.reshape(batch, channels, rows, columns))
    grouped = torch.stack(taps, 2).unflatten(1, (groups, channels // groups))
    filters = weight.reshape(groups, -1, channels // groups, kernel.numel()).double()
    result = torch.einsum("bgcthw,goct->bgohw", grouped, filters).flatten(1, 2)
    return (result + bias[:, None, None]).to(input.dtype)
