"""Tensors with one of their views replaced: what assignments to views become."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch

from .._builder.op import Op
from .._builder.symbolic_dims import Dim
from .._registry import translates
from .axes import END, axis_of, first_position, position, refuse_complex, sliced
from .scatter import along_axis

# The types in which Where has a kernel: for the others joining the parts is shorter.
_CHOSEN = frozenset(
    {
        ir.DataType.FLOAT,
        ir.DataType.DOUBLE,
        ir.DataType.FLOAT16,
        ir.DataType.INT64,
        ir.DataType.INT32,
        ir.DataType.UINT8,
    }
)
# Masks are stored in the model.
_LONGEST_MASK = 4096


@translates("aten::slice_scatter")
def slice_scatter(
    op: Op,
    self: ir.Value,
    src: ir.Value,
    dim: int = 0,
    start: Dim | None = None,
    end: Dim | None = None,
    step: Dim = 1,
) -> ir.Value:
    """aten::slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor"""
    axis = axis_of(op, self, dim)
    source = op.cast(src, op.result.dtype)
    size, count = op.dims(self)[axis], op.dims(source)[axis]
    if count == size and step == 1:
        return source
    if count == 0:
        return self
    first, last = _limits(size, count, 0 if start is None else start, END if end is None else end)
    if step != 1:
        places = _places(op, count, first_position(first, size), step)
        return along_axis(op, self, axis, places, source)
    parts = [source]
    if first != 0:
        parts.insert(0, sliced(op, self, axis, 0, first))
    if last != END and last != size:
        parts.append(sliced(op, self, axis, last, END))
    return op.Concat(*parts, axis=axis)


def _limits(size: Dim, count: Dim, start: Dim, end: Dim) -> tuple[Dim, Dim]:
    """Where the slice begins and ends, in a form that ONNX's Slice takes for the parts before and after it.

    Numbers stay as they are where the slice cannot begin after its end at any size: nothing is computed at run time.
    """
    if not isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        same_side = (start < 0) == (end < 0)
        if end == END or (same_side and start <= end):
            return start, end
    first = first_position(start, size)
    return first, first + count


def _places(op: Op, count: Dim, first: Dim, step: Dim) -> ir.Value:
    """The positions of a slice with a step."""
    if isinstance(first, int) and isinstance(count, int) and isinstance(step, int):
        return op.const(torch.from_numpy(first + step * np.arange(count, dtype=np.int64)))
    return op.Range(op.scalar(first), op.scalar(first + count * step), op.scalar(step))


@translates("aten::select_scatter")
def select_scatter(op: Op, self: ir.Value, src: ir.Value, dim: int, index: Dim) -> ir.Value:
    """aten::select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor"""
    axis = axis_of(op, self, dim)
    dims = op.dims(self)
    size, source = dims[axis], op.Unsqueeze(op.cast(src, op.result.dtype), [axis])
    if size == 1:
        return source
    index = position(index, size)
    if axis == 0 or not isinstance(index, int):
        return along_axis(op, self, axis, op.size(index), source)
    if isinstance(size, int) and size <= _LONGEST_MASK and op.dtype_of(source) in _CHOSEN:
        chosen = np.zeros([size] + [1] * (len(dims) - axis - 1), dtype=bool)
        chosen[index] = True
        return op.Where(op.const(torch.from_numpy(chosen)), source, self)
    parts = [source]
    if index != 0:
        parts.insert(0, sliced(op, self, axis, 0, index))
    if index not in (-1, size - 1):
        parts.append(sliced(op, self, axis, index + 1, END))
    return op.Concat(*parts, axis=axis)


@translates("aten::diagonal_scatter")
def diagonal_scatter(op: Op, self: ir.Value, src: ir.Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> ir.Value:
    """aten::diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor"""
    refuse_complex(op, "diagonal_scatter")
    row_axis, column_axis = (axis_of(op, self, dim) for dim in (dim1, dim2))
    perm = [axis for axis in range(op.rank_of(self)) if axis not in (row_axis, column_axis)] + [row_axis, column_axis]
    matrices, source = op.Transpose(self, perm=perm), op.cast(src, op.result.dtype)
    rows, columns = op.dims(matrices)[-2:]
    batch = op.dims(matrices)[:-2]
    # Element (r, c) of a matrix is number r * columns + c of its row.
    length = op.dims(source)[-1]
    first = offset if offset >= 0 else -offset * columns
    places = _places(op, length, first, columns + 1)
    flat = along_axis(op, op.reshape(matrices, [*batch, rows * columns]), len(batch), places, source)
    return op.Transpose(op.reshape(flat, op.dims(matrices)), perm=[perm.index(axis) for axis in range(len(perm))])
