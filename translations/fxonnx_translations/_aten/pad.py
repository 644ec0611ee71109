"""Padding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from .._builder.constants import END
from .._builder.op import Op, Unsupported
from .._builder.symbolic_dims import Dim
from .._registry import translates
from .indexing.axes import as_carrier, rank, sliced

_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _per_axis(op: Op, value: ir.Value, pad: Sequence[Dim]) -> tuple[list[Dim], list[Dim]]:
    """Return torch's pairs, last axis first, as paddings before and after each axis, first axis first."""
    missing: list[Dim] = [0] * (rank(op, value) - len(pad) // 2)
    begin, end = [*missing, *reversed(pad[::2])], [*missing, *reversed(pad[1::2])]
    trailing = [0] * (op.rank_of(value) - len(begin))
    return begin + trailing, end + trailing


def _keep_border_element(size: Dim, before: Dim, after: Dim) -> tuple[Dim, Dim]:
    """Return the paddings of an axis that they crop entirely: torch then repeats the element at the border."""
    if isinstance(size, int) and isinstance(before, int) and isinstance(after, int) and size > 0:
        if -before >= size:
            return 1 - size, after + before + size - 1
        if -after >= size:
            return before + after + size - 1, 1 - size
    return before, after


def _cropped(op: Op, value: ir.Value, begin: list[Dim], end: list[Dim]) -> tuple[ir.Value, list[Dim], list[Dim]]:
    """Crop by the negative paddings, and return the remaining ones."""
    pairs = [_keep_border_element(*axis) for axis in zip(op.dims(value), begin, end, strict=True)]
    begin, end = [before for before, _ in pairs], [after for _, after in pairs]
    starts = [-before if isinstance(before, int) and before < 0 else 0 for before in begin]
    ends = [after if isinstance(after, int) and after < 0 else END for after in end]
    axes = [axis for axis, limits in enumerate(zip(starts, ends, strict=True)) if limits != (0, END)]
    if axes:
        value = op.Slice(value, [starts[axis] for axis in axes], [ends[axis] for axis in axes], axes)
    left_begin, left_end = ([0 if isinstance(pad, int) and pad < 0 else pad for pad in pads] for pads in (begin, end))
    return value, left_begin, left_end


def _crop_symbolic_axes(
    op: Op, value: ir.Value, begin: list[Dim], end: list[Dim]
) -> tuple[ir.Value, list[Dim], list[Dim]]:
    """Crop and pad the axes of symbolic size that are cropped at one end, and return the remaining paddings.

    The crop may remove all elements; torch then repeats the element at the border.
    """
    begin, end = list(begin), list(end)
    for axis, (size, before, after) in enumerate(zip(op.dims(value), begin, end, strict=True)):
        if isinstance(size, int) or not (isinstance(before, int) and isinstance(after, int) and before * after < 0):
            continue
        number = op.Sub(op.Range(0, op.scalar(size + before + after), 1), before)
        positions = op.Min(op.Max(number, 0), op.Sub(op.scalar(size), 1))
        dims = op.dims(value)
        gathered = op.Gather(value, positions, axis=axis)
        value = op.shaped(gathered, (*dims[:axis], size + before + after, *dims[axis + 1 :]))
        begin[axis] = end[axis] = 0
    return value, begin, end


def _repeated(op: Op, value: ir.Value, begin: list[Dim], end: list[Dim]) -> ir.Value:
    """Circular padding, axis by axis, for opsets whose Pad lacks the mode wrap."""
    for axis, (before, after) in enumerate(zip(begin, end, strict=True)):
        size = op.dims(value)[axis]
        pieces = [] if before == 0 else [sliced(op, value, axis, size - before, size, in_range=True)]
        pieces.append(value)
        if after != 0:
            pieces.append(sliced(op, value, axis, 0, after))
        value = op.Concat(*pieces, axis=axis)
    return value


def padded(op: Op, value: ir.Value, pad: Sequence[Dim], mode: str, fill: float = 0) -> ir.Value:
    """Pad the last axes.

    Args:
        op: The op object.
        value: The tensor.
        pad: Pairs of sizes in torch's order, last axis first; negative ones crop.
        mode: One of torch's names.
        fill: The value of the padding in the mode ``constant``.
    """
    begin, end = _per_axis(op, value, pad)
    if mode == "replicate":
        value, begin, end = _crop_symbolic_axes(op, value, begin, end)
    if mode != "constant":
        value, begin, end = _cropped(op, value, begin, end)
    if all(size == 0 for size in [*begin, *end]):
        return value
    if mode == "circular" and op.opset < 19:
        return _repeated(op, value, begin, end)
    pads = op.sizes([*begin, *end])

    def emit(carrier: ir.Value) -> ir.Value:
        # The default is 0.0, which differs from -0.0.
        given = mode == "constant" and (fill != 0 or math.copysign(1, fill) < 0)
        inputs = [op.const(fill, op.dtype_of(carrier))] if given else []
        return op.Pad(carrier, pads, *inputs, mode=None if mode == "constant" else _MODES[mode])

    dtype = op.dtype_of(value)
    if dtype == ir.DataType.BOOL and op.opset < 13:
        return op.cast(emit(op.cast(value, ir.DataType.INT32)), dtype)
    return as_carrier(op, value, emit)


@translates("aten::pad")
def pad(op: Op, self: ir.Value, pad: Sequence[Dim], mode: str = "constant", value: float | None = None) -> ir.Value:
    """aten::pad(Tensor self, SymInt[] pad, str mode="constant", float? value=None) -> Tensor"""
    if mode != "constant":
        return padded(op, self, pad, mode)
    return constant_pad_nd(op, self, pad, 0 if value is None else value)


@translates("aten::constant_pad_nd")
def constant_pad_nd(op: Op, self: ir.Value, pad: Sequence[Dim], value: float = 0) -> ir.Value:
    """aten::constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor"""
    if value != 0 and op.result.torch_dtype.is_complex:
        raise Unsupported("constant padding of a complex tensor with a value other than 0")
    return padded(op, self, pad, "constant", value)


@translates("aten::reflection_pad1d", "aten::reflection_pad2d", "aten::reflection_pad3d")
def reflection_pad(op: Op, self: ir.Value, padding: Sequence[Dim]) -> ir.Value:
    """aten::reflection_pad1d(Tensor self, SymInt[2] padding) -> Tensor
    aten::reflection_pad2d(Tensor self, SymInt[4] padding) -> Tensor
    aten::reflection_pad3d(Tensor self, SymInt[6] padding) -> Tensor
    """
    return padded(op, self, padding, "reflect")


@translates("aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d")
def replication_pad(op: Op, self: ir.Value, padding: Sequence[Dim]) -> ir.Value:
    """aten::replication_pad1d(Tensor self, SymInt[2] padding) -> Tensor
    aten::replication_pad2d(Tensor self, SymInt[4] padding) -> Tensor
    aten::replication_pad3d(Tensor self, SymInt[6] padding) -> Tensor
    """
    return padded(op, self, padding, "replicate")
