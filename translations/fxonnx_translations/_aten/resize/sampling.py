"""Resizing with torch's arithmetic, where ONNX Runtime's Resize differs, and grid sampling.

Axes are resized one by one, the last one first: each element is a weighted sum of a few neighbors. uint8 images have
integer weights, and are rounded to uint8 after each axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce

import onnx_ir as ir
import torch

from ..._builder.dtypes import DOUBLE, FLOAT, INT32, INT64, UINT8
from ..._builder.op import Op
from ..._builder.symbolic_dims import Dim
from ..._registry import OpCall, translates
from .interpolate import Axis, axes_of, upsampling

# ---- resizing


_LARGEST_WEIGHT = 1 << 15
"""torch's weights of uint8 images are 16-bit integers."""


@dataclass(frozen=True)
class _Filter:
    """An interpolation filter: the weights of neighbors.

    Attributes:
        taps: Its support at a scale of 1: 2 elements for linear, 4 for cubic.
        a: The coefficient of the cubic filter.
        antialias: Whether the support grows with the scale if an image shrinks.
        align_corners: Whether the centers of the corners are aligned.
    """

    taps: int
    a: float
    antialias: bool
    align_corners: bool

    def weight(self, op: Op, x: ir.Value) -> ir.Value:
        """Return the weight at a distance."""
        x = op.Abs(x)
        if self.taps == 2:
            return op.Max(op.Sub(1.0, x), 0.0)
        near = op.Add(op.Mul(op.Mul(op.Sub(op.Mul(x, self.a + 2), self.a + 3), x), x), 1.0)
        far = op.Mul(op.Sub(op.Mul(op.Add(op.Mul(op.Sub(x, 5.0), x), 8.0), x), 4.0), self.a)
        return op.Where(op.Less(x, 1.0), near, op.Where(op.Less(x, 2.0), far, op.const(0.0, DOUBLE)))


@dataclass(frozen=True)
class _Taps:
    """The neighbors of each output element of an axis, all of shape [out, count].

    Attributes:
        places: INT64 positions; excluded ones are replaced by valid ones.
        weights: DOUBLE.
        inside: The positions that are included, or None for all.
    """

    places: ir.Value
    weights: ir.Value
    inside: ir.Value | None


def _scale(op: Op, axis: Axis, align_corners: bool) -> ir.Value:
    """Return the number of input elements per output element."""
    if not align_corners and axis.factor is not None:
        inverse = op.const(1.0 / axis.factor, DOUBLE)
        if isinstance(axis.size, int) or isinstance(axis.out, int):
            return inverse
        # torch copies an axis whose size stays the same, whatever the factor.
        stays = op.Equal(op.scalar(axis.size), op.scalar(axis.out))
        return op.Where(stays, op.const(1.0, DOUBLE), inverse)
    size, out = (op.scalar(dim, DOUBLE) for dim in (axis.size, axis.out))
    if not align_corners:
        return op.Div(size, out)
    return op.Where(
        op.Greater(out, 1.0), op.Div(op.Sub(size, 1.0), op.Max(op.Sub(out, 1.0), 1.0)), op.const(0.0, DOUBLE)
    )


def _window(op: Op, kind: _Filter, axis: Axis) -> _Taps:
    """Return the elements within the filter's support around each output center, with weights of sum 1."""
    scale = _scale(op, axis, kind.align_corners)
    wide = op.Max(scale, 1.0)
    support = op.Mul(wide, kind.taps / 2)
    count = op.Add(op.Mul(op.cast(op.Ceil(support), INT64), 2), 1)
    number = op.cast(op.Range(0, op.scalar(axis.out), 1), DOUBLE)
    # With aligned corners only the scale differs.
    center = op.Unsqueeze(op.Mul(op.Add(number, 0.5), scale), [1])
    size = op.scalar(axis.size)
    first = op.Max(op.cast(op.Floor(op.Add(op.Sub(center, support), 0.5)), INT64), 0)
    end = op.Min(op.cast(op.Floor(op.Add(op.Add(center, support), 0.5)), INT64), size)
    place = op.Add(first, op.Range(0, count, 1))
    inside = op.Less(place, end)
    distance = op.Div(op.Add(op.Sub(op.cast(place, DOUBLE), center), 0.5), wide)
    weights = op.Where(inside, kind.weight(op, distance), op.const(0.0, DOUBLE))
    total = op.ReduceSum(weights, [1], keepdims=1)
    weights = op.Div(weights, op.Where(op.Equal(total, 0.0), op.const(1.0, DOUBLE), total))
    return _Taps(op.Where(inside, place, op.Min(first, op.Sub(size, 1))), weights, inside)


def _neighbors(op: Op, kind: _Filter, axis: Axis) -> _Taps:
    """Return the nearest elements; positions beyond the border are clamped to it."""
    scale = _scale(op, axis, kind.align_corners)
    number = op.cast(op.Range(0, op.scalar(axis.out), 1), DOUBLE)
    source = op.Mul(number, scale) if kind.align_corners else op.Sub(op.Mul(op.Add(number, 0.5), scale), 0.5)
    if kind.taps == 2:
        source = op.Max(source, 0.0)
    last = op.Sub(op.scalar(axis.size), 1)
    base = op.Min(op.Floor(source), op.cast(last, DOUBLE))
    rest = op.Min(op.Max(op.Sub(source, base), 0.0), 1.0)
    steps = [tap + 1 - kind.taps // 2 for tap in range(kind.taps)]
    weights = kind.weight(op, op.Sub(op.const([float(step) for step in steps], DOUBLE), op.Unsqueeze(rest, [1])))
    place = op.Add(op.Unsqueeze(op.cast(base, INT64), [1]), op.const(steps))
    place = op.Max(op.Min(place, last), 0)
    # The weights of the same element are added before they are rounded.
    same = op.Equal(op.Unsqueeze(place, [2]), op.Unsqueeze(place, [1]))
    added = op.ReduceSum(op.Where(same, op.Unsqueeze(weights, [1]), op.const(0.0, DOUBLE)), [2], keepdims=0)
    earlier = op.And(same, op.const(torch.ones(kind.taps, kind.taps, dtype=torch.bool).tril(-1)))
    repeated = op.ReduceMax(op.cast(earlier, INT32), [2], keepdims=0)
    return _Taps(place, op.Where(op.Equal(repeated, 0), added, op.const(0.0, DOUBLE)), None)


def _sum(op: Op, value: ir.Value, taps: _Taps, weights: ir.Value, position: int, out: Dim) -> ir.Value:
    """Return the weighted sums along an axis."""
    dims = op.dims(value)
    column = [*range(2, 2 + len(dims) - position - 1)]
    products = op.Mul(op.Gather(value, taps.places, axis=position), op.Unsqueeze(weights, column))
    if taps.inside is not None and op.is_float(value):
        # Excluded elements may be infinite.
        products = op.Where(op.Unsqueeze(taps.inside, column), products, op.const(0.0, op.dtype_of(value)))
    total = op.ReduceSum(products, [position + 1], keepdims=0)
    return op.shaped(total, (*dims[:position], out, *dims[position + 1 :]))


def _bytes(op: Op, value: ir.Value, taps: _Taps, position: int, out: Dim) -> ir.Value:
    """Resize one axis of a uint8 image: weights are scaled to 16-bit integers, and sums are rounded."""
    powers = op.const([float(1 << shift) for shift in range(1, 23)], DOUBLE)
    scaled = op.Floor(op.Add(op.Mul(powers, op.ReduceMax(taps.weights, keepdims=0)), 0.5))
    one = op.ReduceMax(op.Where(op.Less(scaled, float(_LARGEST_WEIGHT)), powers, op.const(1.0, DOUBLE)), keepdims=0)
    exact = op.Mul(taps.weights, one)
    away = op.Where(op.Less(exact, 0.0), op.const(-0.5, DOUBLE), op.const(0.5, DOUBLE))
    total = _sum(op, value, taps, op.cast(op.Add(exact, away), INT32), position, out)
    unit = op.cast(one, INT32)
    rounded = op.Div(op.Max(op.Add(total, op.Div(unit, 2)), 0), unit)
    return op.Min(rounded, 255)


def _resampled(
    op: Op,
    input: ir.Value,
    output_size: Sequence[Dim] | None,
    factors: Sequence[float | None] | None,
    align_corners: bool,
    *,
    filter: tuple[int, float],
    antialias: bool = False,
) -> ir.Value:
    kind = _Filter(*filter, antialias, align_corners)
    axes = axes_of(op, input, output_size, factors)
    if all(axis.size == axis.out for axis in axes):
        return input
    dtype = op.dtype_of(input)
    carrier = INT32 if dtype == UINT8 else DOUBLE if dtype == DOUBLE else FLOAT
    value = op.cast(input, carrier)
    for position, axis in reversed(list(enumerate(axes, start=2))):
        if axis.size == axis.out:
            continue
        taps = _window(op, kind, axis) if kind.antialias else _neighbors(op, kind, axis)
        if dtype == UINT8:
            value = _bytes(op, value, taps, position, axis.out)
        else:
            value = _sum(op, value, taps, op.cast(taps.weights, carrier), position, axis.out)
    return op.cast(value, dtype)


def _reject_unless_uint8(call: OpCall) -> str | None:
    input = call.arguments.get("input", call.arguments.get("self"))
    return None if input.dtype == torch.uint8 else f"{input.dtype} is not weighted by integers"


_LINEAR = (2, math.nan)


TRANSLATIONS = (
    *upsampling(partial(_resampled, filter=_LINEAR, antialias=True), "_upsample_bilinear2d_aa"),
    *upsampling(partial(_resampled, filter=(4, -0.5), antialias=True), "_upsample_bicubic2d_aa"),
    *upsampling(partial(_resampled, filter=_LINEAR), "upsample_bilinear2d", accepts=_reject_unless_uint8),
    *upsampling(partial(_resampled, filter=(4, -0.75)), "upsample_bicubic2d", accepts=_reject_unless_uint8),
)


# ---- grid sampling


_MODES = {0: "linear", 1: "nearest", 2: "cubic"}
_PADDING = {0: "zeros", 1: "border", 2: "reflection"}
_NEAREST = 1


def _reject_constant_grid(call: OpCall) -> str | None:
    if any(not isinstance(size, int) for size in call.arguments["size"]):
        return None
    return "the grid is constant, and the decomposition is folded"


@translates("aten::affine_grid_generator", accepts=_reject_constant_grid)
def affine_grid_generator(op: Op, theta: ir.Value, size: Sequence[Dim], align_corners: bool) -> ir.Value:
    """aten::affine_grid_generator(Tensor theta, SymInt[] size, bool align_corners) -> Tensor"""
    dtype = DOUBLE if op.dtype_of(theta) == DOUBLE else FLOAT
    theta = op.cast(theta, dtype)
    inner = list(range(1, len(size) - 1))

    def column(number: int) -> ir.Value:
        return op.Unsqueeze(op.Gather(theta, number, axis=2), inner)

    result = column(len(inner))
    # The first column is x, the last axis.
    for number, axis in enumerate(reversed(inner)):
        length = op.scalar(size[axis + 1], dtype)
        index = op.cast(op.Range(0, op.scalar(size[axis + 1]), 1), dtype)
        steps = op.Max(op.Sub(length, 1.0), 1.0) if align_corners else length
        place = op.Div(op.Sub(op.Mul(index, 2.0), op.Sub(length, 1.0)), steps)
        others = [other for other in range(len(size)) if other != axis]
        result = op.Add(result, op.Mul(op.Unsqueeze(place, others), column(number)))
    return op.cast(op.expand(result, op.result.shape), op.result.dtype)


def _deviates(interpolation_mode: int, padding_mode: int, align_corners: bool) -> bool:
    """Whether ONNX Runtime's GridSample differs from torch.

    ONNX Runtime 1.31 rounds to the nearest element before it reflects, torch after that: half-way positions outside of
    the input select another element. With aligned corners both orders agree.
    """
    return _MODES[interpolation_mode] == "nearest" and _PADDING[padding_mode] == "reflection" and not align_corners


def _grid_sample(
    op: Op, input: ir.Value, grid: ir.Value, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> ir.Value:
    return op.GridSample(
        input,
        grid,
        mode=_MODES[interpolation_mode],
        padding_mode=_PADDING[padding_mode],
        align_corners=int(align_corners),
    )


def _needs_no_grid_sample(call: OpCall) -> str | None:
    """Why a call is decomposed, or None."""
    arguments = call.arguments
    if arguments["input"].dim() != 4:
        return "volumes are sampled by aten::grid_sampler_3d"
    # ONNX Runtime has a kernel for float64 from opset 20 on.
    if call.opset < 16 or (call.opset < 20 and arguments["input"].dtype == torch.float64):
        return f"opset {call.opset} has no GridSample for {arguments['input'].dtype}"
    if _deviates(arguments["interpolation_mode"], arguments["padding_mode"], arguments["align_corners"]):
        return "ONNX Runtime's GridSample rounds to the nearest element before it reflects"
    return None


@translates("aten::grid_sampler", "aten::grid_sampler_2d", accepts=_needs_no_grid_sample)
def grid_sampler_2d(
    op: Op, input: ir.Value, grid: ir.Value, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> ir.Value:
    """aten::grid_sampler(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor
    aten::grid_sampler_2d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor
    """
    return _grid_sample(op, input, grid, interpolation_mode, padding_mode, align_corners)


@translates("aten::grid_sampler_3d")
def grid_sampler_3d(
    op: Op, input: ir.Value, grid: ir.Value, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> ir.Value:
    """aten::grid_sampler_3d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor"""
    if op.opset >= 20 and not _deviates(interpolation_mode, padding_mode, align_corners):
        return _grid_sample(op, input, grid, interpolation_mode, padding_mode, align_corners)
    # GridSample supports volumes from opset 20 on.
    dtype = DOUBLE if op.dtype_of(input) == DOUBLE else FLOAT
    sizes = op.dims(input)[2:]
    # The grid's coordinates are x, y and z; the axes of the volume are z, y and x.
    wide = op.cast(grid, dtype)
    places = [op.Gather(wide, axis, axis=4) for axis in (2, 1, 0)]
    positions = [
        _padded(
            op, _position(op, place, op.scalar(size, dtype), align_corners), size, padding_mode, align_corners, dtype
        )
        for place, size in zip(places, sizes, strict=True)
    ]
    volume = op.reshape(op.cast(input, dtype), (*op.dims(input)[:2], sizes[0] * sizes[1] * sizes[2]))
    samples = _nearest if interpolation_mode == _NEAREST else _linear
    result = samples(op, volume, positions, sizes, dtype)
    return op.cast(op.reshape(result, op.result.shape), op.result.dtype)


def _position(op: Op, place: ir.Value, size: ir.Value, align_corners: bool) -> ir.Value:
    """Scale coordinates from [-1, 1] to positions."""
    if align_corners:
        return op.Mul(op.Mul(op.Add(place, 1.0), 0.5), op.Sub(size, 1.0))
    return op.Mul(op.Sub(op.Mul(op.Add(place, 1.0), size), 1.0), 0.5)


def _padded(
    op: Op, position: ir.Value, size: Dim, padding_mode: int, align_corners: bool, dtype: ir.DataType
) -> ir.Value:
    """Clamp positions to the border or reflect them at it; with zeros padding they stay outside."""
    if _PADDING[padding_mode] == "zeros":
        return position
    count = op.scalar(size, dtype)
    last = op.Sub(count, 1.0)
    if _PADDING[padding_mode] == "reflection":
        low, span = (0.0, last) if align_corners else (-0.5, count)
        # An axis of one element has no interval to reflect in.
        span = op.Max(span, 1.0) if align_corners else span
        distance = op.Abs(op.Sub(position, low))
        turns = op.Floor(op.Div(distance, span))
        rest = op.Sub(distance, op.Mul(turns, span))
        is_odd = op.Equal(op.Sub(turns, op.Mul(op.Floor(op.Mul(turns, 0.5)), 2.0)), 1.0)
        position = op.Add(op.Where(is_odd, op.Sub(span, rest), rest), low)
    return op.Min(op.Max(position, 0.0), last)


def _picked(op: Op, volume: ir.Value, corner: Sequence[ir.Value], sizes: Sequence[Dim], dtype: ir.DataType) -> ir.Value:
    """Return the elements at integer positions, [batch, channels, positions]; 0 outside."""
    places, within = [], []
    for position, size in zip(corner, sizes, strict=True):
        last = op.Sub(op.scalar(size, dtype), 1.0)
        within.append(op.And(op.GreaterOrEqual(position, 0.0), op.LessOrEqual(position, last)))
        places.append(op.cast(op.Min(op.Max(position, 0.0), last), INT64))
    inside = reduce(op.And, within)
    place = places[0]
    for one, size in zip(places[1:], sizes[1:], strict=True):
        place = op.Add(op.Mul(place, op.scalar(size)), one)
    batch, channels, _ = op.dims(volume)
    count = _count(op)
    indices = op.expand(op.reshape(place, (batch, 1, count)), (batch, channels, count))
    values = op.GatherElements(volume, indices, axis=2)
    return op.Where(op.reshape(inside, (batch, 1, count)), values, op.const(0.0, dtype))


def _count(op: Op) -> Dim:
    """Return the number of positions."""
    depth, height, width = op.result.shape[2:]
    return depth * height * width


def _nearest(
    op: Op, volume: ir.Value, positions: Sequence[ir.Value], sizes: Sequence[Dim], dtype: ir.DataType
) -> ir.Value:
    return _picked(op, volume, [op.Round(position) for position in positions], sizes, dtype)


def _linear(
    op: Op, volume: ir.Value, positions: Sequence[ir.Value], sizes: Sequence[Dim], dtype: ir.DataType
) -> ir.Value:
    """Return the sum of the eight neighbors, weighted by distance (trilinear)."""
    floors = [op.Floor(position) for position in positions]
    parts = [op.Sub(position, floor) for position, floor in zip(positions, floors, strict=True)]
    batch = op.dims(volume)[0]
    terms = []
    for steps in itertools.product((0, 1), repeat=3):
        corner = [op.Add(floor, 1.0) if step else floor for floor, step in zip(floors, steps, strict=True)]
        weight = reduce(op.Mul, (p if step else op.Sub(1.0, p) for p, step in zip(parts, steps, strict=True)))
        value = _picked(op, volume, corner, sizes, dtype)
        terms.append(op.Mul(value, op.reshape(weight, (batch, 1, _count(op)))))
    return reduce(op.Add, terms)
