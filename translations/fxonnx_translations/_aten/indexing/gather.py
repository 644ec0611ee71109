"""Gather: indexing by tensors of positions and by masks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import onnx_ir as ir
import torch

from ..._builder.dtypes import BOOL, FLOAT, INT64, UINT8
from ..._builder.loops import arange
from ..._builder.op import Op, Operand, Unsupported
from ..._builder.symbolic_dims import Dim
from ..._registry import translates
from .axes import as_carrier, axis_of, choose, rank, reject_complex

# ---- masks


Indices = Sequence[ir.Value | None]


def nonzero_rows(op: Op, value: ir.Value) -> ir.Value:
    """Return the positions of nonzero elements, INT64 [rank, count]."""
    # ONNX Runtime has NonZero kernels for these; a Cast to BOOL is true for nonzero elements, including NaN.
    if op.dtype_of(value) not in (BOOL, UINT8, INT64, ir.DataType.INT32, ir.DataType.FLOAT):
        value = op.cast(value, BOOL)
    return op.NonZero(value)


def compressed(op: Op, value: ir.Value, mask: ir.Value, axis: int | None) -> ir.Value:
    """Return the slices of ``value`` along ``axis``, or its elements in row-major order, where a 1-dim mask is true."""
    mask = op.cast(mask, BOOL)
    if op.has_kernel("Compress", FLOAT):
        return as_carrier(op, value, lambda carried: op.Compress(carried, mask, axis=axis))
    flat = op.Reshape(value, [-1]) if axis is None else value
    return op.Gather(flat, op.Reshape(op.NonZero(mask), [-1]), axis=0 if axis is None else axis)


@translates("aten::nonzero", "aten::argwhere")
def nonzero(op: Op, self: ir.Value) -> ir.Value:
    """aten::nonzero(Tensor self) -> Tensor
    aten::argwhere(Tensor self) -> Tensor
    """
    if op.rank_of(self) == 0:
        # The positions of a 0-dim tensor have no coordinates; the count is 1 or 0.
        return op.Slice(op.Transpose(nonzero_rows(op, op.Unsqueeze(self, [0])), perm=[1, 0]), [0], [0], [1])
    return op.Transpose(nonzero_rows(op, self), perm=[1, 0])


@translates("aten::nonzero_static")
def nonzero_static(op: Op, self: ir.Value, *, size: int, fill_value: int = -1) -> ir.Value:
    """aten::nonzero_static(Tensor self, *, SymInt size, int fill_value=-1) -> Tensor"""
    rank = op.rank_of(self)
    flags = op.Not(op.Equal(self, op.const(0, op.dtype_of(self)))) if op.dtype_of(self) != BOOL else self
    if rank == 0:
        return op.const(torch.empty(op.result.shape, dtype=torch.int64))
    rows = op.Transpose(op.NonZero(flags), perm=[1, 0])
    fill = op.expand(op.const(fill_value), (size, rank))
    return op.shaped(op.Slice(op.Concat(rows, fill, axis=0), [0], op.size(size), [0]), (size, rank))


@translates("aten::where")
def where_true(op: Op, condition: ir.Value) -> list[ir.Value]:
    """aten::where(Tensor condition) -> Tensor[]"""
    return _coordinates(op, condition)


@translates("aten::nonzero_numpy")
def nonzero_numpy(op: Op, self: ir.Value) -> list[ir.Value]:
    """aten::nonzero_numpy(Tensor self) -> Tensor[]"""
    return _coordinates(op, self)


def _coordinates(op: Op, mask: ir.Value) -> list[ir.Value]:
    """Return the positions of nonzero elements, one INT64 vector per axis; a 0-dim tensor counts as one axis."""
    if op.rank_of(mask) == 0:
        mask = op.Unsqueeze(mask, [0])
    rows = nonzero_rows(op, mask)
    if op.rank_of(mask) == 1:
        return [op.Squeeze(rows, [0])]
    return [op.Gather(rows, op.const(row), axis=0) for row in range(op.rank_of(mask))]


@translates("aten::masked_select")
def masked_select(op: Op, self: ir.Value, mask: ir.Value) -> ir.Value:
    """aten::masked_select(Tensor self, Tensor mask) -> Tensor"""
    if op.dims(self) != op.dims(mask):
        self, mask = broadcast(op, [self, mask])
    reject_complex(op, "masked_select")
    if op.rank_of(self) == 0:
        self = op.Unsqueeze(self, [0])
    return compressed(op, self, op.Reshape(mask, [-1]), None)


# ---- broadcasting


def broadcast_dims(op: Op, values: Sequence[ir.Value]) -> list[Dim]:
    """Return the broadcast shape; of two symbolic sizes the first, since they must be equal."""
    count = max(op.rank_of(value) for value in values)
    result: list[Dim] = [1] * count
    for value in values:
        for axis, dim in enumerate(op.dims(value), start=count - op.rank_of(value)):
            if result[axis] == 1 or (isinstance(dim, int) and dim != 1):
                result[axis] = dim
    return result


def _aligned(op: Op, value: ir.Value, wanted: Sequence[Dim]) -> Iterable[tuple[int, Dim]]:
    """The dims of a value with their axes in the broadcast shape."""
    return enumerate(op.dims(value), start=len(wanted) - op.rank_of(value))


def broadcast(op: Op, values: Sequence[ir.Value]) -> list[ir.Value]:
    """Broadcast all values to their common shape; data-dependent sizes are computed at run time."""
    wanted = broadcast_dims(op, values)
    pairs = [(dim, wanted[axis]) for value in values for axis, dim in _aligned(op, value, wanted)]
    if any(dim not in (1, other) and op.is_known(dim) and op.is_known(other) for dim, other in pairs):
        # A size that is an expression may be 1 beside another one.
        shape = op.Shape(reduce(op.Or, [op.cast(value, BOOL) for value in values]))
        return [op.Expand(value, shape) for value in values]
    result = []
    for value in values:
        missing = [
            dim
            for axis, dim in enumerate(wanted)
            if axis < len(wanted) - op.rank_of(value) or op.dims(value)[axis - len(wanted)] == 1 != dim
        ]
        if not missing:
            result.append(value)
            continue
        if all(map(op.is_known, missing)):
            result.append(as_carrier(op, value, lambda carried: op.expand(carried, wanted)))
            continue
        # Positions of true elements: the shape of a value with all of them gives their number.
        full = next((other for other in values if op.dims(other) == tuple(wanted)), None)
        shape = op.Shape(reduce(op.Add, values) if full is None else full)
        result.append(op.Expand(value, shape))
    return result


# ---- indexing by tensors


@dataclass(frozen=True)
class Indexing:
    """``x[..., i, j, ...]`` with index tensors only, masks already turned into positions.

    Attributes:
        rank: Rank of the indexed tensor.
        indices: INT64 or INT32 positions by axis.
    """

    rank: int
    indices: dict[int, ir.Value]

    @property
    def axes(self) -> list[int]:
        """The indexed axes in ascending order."""
        return sorted(self.indices)

    @property
    def first(self) -> int:
        """The first axis of the index tensors in the result: 0 unless the indexed axes are adjacent."""
        axes = self.axes
        return axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0

    @property
    def perm(self) -> list[int]:
        """All axes, the indexed ones first."""
        return [*self.axes, *(axis for axis in range(self.rank) if axis not in self.indices)]


def is_mask(op: Op, index: ir.Value) -> bool:
    """Whether an index tensor is a mask."""
    return op.dtype_of(index) == BOOL


def prepared_indices(op: Op, value: ir.Value, indices: Indices) -> Indexing:
    """Convert masks to positions.

    Raises:
        Unsupported: For a 0-dim mask.
    """
    found: dict[int, ir.Value] = {}
    axis = 0
    for index in indices:
        if index is None:
            axis += 1
            continue
        if is_mask(op, index) and op.rank_of(index) == 0:
            raise Unsupported("a 0-dim mask as an index, which adds an axis")
        for positions in _coordinates(op, index) if is_mask(op, index) else [index]:
            found[axis] = positions
            axis += 1
    return Indexing(op.rank_of(value), found)


def stacked(op: Op, indices: Sequence[ir.Value]) -> ir.Value:
    """Broadcast index tensors and stack them along a new last axis, as the indices of GatherND."""
    wide = [op.cast(index, INT64) for index in indices]
    return op.Concat(*(op.Unsqueeze(index, [op.rank_of(index)]) for index in broadcast(op, wide)), axis=-1)


def _by_mask(op: Op, value: ir.Value, indices: Indices) -> ir.Value | None:
    """``x[:, mask]``: a single index, which is a mask."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1:
        return None
    (axis, mask) = given[0]
    covered = op.rank_of(mask)
    if not is_mask(op, mask) or covered == 0:
        return None
    if covered == 1:
        return compressed(op, value, mask, axis)
    flat_mask = op.Reshape(mask, [-1])
    if covered == op.rank_of(value):
        return compressed(op, value, flat_mask, None)
    dims = op.dims(value)
    merged = op.reshape(value, [*dims[:axis], math.prod(dims[axis : axis + covered]), *dims[axis + covered :]])
    return compressed(op, merged, flat_mask, axis)


def _axis_by_axis(op: Op, value: ir.Value, indexing: Indexing) -> ir.Value | None:
    """``x[i[:, None], j]``: index tensors that vary along different axes, in order, as one Gather per axis."""
    axes, first = indexing.axes, indexing.first
    if axes != list(range(first, first + len(axes))):
        return None
    values = [indexing.indices[axis] for axis in axes]
    count = max(op.rank_of(index) for index in values)
    varying = [
        [axis + count - op.rank_of(index) for axis, dim in enumerate(op.dims(index)) if dim != 1] for index in values
    ]
    order = [axis for some in varying for axis in some]
    if order != sorted(set(order)):
        return None
    common = broadcast_dims(op, values)
    result, position = value, first
    for index, some in zip(values, varying, strict=True):
        dims = op.dims(index)
        ones = [axis for axis, dim in enumerate(dims) if dim == 1]
        result = op.Gather(result, op.Squeeze(index, ones), axis=position)
        position += len(some)
    # An index tensor that varies along no axis removed its axis.
    return op.Unsqueeze(result, [first + axis for axis, dim in enumerate(common) if dim == 1])


def indexed(op: Op, self: ir.Value, indices: Indices) -> ir.Value:
    """``self[indices]``."""
    by_mask = _by_mask(op, self, indices)
    if by_mask is not None:
        return by_mask
    indexing = prepared_indices(op, self, indices)
    axes = indexing.axes
    if not axes:
        return self
    if len(axes) == 1:
        return op.Gather(self, indexing.indices[axes[0]], axis=axes[0])
    separate = _axis_by_axis(op, self, indexing)
    if separate is not None:
        return separate
    positions = stacked(op, [indexing.indices[axis] for axis in axes])
    picked = op.GatherND(op.Transpose(self, perm=indexing.perm), positions)
    first, count = indexing.first, op.rank_of(positions) - 1
    if first == 0:
        return picked
    total = count + indexing.rank - len(axes)
    before = range(count, count + first)
    return op.Transpose(picked, perm=[*before, *range(count), *range(count + first, total)])


@translates("aten::index.Tensor", "aten::_unsafe_index.Tensor")
def index(op: Op, self: ir.Value, indices: Indices) -> ir.Value:
    """aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor
    aten::_unsafe_index.Tensor(Tensor self, Tensor?[] indices) -> Tensor
    """
    return indexed(op, self, indices)


# ---- gather along one axis


@translates("aten::index_select")
def index_select(op: Op, self: ir.Value, dim: int, index: ir.Value) -> ir.Value:
    """aten::index_select(Tensor self, int dim, Tensor index) -> Tensor"""
    if rank(op, self) == 0:
        return self
    return op.Gather(self, op.Reshape(index, [-1]) if op.rank_of(index) == 0 else index, axis=axis_of(op, self, dim))


def gathered(op: Op, value: ir.Value, index: ir.Value, axis: int) -> ir.Value:
    """Emit GatherElements, also for 0-dim tensors."""
    if op.rank_of(value) == 0:
        # A 0-dim tensor has one position; the result has the shape of the index.
        return op.expand(value, op.result.shape) if op.rank_of(index) else value
    if op.rank_of(index) == 0:
        return op.Squeeze(op.GatherElements(value, op.Unsqueeze(index, [0]), axis=axis), [0])
    return op.GatherElements(value, index, axis=axis)


@translates("aten::gather")
def gather(op: Op, self: ir.Value, dim: int, index: ir.Value, sparse_grad: bool = False) -> ir.Value:
    """aten::gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor"""
    reject_complex(op, "gather")
    return gathered(op, self, index, axis_of(op, self, dim))


@translates("aten::take_along_dim")
def take_along_dim(op: Op, self: ir.Value, indices: ir.Value, dim: int | None = None) -> ir.Value:
    """aten::take_along_dim(Tensor self, Tensor indices, int? dim=None) -> Tensor"""
    reject_complex(op, "take_along_dim")
    if dim is None:
        return op.Gather(op.Reshape(self, [-1]), op.Reshape(indices, [-1]), axis=0)
    axis = axis_of(op, self, dim)
    # All axes but ``dim`` are broadcast.
    dims, wanted = op.dims(self), list(op.result.shape)
    self = op.expand(self, [*wanted[:axis], dims[axis], *wanted[axis + 1 :]])
    return gathered(op, self, op.expand(indices, wanted), axis)


@translates("aten::take")
def take(op: Op, self: ir.Value, index: ir.Value) -> ir.Value:
    """aten::take(Tensor self, Tensor index) -> Tensor"""
    trailing = [2] if op.result.torch_dtype.is_complex else []
    return op.Gather(op.Reshape(self, [-1, *trailing]), index, axis=0)


# ---- selection by condition


@translates("aten::where.self", "aten::where.ScalarOther", "aten::where.ScalarSelf", "aten::where.Scalar")
def where(op: Op, condition: ir.Value, self: Operand, other: Operand) -> ir.Value:
    """aten::where.self(Tensor condition, Tensor self, Tensor other) -> Tensor
    aten::where.ScalarOther(Tensor condition, Tensor self, Scalar other) -> Tensor
    aten::where.ScalarSelf(Tensor condition, Scalar self, Tensor other) -> Tensor
    aten::where.Scalar(Tensor condition, Scalar self, Scalar other) -> Tensor
    """
    reject_complex(op, "where")
    dtype = op.result.dtype
    return choose(op, op.cast(condition, BOOL), op.operand(self, dtype), op.operand(other, dtype))


@translates("aten::masked_fill.Scalar", "aten::masked_fill.Tensor")
def masked_fill(op: Op, self: ir.Value, mask: ir.Value, value: Operand) -> ir.Value:
    """aten::masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor
    aten::masked_fill.Tensor(Tensor self, Tensor mask, Tensor value) -> Tensor
    """
    reject_complex(op, "masked_fill")
    return choose(op, op.cast(mask, BOOL), op.operand(value, op.result.dtype), self)


@translates("aten::combinations")
def combinations(op: Op, self: ir.Value, r: int = 2, with_replacement: bool = False) -> ir.Value:
    """aten::combinations(Tensor self, int r=2, bool with_replacement=False) -> Tensor"""
    (size,) = op.dims(self)
    if not isinstance(size, int):
        raise Unsupported(f"the combinations of a symbolic number of elements, {size}")
    if 0 in op.result.shape:
        return op.expand(op.const(0, op.dtype_of(self)), op.result.shape)
    choose_from = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    return op.Gather(self, op.const([list(positions) for positions in choose_from(range(size), r)]), axis=0)


@translates("aten::narrow.Tensor")
def narrow_from_tensor(op: Op, self: ir.Value, dim: int, start: ir.Value, length: Dim) -> ir.Value:
    """aten::narrow.Tensor(Tensor(a) self, int dim, Tensor start, SymInt length) -> Tensor(a)"""
    # Unlike Slice, Gather fails where torch does: if elements after the last one are asked for.
    positions = op.Add(arange(op, length), op.cast(start, INT64))
    return op.shaped(op.Gather(self, positions, axis=axis_of(op, self, dim)), op.result.shape)
