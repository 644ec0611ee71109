"""torchvision's operators: non-maximum suppression, RoI pooling, deformable convolution.

torchvision need not be installed: operators are looked up by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .._builder.dtypes import DOUBLE, FLOAT, FLOAT16, INT64
from .._builder.op import Op, Unsupported
from .._builder.symbolic_dims import Dim
from .._registry import translates

_ALL_BOXES = 2**31 - 1


@translates("torchvision::nms")
def nms(op: Op, dets: ir.Value, scores: ir.Value, iou_threshold: float) -> ir.Value:
    """torchvision::nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor

    Both return the kept boxes by descending score, equal scores in ascending order of the boxes.
    """
    if DOUBLE in (op.dtype_of(dets), op.dtype_of(scores)):
        raise Unsupported("nms of DOUBLE boxes: NonMaxSuppression accepts FLOAT only, which may order them differently")
    if iou_threshold < 0:
        raise Unsupported("nms with a negative threshold, with which boxes suppress each other without overlap")
    boxes = op.Unsqueeze(op.cast(dets, FLOAT), [0])
    per_class = op.Unsqueeze(op.cast(scores, FLOAT), [0, 1])
    kept = op.NonMaxSuppression(
        boxes, per_class, op.const([_ALL_BOXES], INT64), op.const([_rounded_down(iou_threshold)], FLOAT)
    )
    return op.Gather(kept, 2, axis=1)


@translates("fxonnx::batched_nms")
def batched_nms(op: Op, boxes: ir.Value, scores: ir.Value, idxs: ir.Value, iou_threshold: float) -> ir.Value:
    """fxonnx::batched_nms(Tensor boxes, Tensor scores, Tensor idxs, float iou_threshold) -> Tensor

    NonMaxSuppression considers all boxes for each class: boxes of other classes get the score -inf.
    """
    if DOUBLE in (op.dtype_of(boxes), op.dtype_of(scores)):
        raise Unsupported("nms of DOUBLE boxes: NonMaxSuppression accepts FLOAT only, which may order them differently")
    classes = op.verbatim("Unique", [idxs], {"sorted": 1}, [op.dtype_of(idxs)])[0]
    is_of_class = op.Equal(op.Unsqueeze(classes, [1]), op.Unsqueeze(idxs, [0]))
    wide = op.cast(scores, FLOAT)
    by_class = op.Where(is_of_class, op.Unsqueeze(wide, [0]), op.const(-math.inf, FLOAT))
    kept = op.NonMaxSuppression(
        op.Unsqueeze(op.cast(boxes, FLOAT), [0]),
        op.Unsqueeze(by_class, [0]),
        op.const([_ALL_BOXES], INT64),
        op.const([_rounded_down(iou_threshold)], FLOAT),
        op.const([float(np.finfo(np.float32).min)], FLOAT),
    )
    places = op.Gather(kept, 2, axis=1)
    count = op.Shape(places)
    # A stable order: of equal scores the first box comes first.
    places, _ = op.multi("TopK", places, count, axis=0, largest=0, outputs=2)
    _, order = op.multi("TopK", op.Gather(wide, places, axis=0), count, axis=0, outputs=2)
    return op.Gather(places, order, axis=0)


def _rounded_down(threshold: float) -> float:
    """torch compares with the double: the largest float32 that is not greater separates the same float32 overlaps."""
    rounded = np.float32(min(threshold, 1.0))
    return float(rounded if float(rounded) <= threshold else np.nextafter(rounded, np.float32(-1)))


# ---- regions of interest


@dataclass(frozen=True)
class _SampledAxis:
    """The bilinear samples along one axis of the regions; tensors have the shape [regions, windows, samples].

    Attributes:
        low: Position before each sample.
        high: Position after it; the same at the end of the axis.
        low_weight: Weight of the position before; zero for excluded samples.
        high_weight: Weight of the position after.
        count: Number of samples per window [regions].
    """

    low: ir.Value
    high: ir.Value
    low_weight: ir.Value
    high_weight: ir.Value
    count: ir.Value

    def corners(self) -> tuple[tuple[ir.Value, ir.Value], ...]:
        return (self.low, self.low_weight), (self.high, self.high_weight)


def _column(op: Op, rois: ir.Value, column: int) -> ir.Value:
    return op.Gather(rois, column, axis=1)


def _start_and_length(
    op: Op, rois: ir.Value, columns: tuple[int, int], scale: float, offset: float
) -> tuple[ir.Value, ir.Value]:
    """Return start and length of the regions along one axis."""
    start, end = (op.Mul(_column(op, rois, column), float(scale)) for column in columns)
    if offset:
        start, end = op.Sub(start, offset), op.Sub(end, offset)
    return start, op.Sub(end, start)


def _sampled_axis(op: Op, start: ir.Value, extent: ir.Value, windows: int, ratio: int, length: Dim) -> _SampledAxis:
    dtype = op.dtype_of(start)
    window = op.Div(extent, float(windows))
    if ratio > 0:
        count, samples = op.expand(op.const([float(ratio)], dtype), op.dims(start)), op.const(ratio, INT64)
    else:
        # The number of samples of the largest region; windows of smaller regions do not use all of them.
        count = op.Ceil(window)
        most = op.ReduceMax(op.Concat(op.cast(count, INT64), op.const([1], INT64), axis=0), [0], keepdims=0)
        samples = op.Max(most, op.const(1, INT64))
    number = op.Unsqueeze(op.cast(op.Range(0, samples, 1), dtype), [0, 1])
    across = op.const([[[float(place)] for place in range(windows)]], dtype)
    start, window, counts = (op.Unsqueeze(value, [1, 2]) for value in (start, window, count))
    inside = op.Div(op.Mul(op.Add(number, 0.5), window), counts)
    places = op.Add(op.Add(start, op.Mul(across, window)), inside)
    size = op.scalar(length, dtype)
    counted = op.And(op.GreaterOrEqual(places, -1.0), op.LessOrEqual(places, size))
    if ratio <= 0:
        counted = op.And(counted, op.Less(number, counts))
    last = op.Sub(size, 1.0)
    # Excluded samples, also of empty regions, may be out of range: they read position 0.
    places = op.Min(op.Max(op.Where(counted, places, op.const(0.0, dtype)), 0.0), last)
    low = op.Floor(places)
    high = op.Min(op.Add(low, 1.0), last)
    zero = op.const(0.0, dtype)
    fraction = op.Sub(places, low)
    return _SampledAxis(
        low=op.cast(low, INT64),
        high=op.cast(high, INT64),
        low_weight=op.Where(counted, op.Sub(op.const(1.0, dtype), fraction), zero),
        high_weight=op.Where(counted, fraction, zero),
        count=count,
    )


def _sum_of_samples(op: Op, rows: ir.Value, base: ir.Value, y: _SampledAxis, x: _SampledAxis, width: Dim) -> ir.Value:
    """Return the sums of the bilinear samples of each window."""
    total: ir.Value | None = None
    for y_position, y_weight in y.corners():
        line = op.Add(base, op.Unsqueeze(op.Mul(y_position, op.scalar(width)), [3, 4]))
        for x_position, x_weight in x.corners():
            position = op.Add(line, op.Unsqueeze(x_position, [1, 2]))
            weight = op.Mul(op.Unsqueeze(y_weight, [3, 4, 5]), op.Unsqueeze(x_weight, [1, 2, 5]))
            part = op.Mul(op.Gather(rows, position, axis=0), weight)
            total = part if total is None else op.Add(total, part)
    if total is None:
        raise Unsupported("a region without four coordinates")
    return op.ReduceSum(total, [2, 4], keepdims=0)


def _batch_index(op: Op, rois: ir.Value) -> ir.Value:
    return op.cast(_column(op, rois, 0), INT64)


@translates("torchvision::roi_align")
def roi_align(
    op: Op,
    input: ir.Value,
    rois: ir.Value,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> ir.Value:
    """torchvision::roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor"""
    height, width = _windows(pooled_height, pooled_width)
    # Before opset 16 regions are not aligned; from opset 22 on ONNX Runtime has no kernel.
    if op.opset < 22 and (op.opset >= 16 or not aligned):
        mode = None if op.opset < 16 else "half_pixel" if aligned else "output_half_pixel"
        return op.RoiAlign(
            input,
            op.Slice(rois, [1], [5], [1]),
            _batch_index(op, rois),
            output_height=height,
            output_width=width,
            sampling_ratio=max(sampling_ratio, 0),
            spatial_scale=float(spatial_scale),
            coordinate_transformation_mode=mode,
        )
    dtype = op.dtype_of(input)
    if dtype == FLOAT16:
        input, rois = op.cast(input, FLOAT), op.cast(rois, FLOAT)
    batch, channels, rows, columns = op.dims(input)
    axes = []
    for ends, windows, length in (((2, 4), height, rows), ((1, 3), width, columns)):
        start, extent = _start_and_length(op, rois, ends, spatial_scale, 0.5 if aligned else 0.0)
        extent = extent if aligned else op.Max(extent, 1.0)
        axes.append(_sampled_axis(op, start, extent, windows, sampling_ratio, length))
    positions = op.reshape(op.Transpose(input, perm=[0, 2, 3, 1]), [batch * rows * columns, channels])
    base = op.Unsqueeze(op.Mul(_batch_index(op, rois), op.scalar(rows * columns)), [1, 2, 3, 4])
    total = _sum_of_samples(op, positions, base, axes[0], axes[1], columns)
    count = op.Max(op.Mul(axes[0].count, axes[1].count), 1.0)
    mean = op.Div(total, op.Unsqueeze(count, [1, 2, 3]))
    return op.cast(op.Transpose(mean, perm=[0, 3, 1, 2]), dtype)


def _windows(pooled_height: int, pooled_width: int) -> tuple[int, int]:
    if not isinstance(pooled_height, int) or not isinstance(pooled_width, int):
        raise Unsupported("a symbolic number of windows")
    return pooled_height, pooled_width


@translates("torchvision::roi_pool", exact="NaN does not count, from opset 22 on and in float64")
def roi_pool(
    op: Op, input: ir.Value, rois: ir.Value, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[ir.Value, None]:
    """torchvision::roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) -> (Tensor, Tensor)

    The second output, the positions of the maxima, is only for the gradient.
    """
    height, width = _windows(pooled_height, pooled_width)
    dtype = op.dtype_of(input)
    if dtype == FLOAT16:
        input, rois = op.cast(input, FLOAT), op.cast(rois, FLOAT)
    # ONNX Runtime has no kernel from opset 22 on, and none for DOUBLE.
    if op.opset < 22 and dtype != DOUBLE:
        pooled = op.MaxRoiPool(input, rois, pooled_shape=[height, width], spatial_scale=float(spatial_scale))
        return op.cast(pooled, dtype), None
    batch, channels, rows, columns = op.dims(input)
    positions = op.reshape(op.Transpose(input, perm=[0, 2, 3, 1]), [batch * rows * columns, channels])
    base = op.Unsqueeze(op.Mul(_batch_index(op, rois), op.scalar(rows * columns)), [1, 2, 3, 4])
    y, y_covered = _covered_positions(
        op, *_window_bounds(op, rois, (2, 4), spatial_scale, height, rows, 1.0, 0.0), rows
    )
    x, x_covered = _covered_positions(
        op, *_window_bounds(op, rois, (1, 3), spatial_scale, width, columns, 1.0, 0.0), columns
    )
    line = op.Unsqueeze(op.Mul(y, op.scalar(columns)), [3, 4])
    values = op.Gather(positions, op.Add(op.Add(base, line), op.Unsqueeze(x, [1, 2])), axis=0)
    covered = op.And(op.Unsqueeze(y_covered, [3, 4, 5]), op.Unsqueeze(x_covered, [1, 2, 5]))
    # torchvision's initial value is the lowest finite float, which NaN does not replace.
    lowest = op.const(float(np.finfo(np.float32).min), op.dtype_of(values))
    counts = op.And(covered, op.Not(op.IsNaN(values))) if op.exact_numerics else covered
    counted = op.Where(counts, values, lowest)
    some = op.Greater(op.ReduceMax(op.cast(covered, ir.DataType.INT32), [2, 4], keepdims=0), 0)
    maxima = op.Where(some, op.ReduceMax(counted, [2, 4], keepdims=0), op.const(0.0, op.dtype_of(values)))
    return op.cast(op.Transpose(maxima, perm=[0, 3, 1, 2]), dtype), None


def _window_bounds(
    op: Op,
    rois: ir.Value,
    columns: tuple[int, int],
    scale: float,
    windows: int,
    length: Dim,
    longer: float,
    shorter: float,
) -> tuple[ir.Value, ir.Value]:
    """Return start and end (exclusive) of each window [regions, windows], for regions rounded to integers."""
    dtype = op.dtype_of(rois)
    start, end = (_rounded(op, op.Mul(_column(op, rois, column), float(scale))) for column in columns)
    window = op.Unsqueeze(op.Div(op.Max(op.Add(op.Sub(end, start), longer), 1.0), float(windows)), [1])
    across = op.const([[float(place) for place in range(windows)]], dtype)
    last = op.Sub(op.scalar(length, dtype), shorter)
    first = op.Floor(op.Mul(across, window))
    behind = op.Ceil(op.Mul(op.Add(across, 1.0), window))
    start = op.Unsqueeze(start, [1])
    first, behind = (op.Min(op.Max(op.Add(edge, start), 0.0), last) for edge in (first, behind))
    return first, behind


def _covered_positions(op: Op, first: ir.Value, behind: ir.Value, length: Dim) -> tuple[ir.Value, ir.Value]:
    """Return the positions of the windows, padded to the longest one, and the mask of covered ones."""
    first, behind = (op.Unsqueeze(op.cast(edge, INT64), [2]) for edge in (first, behind))
    sizes = op.Reshape(op.Sub(behind, first), [-1])
    longest = op.ReduceMax(op.Concat(sizes, op.const([1], INT64), axis=0), [0], keepdims=0)
    places = op.Add(first, op.Unsqueeze(op.Range(0, longest, 1), [0, 1]))
    return op.Min(places, op.scalar(length - 1)), op.Less(places, behind)


# ---- position-sensitive regions of interest: each window reads separate channels


def _sensitive_rows(op: Op, input: ir.Value, height: int, width: int) -> tuple[ir.Value, Dim]:
    """Return the input as [batch * windows * positions, channels], and the number of channels."""
    batch, channels, rows, columns = op.dims(input)
    outputs = channels // (height * width)
    split = op.reshape(input, [batch, outputs, height, width, rows, columns])
    moved = op.Transpose(split, perm=[0, 2, 3, 4, 5, 1])
    return op.reshape(moved, [batch * height * width * rows * columns, outputs]), outputs


def _channel_mapping(op: Op, height: int, width: int, outputs: Dim, regions: Dim) -> ir.Value:
    """Return the input channel of each element of the output [regions, channels, windows, windows]."""
    window = op.const(np.arange(height * width).reshape(1, 1, height, width).tolist(), INT64)
    first = op.Unsqueeze(op.Mul(op.Range(0, op.scalar(outputs), 1), height * width), [0, 2, 3])
    return op.expand(op.cast(op.Add(window, first), ir.DataType.INT32), [regions, outputs, height, width])


@translates("torchvision::ps_roi_align")
def ps_roi_align(
    op: Op,
    input: ir.Value,
    rois: ir.Value,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
) -> tuple[ir.Value, ir.Value]:
    """torchvision::ps_roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio) -> (Tensor, Tensor)"""
    height, width = _windows(pooled_height, pooled_width)
    dtype = op.dtype_of(input)
    if dtype == FLOAT16:
        input, rois = op.cast(input, FLOAT), op.cast(rois, FLOAT)
    _, _, rows, columns = op.dims(input)
    positions, outputs = _sensitive_rows(op, input, height, width)
    axes = []
    for ends, windows, length in (((2, 4), height, rows), ((1, 3), width, columns)):
        start, extent = _start_and_length(op, rois, ends, spatial_scale, 0.5)
        axes.append(_sampled_axis(op, start, extent, windows, sampling_ratio, length))
    window = op.const(np.arange(height * width).reshape(1, height, 1, width, 1).tolist(), INT64)
    maps = op.Add(op.Unsqueeze(op.Mul(_batch_index(op, rois), height * width), [1, 2, 3, 4]), window)
    base = op.Mul(maps, op.scalar(rows * columns))
    total = _sum_of_samples(op, positions, base, axes[0], axes[1], columns)
    count = op.Mul(axes[0].count, axes[1].count)
    mean = op.cast(op.Transpose(op.Div(total, op.Unsqueeze(count, [1, 2, 3])), perm=[0, 3, 1, 2]), dtype)
    return mean, _channel_mapping(op, height, width, outputs, op.dims(rois)[0])


@translates("torchvision::ps_roi_pool")
def ps_roi_pool(
    op: Op, input: ir.Value, rois: ir.Value, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[ir.Value, ir.Value]:
    """torchvision::ps_roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) -> (Tensor, Tensor)"""
    height, width = _windows(pooled_height, pooled_width)
    dtype = op.dtype_of(input)
    if dtype == FLOAT16:
        input, rois = op.cast(input, FLOAT), op.cast(rois, FLOAT)
    batch, channels, rows, columns = op.dims(input)
    regions, outputs = op.dims(rois)[0], channels // (height * width)
    # The sums over windows are matrix products with their indicators [windows, regions, positions].
    # torchvision excludes the last position of each axis.
    y, y_size = _indicator(op, *_window_bounds(op, rois, (2, 4), spatial_scale, height, rows, 0.0, 1.0), rows)
    x, x_size = _indicator(op, *_window_bounds(op, rois, (1, 3), spatial_scale, width, columns, 0.0, 1.0), columns)
    own = op.Equal(op.Unsqueeze(_batch_index(op, rois), [1]), op.Unsqueeze(op.Range(0, op.scalar(batch), 1), [0]))
    covered = op.And(op.Unsqueeze(y, [1, 3, 5]), op.Unsqueeze(x, [0, 3, 4]))
    covered = op.And(covered, op.Unsqueeze(own, [0, 1, 4, 5]))
    weights = op.reshape(op.cast(covered, op.dtype_of(input)), [height, width, regions, batch * rows * columns])
    split = op.reshape(input, [batch, outputs, height, width, rows, columns])
    maps = op.reshape(op.Transpose(split, perm=[2, 3, 0, 4, 5, 1]), [height, width, batch * rows * columns, outputs])
    area = op.Mul(op.Unsqueeze(y_size, [1, 3]), op.Unsqueeze(x_size, [0, 3]))
    # The result of an empty window is zero.
    mean = op.Div(op.MatMul(weights, maps), op.Max(area, 1.0))
    result = op.cast(op.Transpose(mean, perm=[2, 3, 0, 1]), dtype)
    return result, _channel_mapping(op, height, width, outputs, regions)


def _indicator(op: Op, first: ir.Value, behind: ir.Value, length: Dim) -> tuple[ir.Value, ir.Value]:
    """Return the indicators of covered positions [windows, regions, positions], and their number [windows, regions]."""
    first, behind = (op.Transpose(edge, perm=[1, 0]) for edge in (first, behind))
    places = op.Unsqueeze(op.cast(op.Range(0, op.scalar(length), 1), op.dtype_of(first)), [0, 1])
    after = op.GreaterOrEqual(places, op.Unsqueeze(first, [2]))
    return op.And(after, op.Less(places, op.Unsqueeze(behind, [2]))), op.Sub(behind, first)


def _rounded(op: Op, value: ir.Value) -> ir.Value:
    """Round halves away from zero, as C does; ONNX rounds them to even."""
    size = op.Abs(value)
    whole = op.Floor(size)
    up = op.cast(op.GreaterOrEqual(op.Sub(size, whole), 0.5), op.dtype_of(value))
    return op.Mul(op.Sign(value), op.Add(whole, up))


# ---- deformable convolution


@translates("torchvision::deform_conv2d")
def deform_conv2d(
    op: Op,
    input: ir.Value,
    weight: ir.Value,
    offset: ir.Value,
    mask: ir.Value,
    bias: ir.Value,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> ir.Value:
    """torchvision::deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask) -> Tensor"""
    numbers: Sequence[Dim] = (
        *(stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups, offset_groups),
        *op.dims(weight)[2:],
    )
    if not all(isinstance(number, int) for number in numbers):
        raise Unsupported("deform_conv2d with symbolic attributes")
    return op.DeformConv(
        input,
        weight,
        offset,
        bias,
        mask if use_mask else None,
        dilations=[dilation_h, dilation_w],
        group=groups,
        kernel_shape=list(op.dims(weight)[2:]),
        offset_group=offset_groups,
        pads=[pad_h, pad_w, pad_h, pad_w],
        strides=[stride_h, stride_w],
    )
