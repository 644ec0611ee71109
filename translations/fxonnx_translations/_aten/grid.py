"""Sampling at the positions of a grid."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import reduce

import onnx_ir as ir

from .._builder.op import Op
from .._builder.symbolic_dims import Dim
from .._registry import Call, translates

FLOAT, DOUBLE, INT64 = ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT64
_MODES = {0: "linear", 1: "nearest", 2: "cubic"}
_PADDING = {0: "zeros", 1: "border", 2: "reflection"}
_NEAREST = 1


def _needs_no_grid(call: Call) -> str | None:
    if any(not isinstance(size, int) for size in call.arguments["size"]):
        return None
    return "the positions are constants, which the decomposition computes"


@translates("aten::affine_grid_generator", accepts=_needs_no_grid)
def affine_grid_generator(op: Op, theta: ir.Value, size: Sequence[Dim], align_corners: bool) -> ir.Value:
    """aten::affine_grid_generator(Tensor theta, SymInt[] size, bool align_corners) -> Tensor"""
    dtype = DOUBLE if op.dtype_of(theta) == DOUBLE else FLOAT
    theta = op.cast(theta, dtype)
    inner = list(range(1, len(size) - 1))

    def column(number: int) -> ir.Value:
        return op.Unsqueeze(op.Gather(theta, number, axis=2), inner)

    result = column(len(inner))
    # The first column is for x, which is the last axis.
    for number, axis in enumerate(reversed(inner)):
        length = op.scalar(size[axis + 1], dtype)
        index = op.cast(op.Range(0, op.scalar(size[axis + 1]), 1), dtype)
        steps = op.Max(op.Sub(length, 1.0), 1.0) if align_corners else length
        place = op.Div(op.Sub(op.Mul(index, 2.0), op.Sub(length, 1.0)), steps)
        others = [other for other in range(len(size)) if other != axis]
        result = op.Add(result, op.Mul(op.Unsqueeze(place, others), column(number)))
    return op.cast(op.expand(result, op.result.shape), op.result.dtype)


@translates("aten::grid_sampler_3d")
def grid_sampler_3d(
    op: Op, input: ir.Value, grid: ir.Value, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> ir.Value:
    """aten::grid_sampler_3d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor"""
    if op.opset >= 20:
        return op.GridSample(
            input,
            grid,
            mode=_MODES[interpolation_mode],
            padding_mode=_PADDING[padding_mode],
            align_corners=int(align_corners),
        )
    # GridSample of volumes exists from opset 20 on.
    dtype = DOUBLE if op.dtype_of(input) == DOUBLE else FLOAT
    sizes = op.dims(input)[2:]
    # The grid says x, y and z; the axes of the volume are z, y and x.
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
    """From [-1, 1] to the numbers of the elements."""
    if align_corners:
        return op.Mul(op.Mul(op.Add(place, 1.0), 0.5), op.Sub(size, 1.0))
    return op.Mul(op.Sub(op.Mul(op.Add(place, 1.0), size), 1.0), 0.5)


def _padded(
    op: Op, position: ir.Value, size: Dim, padding_mode: int, align_corners: bool, dtype: ir.DataType
) -> ir.Value:
    """Positions outside moved to the border, or reflected at it; those of zeros stay outside."""
    if _PADDING[padding_mode] == "zeros":
        return position
    count = op.scalar(size, dtype)
    last = op.Sub(count, 1.0)
    if _PADDING[padding_mode] == "reflection":
        low, span = (0.0, last) if align_corners else (-0.5, count)
        # One element has nothing to be reflected between.
        span = op.Max(span, 1.0) if align_corners else span
        distance = op.Abs(op.Sub(position, low))
        turns = op.Floor(op.Div(distance, span))
        rest = op.Sub(distance, op.Mul(turns, span))
        is_odd = op.Equal(op.Sub(turns, op.Mul(op.Floor(op.Mul(turns, 0.5)), 2.0)), 1.0)
        position = op.Add(op.Where(is_odd, op.Sub(span, rest), rest), low)
    return op.Min(op.Max(position, 0.0), last)


def _picked(op: Op, volume: ir.Value, corner: Sequence[ir.Value], sizes: Sequence[Dim], dtype: ir.DataType) -> ir.Value:
    """The elements at whole positions, [batch, channels, positions]; 0 for those outside."""
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
    """How many positions there are."""
    depth, height, width = op.result.shape[2:]
    return depth * height * width


def _nearest(
    op: Op, volume: ir.Value, positions: Sequence[ir.Value], sizes: Sequence[Dim], dtype: ir.DataType
) -> ir.Value:
    return _picked(op, volume, [op.Round(position) for position in positions], sizes, dtype)


def _linear(
    op: Op, volume: ir.Value, positions: Sequence[ir.Value], sizes: Sequence[Dim], dtype: ir.DataType
) -> ir.Value:
    """The eight neighbours, each by how near it is."""
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
