"""Scatter: index_put, masked writes, and scatter into views."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch

from ..._builder.dtypes import BOOL, FLOAT, HALF_FLOATS, INT32, INT64
from ..._builder.empty_tensors import STATIC_SLICE, symbols_that_must_be_positive
from ..._builder.op import Op, Operand, Unsupported
from ..._builder.symbolic_dims import Dim
from ..._registry import translates
from .axes import END, axis_of, choose, first_position, position, rank, reject_complex, sliced
from .gather import Indexing, Indices, broadcast, index, is_mask, nonzero_rows, prepared_indices, stacked

_SINCE = {None: 11, "add": 16, "mul": 16, "max": 18, "min": 18}


def scatter_op(
    op: Op, name: str, self: ir.Value, index: ir.Value, source: ir.Value, reduction: str | None, axis: int | None = None
) -> ir.Value:
    """Emit ScatterElements or ScatterND, in a type with a kernel for the reduction.

    Raises:
        Unsupported: If the reduction does not exist at the target opset.
    """
    if op.opset < _SINCE[reduction]:
        raise Unsupported(f"{name} with reduction {reduction} exists from opset {_SINCE[reduction]} on")
    dtype = op.dtype_of(self)
    carrier = dtype
    if reduction is not None and dtype in HALF_FLOATS:
        # ONNX Runtime has no kernels for reductions of half types.
        carrier = FLOAT
    elif reduction in ("max", "min") and dtype == BOOL:
        carrier = ir.DataType.INT32
    values = (op.cast(self, carrier), index, op.cast(source, carrier))
    emitted: ir.Value = getattr(op, name)(*values, axis=axis, reduction=reduction)
    return op.cast(emitted, dtype)


# ---- one position per element


def _elements(
    op: Op, self: ir.Value, dim: int, index: ir.Value, source: ir.Value, reduction: str | None = None
) -> ir.Value:
    """ScatterElements: write each element of ``source`` to the position along one axis that ``index`` gives for it."""
    reject_complex(op, "scatter")
    if op.rank_of(self) == 0:
        base, places, new = (
            value if op.rank_of(value) else op.Unsqueeze(value, [0]) for value in (self, index, source)
        )
        return op.Squeeze(scatter_op(op, "ScatterElements", base, places, new, reduction, 0), [0])
    axis = axis_of(op, self, dim)
    return scatter_op(op, "ScatterElements", self, index, _cut_to(op, source, index), reduction, axis)


def _cut_to(op: Op, source: ir.Value, index: ir.Value) -> ir.Value:
    """Crop the source to the shape of the index: torch reads no more of it."""
    wanted, dims = op.dims(index), op.dims(source)
    axes = [axis for axis, (size, dim) in enumerate(zip(wanted, dims, strict=True)) if size != dim]
    if not axes:
        return source
    return op.Slice(source, [0] * len(axes), op.sizes([wanted[axis] for axis in axes]), axes)


def _filled_like(op: Op, value: Operand, like: ir.Value, dtype: ir.DataType) -> ir.Value:
    return op.expand(op.operand(value, dtype), op.dims(like))


_REDUCTIONS = {"add": "add", "multiply": "mul", "sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


@translates("aten::scatter.src")
def scatter(op: Op, self: ir.Value, dim: int, index: ir.Value, src: ir.Value) -> ir.Value:
    """aten::scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor"""
    return _elements(op, self, dim, index, src)


@translates("aten::scatter.value")
def scatter_value(op: Op, self: ir.Value, dim: int, index: ir.Value, value: Operand) -> ir.Value:
    """aten::scatter.value(Tensor self, int dim, Tensor index, Scalar value) -> Tensor"""
    return _elements(op, self, dim, index, _filled_like(op, value, index, op.result.dtype))


@translates("aten::scatter.reduce")
def scatter_and_reduce(op: Op, self: ir.Value, dim: int, index: ir.Value, src: ir.Value, reduce: str) -> ir.Value:
    """aten::scatter.reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> Tensor"""
    return _elements(op, self, dim, index, src, _REDUCTIONS[reduce])


@translates("aten::scatter.value_reduce")
def scatter_value_and_reduce(
    op: Op, self: ir.Value, dim: int, index: ir.Value, value: Operand, reduce: str
) -> ir.Value:
    """aten::scatter.value_reduce(Tensor self, int dim, Tensor index, Scalar value, *, str reduce) -> Tensor"""
    source = _filled_like(op, value, index, op.result.dtype)
    return _elements(op, self, dim, index, source, _REDUCTIONS[reduce])


@translates("aten::scatter_add")
def scatter_add(op: Op, self: ir.Value, dim: int, index: ir.Value, src: ir.Value) -> ir.Value:
    """aten::scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor"""
    return _elements(op, self, dim, index, src, "add")


def _identity_element(dtype: ir.DataType, reduce: str) -> float:
    """Return the identity element of a reduction."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if dtype.is_floating_point():
        return -math.inf if reduce == "amax" else math.inf
    if dtype == BOOL:
        return reduce == "amin"
    limits = torch.iinfo(ir.tensor_adapters.to_torch_dtype(dtype))
    return limits.min if reduce == "amax" else limits.max


@translates("aten::scatter_reduce.two", exact="NaN propagates through amax and amin")
def scatter_reduce(
    op: Op, self: ir.Value, dim: int, index: ir.Value, src: ir.Value, reduce: str, include_self: bool = True
) -> ir.Value:
    """aten::scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True) -> Tensor"""
    reject_complex(op, "scatter_reduce")
    dtype = op.dtype_of(self)
    base = self
    if not include_self:
        base = _elements(op, self, dim, index, _filled_like(op, _identity_element(dtype, reduce), index, dtype))
    if reduce == "mean":
        return _mean(op, base, dim, index, src, include_self)
    result = _elements(op, base, dim, index, src, _REDUCTIONS[reduce])
    if not op.exact_numerics or reduce not in ("amax", "amin") or not dtype.is_floating_point():
        return result
    # In ONNX Runtime the result for NaN depends on the order of elements; torch propagates NaN.
    flags = [op.cast(op.IsNaN(value), ir.DataType.INT32) for value in (base, src)]
    some = op.cast(_elements(op, flags[0], dim, index, flags[1], "max"), BOOL)
    return choose(op, some, op.const(math.nan, dtype), result)


def _mean(op: Op, base: ir.Value, dim: int, index: ir.Value, src: ir.Value, include_self: bool) -> ir.Value:
    dtype = op.dtype_of(base)
    total = _elements(op, base, dim, index, src, "add")
    counted = FLOAT if dtype.is_floating_point() else dtype
    start = _filled_like(op, int(include_self), base, counted)
    count = _elements(op, start, dim, index, _filled_like(op, 1, index, counted), "add")
    if not include_self:
        count = op.Max(count, op.const(1, counted))
    count = op.cast(count, dtype)
    if dtype.is_floating_point():
        return op.Div(total, count)
    # torch rounds down; Mod has the divisor's sign, so this division is exact.
    return op.Div(op.Sub(total, op.Mod(total, count)), count)


# ---- slices along one axis


def along_axis(
    op: Op, self: ir.Value, dim: int, index: ir.Value, source: ir.Value, reduction: str | None = None
) -> ir.Value:
    """Write the slices of ``source`` to the positions ``index`` of an axis of ``self``.

    Args:
        op: The op object.
        self: Tensor of any rank.
        dim: The axis; negative ones count from the end.
        index: INT32 or INT64 [count], or a number.
        source: Of the shape of ``self``, except for size ``count`` along the axis, and of its element type.
        reduction: Reduction of the ONNX operator, or None to replace elements.
    """
    if op.rank_of(self) == 0:
        return source if reduction is None else _elements(op, self, 0, index, source, reduction)
    axis = axis_of(op, self, dim)
    positions = op.cast(op.Reshape(index, [-1]) if op.rank_of(index) == 0 else index, INT64)
    if op.rank_of(source) < op.rank_of(self):
        source = op.Unsqueeze(source, [axis])
    if axis == 0:
        return scatter_op(op, "ScatterND", self, op.Unsqueeze(positions, [1]), source, reduction)
    column = op.Reshape(positions, [-1] + [1] * (op.rank_of(self) - axis - 1))
    return scatter_op(op, "ScatterElements", self, op.expand(column, op.dims(source)), source, reduction, axis)


def _tensor_scatter(op: Op, self: ir.Value, dim: int, index: ir.Value, source: ir.Value) -> ir.Value | None:
    """Write to consecutive positions by TensorScatter, which runtimes can run in-place; None if it does not apply."""
    if op.opset < 24 or op.rank_of(self) < 2 or op.rank_of(source) != op.rank_of(self):
        return None
    axis = axis_of(op, self, dim)
    first = consecutive(op, index)
    # The first axis is the batch, with one position for each row.
    if axis == 0 or first is None:
        return None
    return op.TensorScatter(self, source, op.expand(op.cast(first, INT64), [op.dims(self)[0]]), axis=axis)


def consecutive(op: Op, index: ir.Value) -> ir.Value | None:
    """Return the first of consecutive positions, as [1] or 0-dim, or None if they are not known to be consecutive.

    Args:
        op: The op object.
        index: INT32 or INT64 [count].
    """
    if op.dims(index) in ((), (1,)):
        return index
    constant = index.const_value
    if constant is not None and not index.is_graph_input():
        values = constant.numpy().tolist()
        return op.const(values[:1], INT64) if values == list(range(values[0], values[0] + len(values))) else None
    node = index.producer()
    if node is None:
        return None
    if node.op_type == "Range" and node.inputs[2] is not None and node.inputs[2].const_value is not None:
        return node.inputs[0] if node.inputs[2].const_value.numpy().item() == 1 else None
    if node.op_type == "Cast":
        return consecutive(op, _input(node, 0)) if _input(node, 0).dtype in (INT32, INT64) else None
    if node.op_type == "Add":
        for offset, positions in ((0, 1), (1, 0)):
            if math.prod(op.dims(_input(node, offset))) == 1 and op.rank_of(_input(node, positions)) == 1:
                first = consecutive(op, _input(node, positions))
                return None if first is None else op.Add(first, _input(node, offset))
    return None


def _input(node: ir.Node, position: int) -> ir.Value:
    value = node.inputs[position]
    if value is None:
        raise Unsupported(f"input {position} of {node.op_type} is absent")
    return value


@translates("aten::index_copy")
def index_copy(op: Op, self: ir.Value, dim: int, index: ir.Value, source: ir.Value) -> ir.Value:
    """aten::index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor"""
    written = _tensor_scatter(op, self, dim, index, source)
    return written if written is not None else along_axis(op, self, dim, index, source)


@translates("aten::index_add")
def index_add(op: Op, self: ir.Value, dim: int, index: ir.Value, source: ir.Value, alpha: Operand = 1) -> ir.Value:
    """aten::index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor"""
    if alpha != 1:
        source = op.Mul(source, op.operand(alpha, op.dtype_of(source)))
    return along_axis(op, self, dim, index, source, "add")


@translates("aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor")
def index_fill(op: Op, self: ir.Value, dim: int, index: ir.Value, value: Operand) -> ir.Value:
    """aten::index_fill.int_Scalar(Tensor self, int dim, Tensor index, Scalar value) -> Tensor
    aten::index_fill.int_Tensor(Tensor self, int dim, Tensor index, Tensor value) -> Tensor
    """
    reject_complex(op, "index_fill")
    filling = op.operand(value, op.result.dtype)
    if op.rank_of(self) == 0:
        return filling
    axis = axis_of(op, self, dim)
    dims = op.dims(self)
    count = op.dims(index)[0] if op.rank_of(index) else 1
    return along_axis(op, self, dim, index, op.expand(filling, [*dims[:axis], count, *dims[axis + 1 :]]))


@translates("aten::index_reduce", exact="NaN propagates through amax and amin")
def index_reduce(
    op: Op, self: ir.Value, dim: int, index: ir.Value, source: ir.Value, reduce: str, include_self: bool = True
) -> ir.Value:
    """aten::index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, bool include_self=True) -> Tensor"""
    if rank(op, self) == 0:
        row, only = op.Unsqueeze(self, [0]), op.Reshape(source, [-1])
        return op.Squeeze(index_reduce(op, row, 0, op.Reshape(index, [-1]), only, reduce, include_self), [0])
    axis = axis_of(op, self, dim)
    column = op.Reshape(op.cast(index, INT64), [-1] + [1] * (op.rank_of(self) - axis - 1))
    positions = op.expand(column, op.dims(source))
    return scatter_reduce(op, self, axis, positions, source, reduce, include_self)


# ---- index_put and masked writes


def _where_mask(op: Op, self: ir.Value, indices: Indices, values: ir.Value, accumulate: bool) -> ir.Value | None:
    """``self[:, mask] = values`` with equal values for all true elements, as a Where."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1 or not is_mask(op, given[0][1]):
        return None
    axis, mask = given[0]
    covered, behind = op.rank_of(mask), op.rank_of(self) - axis - op.rank_of(mask)
    if op.rank_of(values) > behind:
        dims = op.dims(values)
        before = op.rank_of(values) - behind - 1
        if dims[before] != 1:
            return None
        # The axis of the true elements becomes the axes of the mask.
        if covered != 1:
            values = op.reshape(values, [*dims[:before], *[1] * covered, *dims[before + 1 :]])
    flags = op.Unsqueeze(op.cast(mask, BOOL), [covered + place for place in range(behind)])
    if accumulate:
        values = op.Or(self, values) if op.dtype_of(self) == BOOL else op.Add(self, values)
    return choose(op, flags, values, self)


def _scatter_nd_updates(
    op: Op, dims: Sequence[Dim], indexing: Indexing, values: ir.Value, positions: ir.Value
) -> ir.Value:
    """Return the values in the shape of ScatterND's updates: the axes of the index tensors, then those not indexed."""
    count = op.rank_of(positions) - 1
    first = indexing.first
    rest = [dims[axis] for axis in range(len(dims)) if axis not in indexing.indices]
    spots = op.dims(positions)[:-1]
    wanted = [*rest[:first], *spots, *rest[first:]]
    missing = len(wanted) - op.rank_of(values)
    found = [1] * missing + list(op.dims(values))
    if any(have == 1 != want for have, want in zip(found, wanted, strict=True)):
        # The number of true elements of a mask is data-dependent.
        sizes = [op.Slice(op.Shape(positions), [0], [-1], [0])] if _data_dependent(op, spots) else [op.sizes(spots)]
        ends = [op.sizes(part) for part in (rest[:first], rest[first:])]
        shape = op.Concat(*([ends[0]] if first else []), *sizes, *([ends[1]] if rest[first:] else []), axis=0)
        values = op.Expand(values, shape)
    elif missing:
        values = op.Unsqueeze(values, list(range(missing)))
    if first == 0:
        return values
    spot_axes = range(first, first + count)
    return op.Transpose(values, perm=[*spot_axes, *range(first), *range(first + count, len(wanted))])


def _data_dependent(op: Op, dims: Sequence[Dim]) -> bool:
    """Whether a size is data-dependent (unbacked), such as the number of true elements of a mask."""
    return not all(map(op.is_known, dims))


def _index_put(op: Op, self: ir.Value, indices: Indices, values: ir.Value, accumulate: bool) -> ir.Value:
    reject_complex(op, "index_put")
    values = op.cast(values, op.result.dtype)
    masked = _where_mask(op, self, indices, values, accumulate)
    if masked is not None:
        return masked
    indexing = prepared_indices(op, self, indices)
    reduction = "add" if accumulate else None
    axes = indexing.axes
    if not axes:
        return op.Add(self, values) if accumulate else op.expand(values, op.dims(self))
    if len(axes) == 1 and axes[0] > 0 and op.rank_of(indexing.indices[axes[0]]) == 1:
        return _put_along(op, self, axes[0], indexing.indices[axes[0]], values, reduction)
    mask = next((index for index in indices if index is not None), None)
    if mask is not None and is_mask(op, mask) and op.rank_of(mask) == len(axes):
        positions = op.Transpose(nonzero_rows(op, mask), perm=[1, 0])
    else:
        positions = stacked(op, [indexing.indices[axis] for axis in axes])
    perm = indexing.perm
    source = _scatter_nd_updates(op, op.dims(self), indexing, values, positions)
    result = scatter_op(op, "ScatterND", op.Transpose(self, perm=perm), positions, source, reduction)
    return op.Transpose(result, perm=[perm.index(axis) for axis in range(len(perm))])


def _put_along(op: Op, self: ir.Value, axis: int, index: ir.Value, values: ir.Value, reduction: str | None) -> ir.Value:
    """``self[:, i] = values`` without two Transposes that move the axis to the front and back."""
    dims = op.dims(self)
    wanted = [*dims[:axis], op.dims(index)[0], *dims[axis + 1 :]]
    column = op.Reshape(op.cast(index, INT64), [-1] + [1] * (len(dims) - axis - 1))
    if op.rank_of(values) == len(dims) and 1 not in op.dims(values):
        return scatter_op(op, "ScatterElements", self, _as_large_as(op, column, values), values, reduction, axis)
    if not op.is_known(wanted[axis]):
        count = op.Shape(index)
        parts = [op.sizes(part) if part else None for part in (wanted[:axis], wanted[axis + 1 :])]
        shape = op.Concat(*(part for part in (parts[0], count, parts[1]) if part is not None), axis=0)
        column, values = op.Expand(column, shape), op.Expand(values, shape)
    else:
        column, values = op.expand(column, wanted), op.expand(values, wanted)
    return scatter_op(op, "ScatterElements", self, column, values, reduction, axis)


def _as_large_as(op: Op, column: ir.Value, values: ir.Value) -> ir.Value:
    dims = op.dims(values)
    return op.Expand(column, op.Shape(values)) if _data_dependent(op, dims) else op.expand(column, dims)


@translates("aten::index_put", "aten::_unsafe_index_put")
def index_put(op: Op, self: ir.Value, indices: Indices, values: ir.Value, accumulate: bool = False) -> ir.Value:
    """aten::index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor
    aten::_unsafe_index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor
    """
    return _index_put(op, self, indices, values, accumulate)


@translates("aten::masked_scatter")
def masked_scatter(op: Op, self: ir.Value, mask: ir.Value, source: ir.Value) -> ir.Value:
    """aten::masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor"""
    reject_complex(op, "masked_scatter")
    if op.rank_of(self) == 0 and op.rank_of(mask) == 0:
        return choose(op, mask, op.Gather(op.Reshape(source, [-1]), op.const(0), axis=0), self)
    if op.dims(self) != op.dims(mask):
        self, mask = broadcast(op, [self, mask])
    positions = op.Transpose(nonzero_rows(op, mask), perm=[1, 0])
    count = op.Slice(op.Shape(positions), [0], [1], [0])
    taken = op.Slice(op.Reshape(source, [-1]), [0], count, [0])
    return op.ScatterND(self, positions, op.cast(taken, op.result.dtype))


# The types with a Where kernel: for the others a Concat of the parts takes fewer nodes.
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
# Above this size, masks would make the model larger: they are stored in it.
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
    if not isinstance(size, int) and isinstance(count, int):
        op.builder.positive_sizes.setdefault(size, STATIC_SLICE)
    start, end = 0 if start is None else start, END if end is None else end
    result = _with_slice(op, self, source, axis, start, end, step)
    emptied = symbols_that_must_be_positive(size, start, end, step, count)
    if emptied:
        op.builder.nonempty_symbols[result] = emptied
    return result


def _with_slice(op: Op, value: ir.Value, source: ir.Value, axis: int, start: Dim, end: Dim, step: Dim) -> ir.Value:
    """Replace a slice of the value by the source."""
    size, count = op.dims(value)[axis], op.dims(source)[axis]
    first, last = _limits(size, count, start, end)
    if step != 1:
        places = _slice_positions(op, count, first_position(first, size), step)
        return along_axis(op, value, axis, places, source)
    parts = [source]
    if first != 0:
        parts.insert(0, sliced(op, value, axis, 0, first))
    if last != END and last != size:
        parts.append(sliced(op, value, axis, last, END))
    return op.Concat(*parts, axis=axis)


def _limits(size: Dim, count: Dim, start: Dim, end: Dim) -> tuple[Dim, Dim]:
    """Return start and end of a slice for slicing the parts before and after it.

    They stay numbers where the start is not after the end at any size, without size arithmetic.
    """
    if not isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        same_side = (start < 0) == (end < 0)
        if end == END or (same_side and start <= end):
            return start, end
    first = first_position(start, size)
    return first, first + count


def _slice_positions(op: Op, count: Dim, first: Dim, step: Dim) -> ir.Value:
    """Return the positions of a slice with a step."""
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
    reject_complex(op, "diagonal_scatter")
    row_axis, column_axis = (axis_of(op, self, dim) for dim in (dim1, dim2))
    perm = [axis for axis in range(op.rank_of(self)) if axis not in (row_axis, column_axis)] + [row_axis, column_axis]
    matrices, source = op.Transpose(self, perm=perm), op.cast(src, op.result.dtype)
    rows, columns = op.dims(matrices)[-2:]
    batch = op.dims(matrices)[:-2]
    # Element (r, c) of a matrix has the flat index r * columns + c.
    length = op.dims(source)[-1]
    first = offset if offset >= 0 else -offset * columns
    places = _slice_positions(op, length, first, columns + 1)
    flat = along_axis(op, op.reshape(matrices, [*batch, rows * columns]), len(batch), places, source)
    return op.Transpose(op.reshape(flat, op.dims(matrices)), perm=[perm.index(axis) for axis in range(len(perm))])


@translates("aten::put")
def put(op: Op, self: ir.Value, index: ir.Value, source: ir.Value, accumulate: bool = False) -> ir.Value:
    """aten::put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor"""
    if 0 in op.dims(index):
        return self
    flat, places, values = (op.Reshape(value, [-1]) for value in (self, index, source))
    written = scatter_op(op, "ScatterElements", flat, places, values, "add" if accumulate else None, 0)
    return op.reshape(written, op.dims(self))


def _valid_indices(op: Op, mask: ir.Value, indices: Sequence[ir.Value | None]) -> list[ir.Value | None]:
    """Replace the indices of masked elements, which may be out of range, by a valid one."""
    zero = op.const(0)
    return [None if place is None else op.Where(mask, op.cast(place, INT64), zero) for place in indices]


@translates("aten::_unsafe_masked_index")
def _unsafe_masked_index(
    op: Op, self: ir.Value, mask: ir.Value, indices: Sequence[ir.Value | None], fill: Operand
) -> ir.Value:
    """aten::_unsafe_masked_index(Tensor self, Tensor mask, Tensor?[] indices, Scalar fill) -> Tensor"""
    filler = op.operand(fill, op.dtype_of(self))
    if 0 in op.dims(self):
        # The tensor is empty: no index is valid.
        return op.expand(filler, op.result.shape)
    found = index(op, self, _valid_indices(op, mask, indices))
    return op.Where(mask, found, filler)


@translates("aten::_unsafe_masked_index_put_accumulate")
def _unsafe_masked_index_put_accumulate(
    op: Op, self: ir.Value, mask: ir.Value, indices: Sequence[ir.Value | None], values: ir.Value
) -> ir.Value:
    """aten::_unsafe_masked_index_put_accumulate(Tensor self, Tensor mask, Tensor?[] indices, Tensor values) -> Tensor"""
    if 0 in op.dims(self):
        return self
    counted = op.Where(mask, values, op.const(0, op.dtype_of(values)))
    return index_put(op, self, _valid_indices(op, mask, indices), counted, accumulate=True)
