"""Slices, diagonals, unfold, flips and strided views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ..._builder.empty_tensors import STATIC_SLICE, symbols_that_must_be_positive
from ..._builder.op import Op
from ..._builder.symbolic_dims import Dim, is_static
from ..._registry import OpCall, translates
from ..._torch_compat import PythonMod, sym_max
from .axes import END, as_carrier, axis_of, first_position, position, rank, sliced
from .scatter import scatter_op


@translates("aten::select.int", "aten::select_copy.int")
def select(op: Op, self: ir.Value, dim: int, index: Dim) -> ir.Value:
    """aten::select.int(Tensor(a) self, int dim, SymInt index) -> Tensor(a)
    aten::select_copy.int(Tensor self, int dim, SymInt index) -> Tensor
    """
    axis = axis_of(op, self, dim)
    size = op.dims(self)[axis]
    if size == 1:
        return op.Squeeze(self, [axis])
    return op.Gather(self, op.scalar(position(index, size)), axis=axis)


@translates("aten::slice.Tensor", "aten::slice_copy.Tensor")
def slice(
    op: Op, self: ir.Value, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: Dim = 1
) -> ir.Value:
    """aten::slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)
    aten::slice_copy.Tensor(Tensor self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor
    """
    axis = axis_of(op, self, dim)
    size, length = op.dims(self)[axis], op.result.shape[axis]
    if step == 1 and length == size:
        return self
    if not isinstance(size, int) and isinstance(length, int) and length > 0:
        # Even if the slice itself is not used, its captured size may be: meshgrid expands others to it.
        op.builder.positive_sizes.setdefault(size, STATIC_SLICE)
    start, end = 0 if start is None else start, END if end is None else end
    # torch captures this length only if it knows both limits to be within the axis.
    in_range = step == 1 and length == (size if end == END else end) - start
    result = sliced(op, self, axis, start, end, step, in_range=in_range)
    emptied = symbols_that_must_be_positive(size, start, end, step, length)
    if emptied:
        op.builder.nonempty_symbols[result] = emptied
    return result


@translates("aten::narrow", "aten::narrow_copy")
def narrow(op: Op, self: ir.Value, dim: int, start: Dim, length: Dim) -> ir.Value:
    """aten::narrow(Tensor(a) self, int dim, SymInt start, SymInt length) -> Tensor(a)
    aten::narrow_copy(Tensor self, int dim, SymInt start, SymInt length) -> Tensor
    """
    axis = axis_of(op, self, dim)
    if length == op.dims(self)[axis]:
        return self
    if isinstance(start, int):
        # As a negative limit, 0 would be the beginning.
        ends_last = start < 0 and start + length == 0
        return sliced(op, self, axis, start, END if ends_last else start + length)
    start = first_position(start, op.dims(self)[axis])
    return sliced(op, self, axis, start, start + length)


@translates("aten::unfold")
def unfold(op: Op, self: ir.Value, dimension: int, size: int, step: int) -> ir.Value:
    """aten::unfold(Tensor(a) self, int dimension, int size, int step) -> Tensor(a)"""
    if rank(op, self) == 0:
        return op.Unsqueeze(self, [0])
    axis = axis_of(op, self, dimension)
    count = op.result.shape[axis]
    if isinstance(count, int):
        windows = op.const([[first * step + place for place in range(size)] for first in range(count)])
        if count == 0:
            windows = op.const(torch.zeros((0, size), dtype=torch.int64))
    else:
        first = op.Mul(op.Range(0, op.scalar(count), 1), step)
        windows = op.Add(op.Unsqueeze(first, [1]), op.const(list(range(size))))
    cut = op.Gather(self, windows, axis=axis)
    axes = list(range(rank(op, self) + 1))
    axes.remove(axis + 1)
    trailing = [len(axes) + 1] if op.result.torch_dtype.is_complex else []
    return op.Transpose(cut, perm=[*axes, axis + 1, *trailing])


@translates("aten::diagonal")
def diagonal(op: Op, self: ir.Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> ir.Value:
    """aten::diagonal(Tensor(a) self, int offset=0, int dim1=0, int dim2=1) -> Tensor(a)"""
    axes = [axis_of(op, self, dim) for dim in (dim1, dim2)]
    cut = diagonal_of(op, self, axes, op.result.shape[-1], offset)
    if not op.result.torch_dtype.is_complex:
        return cut
    rank = op.rank_of(cut)
    return op.Transpose(cut, perm=[*range(rank - 2), rank - 1, rank - 2])


def diagonal_of(op: Op, value: ir.Value, axes: Sequence[int], length: Dim, offset: int = 0) -> ir.Value:
    """Return a diagonal of two axes, as the last axis.

    Args:
        op: The op object.
        value: The tensor.
        axes: The axis of the rows, and the one of the columns.
        length: The number of elements of the diagonal.
        offset: The number of columns after the main diagonal, or of rows if it is negative.
    """
    dims = op.dims(value)
    rows, columns = (dims[axis] for axis in axes)
    rest = [axis for axis in range(len(dims)) if axis not in axes]
    moved = op.Transpose(value, perm=[*rest, *axes])
    # In row-major order adjacent elements of the diagonal are one row and one element apart.
    first = offset if offset >= 0 else -offset * columns
    step = columns + 1
    flat = op.reshape(moved, [*op.dims(moved)[:-2], rows * columns])
    return op.Slice(flat, op.size(first), op.size(first + length * step), [len(rest)], op.size(step))


# ---- flips, rolls and axis permutations


def flipped(op: Op, value: ir.Value, axes: Sequence[int]) -> ir.Value:
    """Reverse the value along the axes."""
    if not axes:
        return value
    count = len(axes)
    return op.Slice(value, [-1] * count, [-(2**63)] * count, list(axes), [-1] * count)


@translates("aten::flip")
def flip(op: Op, self: ir.Value, dims: Sequence[int]) -> ir.Value:
    """aten::flip(Tensor self, int[] dims) -> Tensor"""
    if rank(op, self) == 0:
        return self
    return flipped(op, self, sorted({axis_of(op, self, dim) for dim in dims}))


def _rolled(op: Op, value: ir.Value, axis: int, shift: Dim) -> ir.Value:
    size = op.dims(value)[axis]
    if size == 0:
        return value
    if isinstance(size, int) and isinstance(shift, int):
        start: Dim = -shift % size
    else:
        start = PythonMod(-shift, size)
        start = int(start) if start.is_Integer else start
    if start == 0:
        return value
    joined = op.Concat(sliced(op, value, axis, start, END), sliced(op, value, axis, 0, start), axis=axis)
    return op.shaped(joined, op.dims(value))


@translates("aten::roll")
def roll(op: Op, self: ir.Value, shifts: Sequence[Dim], dims: Sequence[int] = ()) -> ir.Value:
    """aten::roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor"""
    if rank(op, self) == 0:
        return self
    if not dims:
        trailing = [2] if op.result.torch_dtype.is_complex else []
        flat = _rolled(op, op.Reshape(self, [-1, *trailing]), 0, shifts[0])
        return op.reshape(flat, [*op.result.shape, *trailing])
    for shift, dim in zip(shifts, dims, strict=True):
        self = _rolled(op, self, axis_of(op, self, dim), shift)
    return self


@translates("aten::rot90")
def rot90(op: Op, self: ir.Value, k: int = 1, dims: Sequence[int] = (0, 1)) -> ir.Value:
    """aten::rot90(Tensor self, int k=1, int[] dims=[0, 1]) -> Tensor"""
    first, second = (axis_of(op, self, dim) for dim in dims)
    turns = k % 4
    backwards: list[list[int]] = [[], [second], [first, second], [first]]
    value = flipped(op, self, backwards[turns])
    if turns % 2 == 0:
        return value
    perm = list(range(op.rank_of(value)))
    perm[first], perm[second] = second, first
    return op.Transpose(value, perm=perm)


@translates("aten::movedim.int", "aten::movedim.intlist", "aten::moveaxis.int", "aten::moveaxis.intlist")
def movedim(op: Op, self: ir.Value, source: int | Sequence[int], destination: int | Sequence[int]) -> ir.Value:
    """aten::movedim.int(Tensor(a) self, int source, int destination) -> Tensor(a)
    aten::movedim.intlist(Tensor(a) self, int[] source, int[] destination) -> Tensor(a)
    aten::moveaxis.int(Tensor(a) self, int source, int destination) -> Tensor(a)
    aten::moveaxis.intlist(Tensor(a) self, int[] source, int[] destination) -> Tensor(a)
    """
    if rank(op, self) == 0:
        return self
    sources = [axis_of(op, self, dim) for dim in ([source] if isinstance(source, int) else source)]
    positions = [axis_of(op, self, dim) for dim in ([destination] if isinstance(destination, int) else destination)]
    taken = dict(zip(positions, sources, strict=True))
    rest = iter(axis for axis in range(op.rank_of(self)) if axis not in sources)
    return op.Transpose(self, perm=[taken[axis] if axis in taken else next(rest) for axis in range(op.rank_of(self))])


@translates("aten::swapaxes")
def swapaxes(op: Op, self: ir.Value, axis0: int, axis1: int) -> ir.Value:
    """aten::swapaxes(Tensor(a) self, int axis0, int axis1) -> Tensor(a)"""
    return movedim(op, self, [axis0, axis1], [axis1, axis0])


@translates("aten::swapdims")
def swapdims(op: Op, self: ir.Value, dim0: int, dim1: int) -> ir.Value:
    """aten::swapdims(Tensor(a) self, int dim0, int dim1) -> Tensor(a)"""
    return movedim(op, self, [dim0, dim1], [dim1, dim0])


# ---- triangles


def _triangle(op: Op, value: ir.Value, diagonal: Dim, upper: bool) -> ir.Value:
    k = None if diagonal == 0 and op.opset >= 14 else op.scalar(diagonal)
    dtype = op.dtype_of(value)
    if op.result.torch_dtype.is_complex:
        last = op.rank_of(value) - 1
        parts = _trilu(op, op.Transpose(value, perm=[last, *range(last)]), k, upper)
        return op.Transpose(parts, perm=[*range(1, last + 1), 0])
    if dtype in (ir.DataType.INT8, ir.DataType.UINT8):
        # ONNX Runtime's Trilu has integer kernels for 32 and 64 bits only.
        return op.cast(_trilu(op, op.cast(value, ir.DataType.INT32), k, upper), dtype)
    return as_carrier(op, value, lambda carried: _trilu(op, carried, k, upper))


def _trilu(op: Op, value: ir.Value, k: ir.Value | None, upper: bool) -> ir.Value:
    return op.Trilu(value, upper=int(upper)) if k is None else op.Trilu(value, k, upper=int(upper))


@translates("aten::tril")
def tril(op: Op, self: ir.Value, diagonal: Dim = 0) -> ir.Value:
    """aten::tril(Tensor self, SymInt diagonal=0) -> Tensor"""
    return _triangle(op, self, diagonal, upper=False)


@translates("aten::triu")
def triu(op: Op, self: ir.Value, diagonal: Dim = 0) -> ir.Value:
    """aten::triu(Tensor self, SymInt diagonal=0) -> Tensor"""
    return _triangle(op, self, diagonal, upper=True)


def is_contiguous(source: torch.Tensor) -> bool:
    """Whether the tensor is contiguous, decided without adding guards on symbolic sizes."""
    # torch computes strides of sizes of at least 1; they are the same unless the tensor is empty.
    expected: list[Any] = [1, 1]
    for size, stride in reversed(list(zip(source.shape, source.stride(), strict=True))):
        is_one = statically_known_true(size == 1)
        if not is_one and not any(statically_known_true(stride == distance) for distance in expected):
            return False
        expected = [expected[0] * size, expected[1] * sym_max(size, 1)]
    return True


def _reject_noncontiguous(call: OpCall) -> str | None:
    """Reject as_strided of tensors that are not contiguous: ONNX tensors have no strides or storage."""
    source, offset = call.arguments["self"], call.arguments["storage_offset"]
    if not is_contiguous(source):
        return "as_strided of a tensor that is not contiguous"
    if offset is not None and not statically_known_true(source.storage_offset() == 0):
        return "as_strided of a view that does not begin at the start of its storage"
    size, stride = call.arguments["size"], call.arguments["stride"]
    last: Any = offset or 0
    for count, distance in zip(size, stride, strict=True):
        last = last + (count - 1) * distance
    if statically_known_true(last >= source.numel()) and not any(statically_known_true(count == 0) for count in size):
        return "as_strided that reads beyond its input"
    return None


def _storage_positions(op: Op, size: Sequence[Dim], stride: Sequence[Dim], first: Dim) -> ir.Value:
    """Return the storage position of each element of the view, INT64 of its shape."""
    if is_static([*size, *stride, first]):
        known = np.full((), first, dtype=np.int64)
        for count, distance in zip(size, stride, strict=True):
            known = known[..., None] + np.arange(count, dtype=np.int64) * distance
        return op.const(torch.from_numpy(known))
    positions = op.scalar(first, ir.DataType.INT64)
    for count, distance in zip(size, stride, strict=True):
        steps = op.Mul(op.Range(0, op.scalar(count), 1), op.scalar(distance))
        positions = op.Add(op.Unsqueeze(positions, [-1]), steps)
    return op.shaped(positions, size)


@translates("aten::as_strided", accepts=_reject_noncontiguous)
def as_strided(
    op: Op, self: ir.Value, size: Sequence[Dim], stride: Sequence[Dim], storage_offset: Dim | None = None
) -> ir.Value:
    """aten::as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor(a)"""
    positions = _storage_positions(op, size, stride, 0 if storage_offset is None else storage_offset)
    return op.Gather(op.Reshape(self, [-1]), positions, axis=0)


@translates("aten::as_strided_scatter", accepts=_reject_noncontiguous)
def as_strided_scatter(
    op: Op,
    self: ir.Value,
    src: ir.Value,
    size: Sequence[Dim],
    stride: Sequence[Dim],
    storage_offset: Dim | None = None,
) -> ir.Value:
    """aten::as_strided_scatter(Tensor self, Tensor src, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor"""
    positions = _storage_positions(op, size, stride, 0 if storage_offset is None else storage_offset)
    flat, spots, values = (op.Reshape(value, [-1]) for value in (self, positions, op.expand(src, size)))
    return op.reshape(
        scatter_op(op, "ScatterElements", flat, spots, op.cast(values, op.dtype_of(self)), None, 0), op.dims(self)
    )
