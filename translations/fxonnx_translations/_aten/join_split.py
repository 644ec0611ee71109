"""Joining, splitting and repeating tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import onnx_ir as ir

from .._builder.dtypes import INT64
from .._builder.op import Op, Unsupported
from .._builder.symbolic_dims import Dim
from .._registry import translates
from .._torch_compat import FloorDiv
from .indexing.axes import END, as_carrier, axis_of, rank, reject_complex, sliced, split_at

# ---- joining


def _cat(op: Op, tensors: Sequence[ir.Value], dim: int) -> ir.Value:
    values = [op.cast(value, op.result.dtype) for value in tensors]
    axis = op.axis(dim, len(op.result.shape))
    # torch skips empty 1-dim tensors, whatever the rank of the others.
    some = [value for value in values if op.dims(value)[:1] != (0,) or op.rank_of(value) > 1]
    kept = [value for value in some if op.dims(value)[axis] != 0]
    return op.Concat(*(kept or some[:1] or values[:1]), axis=axis)


@translates("aten::cat", "aten::concat", "aten::concatenate")
def cat(op: Op, tensors: Sequence[ir.Value], dim: int = 0) -> ir.Value:
    """aten::cat(Tensor[] tensors, int dim=0) -> Tensor
    aten::concat(Tensor[] tensors, int dim=0) -> Tensor
    aten::concatenate(Tensor[] tensors, int dim=0) -> Tensor
    """
    return _cat(op, tensors, dim)


@translates("aten::stack")
def stack(op: Op, tensors: Sequence[ir.Value], dim: int = 0) -> ir.Value:
    """aten::stack(Tensor[] tensors, int dim=0) -> Tensor"""
    shape = op.result.shape
    axis = op.axis(dim, len(shape))
    values = [op.cast(value, op.result.dtype) for value in tensors]
    symbolic = sum(not isinstance(size, int) for size in shape[axis:])
    if axis < len(shape) - 1 and symbolic <= 1 and len(values) > 1 and not op.result.torch_dtype.is_complex:
        # Concatenated along the next axis and reshaped: two nodes instead of an Unsqueeze per tensor.
        return op.reshape(op.Concat(*values, axis=axis), shape)
    return op.Concat(*(op.Unsqueeze(value, [axis]) for value in values), axis=axis)


@translates("aten::_chunk_cat")
def _chunk_cat(op: Op, tensors: Sequence[ir.Value], dim: int, num_chunks: int) -> ir.Value:
    """aten::_chunk_cat(Tensor[] tensors, int dim, int num_chunks) -> Tensor"""
    # torch's decomposition asks whether a symbolic size is padded.
    chunks = []
    for value in tensors:
        axis, dims = op.axis(dim, op.rank_of(value)), op.dims(value)
        length = FloorDiv(dims[axis] + num_chunks - 1, num_chunks)
        whole = resized(op, value, axis, num_chunks * length)
        chunks.append(op.reshape(whole, (*dims[:axis], num_chunks, length * math.prod(dims[axis + 1 :]))))
    return op.Concat(*chunks, axis=op.axis(dim, op.rank_of(tensors[0])) + 1)


# ---- splitting


def _pieces(op: Op, self: ir.Value, dim: int) -> list[ir.Value]:
    """Split the value into pieces of the sizes that torch returns."""
    axis = axis_of(op, self, dim)
    return split_at(op, self, axis, [result.shape[axis] for result in op.results])


@translates("aten::split.Tensor", "aten::split.sizes", "aten::unsafe_split.Tensor")
def split(op: Op, self: ir.Value, split_size: Dim | Sequence[Dim], dim: int = 0) -> list[ir.Value]:
    """aten::split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]
    aten::split.sizes(Tensor(a -> *) self, SymInt[] split_size, int dim=0) -> Tensor(a)[]
    aten::unsafe_split.Tensor(Tensor self, SymInt split_size, int dim=0) -> Tensor[]
    """
    return _pieces(op, self, dim)


@translates("aten::split_with_sizes", "aten::unsafe_split_with_sizes")
def split_with_sizes(op: Op, self: ir.Value, split_sizes: Sequence[Dim], dim: int = 0) -> list[ir.Value]:
    """aten::split_with_sizes(Tensor(a -> *) self, SymInt[] split_sizes, int dim=0) -> Tensor(a)[]
    aten::unsafe_split_with_sizes(Tensor self, SymInt[] split_sizes, int dim=0) -> Tensor[]
    """
    return _pieces(op, self, dim)


@translates("aten::chunk", "aten::unsafe_chunk")
def chunk(op: Op, self: ir.Value, chunks: int, dim: int = 0) -> list[ir.Value]:
    """aten::chunk(Tensor(a -> *) self, int chunks, int dim=0) -> Tensor(a)[]
    aten::unsafe_chunk(Tensor self, int chunks, int dim=0) -> Tensor[]
    """
    return _pieces(op, self, dim)


@translates("aten::tensor_split.sections")
def tensor_split_sections(op: Op, self: ir.Value, sections: Dim, dim: int = 0) -> list[ir.Value]:
    """aten::tensor_split.sections(Tensor(a -> *) self, SymInt sections, int dim=0) -> Tensor(a)[]"""
    return _pieces(op, self, dim)


@translates("aten::hsplit.int")
def hsplit(op: Op, self: ir.Value, sections: int) -> list[ir.Value]:
    """aten::hsplit.int(Tensor(a -> *) self, int sections) -> Tensor(a)[]"""
    return _pieces(op, self, 0 if op.rank_of(self) == 1 else 1)


@translates("aten::vsplit.int")
def vsplit(op: Op, self: ir.Value, sections: int) -> list[ir.Value]:
    """aten::vsplit.int(Tensor(a -> *) self, int sections) -> Tensor(a)[]"""
    return _pieces(op, self, 0)


@translates("aten::dsplit.int")
def dsplit(op: Op, self: ir.Value, sections: int) -> list[ir.Value]:
    """aten::dsplit.int(Tensor(a -> *) self, int sections) -> Tensor(a)[]"""
    return _pieces(op, self, 2)


@translates("aten::tensor_split.indices")
def tensor_split_indices(op: Op, self: ir.Value, indices: Sequence[Dim], dim: int = 0) -> list[ir.Value]:
    """aten::tensor_split.indices(Tensor(a -> *) self, SymInt[] indices, int dim=0) -> Tensor(a)[]"""
    axis = axis_of(op, self, dim)
    sizes = [result.shape[axis] for result in op.results]
    total = sum(sizes)
    if total == op.dims(self)[axis]:
        return split_at(op, self, axis, sizes)
    # Unsorted indices give overlapping pieces, and indices into a symbolic size are clamped at run time.
    limits = [0, *indices, END]
    return [sliced(op, self, axis, start, end) for start, end in itertools.pairwise(limits)]


@translates("aten::tensor_split.tensor_indices_or_sections")
def tensor_split(op: Op, self: ir.Value, tensor_indices_or_sections: ir.Value, dim: int = 0) -> list[ir.Value]:
    """aten::tensor_split.tensor_indices_or_sections(Tensor(a -> *) self, Tensor tensor_indices_or_sections, int dim=0) -> Tensor(a)[]"""
    axis = axis_of(op, self, dim)
    indices = op.cast(tensor_indices_or_sections, INT64)
    if op.rank_of(indices) == 0:
        raise Unsupported("a data-dependent number of sections")
    limits = [op.const([0]), *(op.Slice(indices, [at], [at + 1]) for at in range(len(op.results) - 1)), op.const([END])]
    return [op.Slice(self, start, end, [axis]) for start, end in itertools.pairwise(limits)]


@translates("aten::unbind.int")
def unbind(op: Op, self: ir.Value, dim: int = 0) -> list[ir.Value]:
    """aten::unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]"""
    axis = axis_of(op, self, dim)
    if len(op.results) == 1:
        return [op.Squeeze(self, [axis])]
    # One node per tensor; unused ones are removed as dead code.
    return [op.Gather(self, op.const(index), axis=axis) for index in range(len(op.results))]


# ---- combinations


@translates("aten::meshgrid", "aten::meshgrid.indexing")
def meshgrid(op: Op, tensors: Sequence[ir.Value], indexing: str = "ij") -> list[ir.Value]:
    """aten::meshgrid(Tensor[] tensors) -> Tensor[]
    aten::meshgrid.indexing(Tensor[] tensors, *, str indexing) -> Tensor[]
    """
    reject_complex(op, "meshgrid")
    count = len(tensors)
    axes = list(range(count))
    if indexing == "xy" and count > 1:
        axes[:2] = [1, 0]
    grids = []
    for value, axis, result in zip(tensors, axes, op.results, strict=True):
        column = op.Reshape(value, [-1 if other == axis else 1 for other in range(count)])
        grids.append(op.expand(column, result.shape))
    return grids


@translates("aten::hstack")
def hstack(op: Op, tensors: Sequence[ir.Value]) -> ir.Value:
    """aten::hstack(Tensor[] tensors) -> Tensor"""
    reject_complex(op, "hstack")
    joined = [op.Unsqueeze(value, [0]) if op.rank_of(value) == 0 else value for value in op.promote(*tensors)]
    return op.Concat(*joined, axis=min(1, op.rank_of(joined[0]) - 1))


@translates("aten::cartesian_prod")
def cartesian_prod(op: Op, tensors: Sequence[ir.Value]) -> ir.Value:
    """aten::cartesian_prod(Tensor[] tensors) -> Tensor"""
    reject_complex(op, "cartesian_prod")
    if len(tensors) == 1:
        return tensors[0]
    lengths = [op.dims(value)[0] for value in tensors]
    columns = []
    for axis, value in enumerate(tensors):
        column = op.Reshape(value, [-1 if other == axis else 1 for other in range(len(tensors))])
        columns.append(op.Reshape(op.expand(column, lengths), [-1, 1]))
    return op.Concat(*columns, axis=1)


@translates("aten::kron")
def kron(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::kron(Tensor self, Tensor other) -> Tensor"""
    reject_complex(op, "kron")
    self, other = op.promote(self, other)
    count = len(op.result.shape)
    # The axes of both operands alternate.
    self = op.Unsqueeze(self, list(range(count - op.rank_of(self))))
    other = op.Unsqueeze(other, list(range(count - op.rank_of(other))))
    outer = op.Mul(op.Unsqueeze(self, list(range(1, 2 * count, 2))), op.Unsqueeze(other, list(range(0, 2 * count, 2))))
    return op.reshape(outer, op.result.shape)


# ---- repeating


def _tiled(op: Op, value: ir.Value, repeats: Sequence[Dim]) -> ir.Value:
    """Repeat the value along each axis; missing leading axes are added."""
    missing = len(repeats) - rank(op, value)
    value = op.Unsqueeze(value, list(range(missing)))
    if all(times == 1 for times in repeats):
        return value
    trailing = [1] * (op.rank_of(value) - len(repeats))
    counts = op.sizes([*repeats, *trailing])
    dims = op.dims(value)
    if all(times == 1 or size == 1 for times, size in zip(repeats, dims, strict=False)):
        return as_carrier(op, value, lambda carried: op.Expand(carried, counts))
    return as_carrier(op, value, lambda carried: op.Tile(carried, counts))


@translates("aten::repeat")
def repeat(op: Op, self: ir.Value, repeats: Sequence[Dim]) -> ir.Value:
    """aten::repeat(Tensor self, SymInt[] repeats) -> Tensor"""
    return _tiled(op, self, repeats)


@translates("aten::tile")
def tile(op: Op, self: ir.Value, dims: Sequence[Dim]) -> ir.Value:
    """aten::tile(Tensor self, SymInt[] dims) -> Tensor"""
    return _tiled(op, self, [1] * (rank(op, self) - len(dims)) + list(dims))


@translates("aten::repeat_interleave.self_int")
def repeat_interleave_by_number(
    op: Op, self: ir.Value, repeats: Dim, dim: int | None = None, output_size: Dim | None = None
) -> ir.Value:
    """aten::repeat_interleave.self_int(Tensor self, SymInt repeats, int? dim=None, *, SymInt? output_size=None) -> Tensor"""
    if repeats == 1 and dim is not None:
        return self
    trailing = [2] if op.result.torch_dtype.is_complex else []
    if dim is None or rank(op, self) == 0:
        self, axis = op.Reshape(self, [-1, *trailing]), 0
    else:
        axis = axis_of(op, self, dim)
    dims = op.dims(self)
    repeated = op.expand(op.Unsqueeze(self, [axis + 1]), [*dims[: axis + 1], repeats, *dims[axis + 1 :]])
    return op.reshape(repeated, [*op.result.shape, *trailing])


def _row_numbers(op: Op, repeats: ir.Value, count: Dim) -> ir.Value:
    """Return each row number ``repeats[row]`` times: the rows of the true elements of a [rows, max(repeats)] mask."""
    repeats = op.cast(repeats, INT64)
    if op.dims(repeats) in ((), (1,)) and count != 1:
        repeats = op.expand(op.Reshape(repeats, [1]), [count])
    # With the 0 the maximum of no numbers is not the lowest integer.
    widest = op.ReduceMax(op.Concat(repeats, op.const([0]), axis=0), [0], keepdims=0)
    stairs = op.Less(op.Range(0, widest, 1), op.Unsqueeze(repeats, [1]))
    return op.Gather(op.NonZero(stairs), op.const(0), axis=0)


@translates("aten::repeat_interleave.Tensor")
def repeat_interleave_numbers(op: Op, repeats: ir.Value, output_size: Dim | None = None) -> ir.Value:
    """aten::repeat_interleave.Tensor(Tensor repeats, *, SymInt? output_size=None) -> Tensor"""
    return op.cast(_row_numbers(op, repeats, op.dims(repeats)[0]), op.result.dtype)


@translates("aten::repeat_interleave.self_Tensor")
def repeat_interleave(
    op: Op, self: ir.Value, repeats: ir.Value, dim: int | None = None, output_size: Dim | None = None
) -> ir.Value:
    """aten::repeat_interleave.self_Tensor(Tensor self, Tensor repeats, int? dim=None, *, SymInt? output_size=None) -> Tensor"""
    if dim is None or rank(op, self) == 0:
        trailing = [2] if op.result.torch_dtype.is_complex else []
        count: Dim = math.prod(op.dims(self)[: rank(op, self)])
        self, axis = op.Reshape(self, [-1, *trailing]), 0
    else:
        axis = axis_of(op, self, dim)
        count = op.dims(self)[axis]
    return op.Gather(self, _row_numbers(op, repeats, count), axis=axis)


# ---- overlapping windows


def overlap_added(op: Op, windows: ir.Value, step: int) -> ir.Value:
    """Add windows, each of which begins some elements after the one before.

    Args:
        op: The op object.
        windows: [*, windows, elements], with a static number of elements.
        step: The distance of the windows.

    Returns:
        [*, step * (windows - 1) + elements]
    """
    *lead, count, size = op.dims(windows)
    total = step * (count - 1) + size
    parts = -(-size // step)
    value = _padded(op, windows, -1, parts * step - size)
    if parts > 1:
        # [*, parts, windows, step]: the first parts of all windows do not overlap, nor do the second parts, and so on.
        rank = len(lead)
        value = op.reshape(value, [*lead, count, parts, step])
        value = op.Transpose(value, perm=[*range(rank), rank + 1, rank, rank + 2])
        # In rows that are one window longer than they are read, each row is one window further to the right.
        value = op.reshape(_padded(op, value, -2, parts), [*lead, parts * (count + parts), step])
        rows = parts * (count + parts - 1)
        value = op.shaped(op.Slice(value, [0], op.size(rows), [rank]), (*lead, rows, step))
        value = op.reshape(value, [*lead, parts, count + parts - 1, step])
        value = op.shaped(op.ReduceSum(value, [rank], keepdims=0), (*lead, count + parts - 1, step))
    value = op.reshape(value, [*lead, (count + parts - 1) * step])
    return op.shaped(op.Slice(value, [0], op.size(total), [-1]), (*lead, total))


def resized(op: Op, value: ir.Value, axis: int, length: Dim) -> ir.Value:
    """Append zeros to an axis, or cut elements off, up to a length."""
    given = op.dims(value)[axis]
    return value if given == length else _padded(op, value, axis, length - given)


def _padded(op: Op, value: ir.Value, axis: int, zeros: Dim) -> ir.Value:
    """Append zeros to an axis; a negative number cuts elements off."""
    if zeros == 0:
        return value
    dims = list(op.dims(value))
    axis %= len(dims)
    dims[axis] += zeros
    after: list[Dim] = [zeros if other == axis else 0 for other in range(len(dims))]
    return op.shaped(op.Pad(value, op.sizes([*[0] * len(dims), *after])), dims)


@translates("aten::unfold_backward")
def unfold_backward(op: Op, grad_in: ir.Value, input_sizes: Sequence[Dim], dim: int, size: int, step: int) -> ir.Value:
    """aten::unfold_backward(Tensor grad_in, SymInt[] input_sizes, int dim, int size, int step) -> Tensor"""
    rank = op.rank_of(grad_in) - 1
    if rank == 0:
        return grad_in
    axis = dim % rank
    others = [other for other in range(rank) if other != axis]
    windows = op.Transpose(grad_in, perm=[*others, axis, rank])
    value = resized(op, overlap_added(op, windows, step), -1, input_sizes[axis])
    order = [*others, axis]
    return op.Transpose(value, perm=[order.index(other) for other in range(rank)])
