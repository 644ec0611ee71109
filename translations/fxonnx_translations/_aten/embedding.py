"""Embedding tables."""

from __future__ import annotations

import math

import onnx_ir as ir

from .._builder.constants import END
from .._builder.dtypes import INT64
from .._builder.loops import arange
from .._builder.op import Op, Unsupported
from .._builder.symbolic_dims import Dim
from .._library_ops.gathered_rows import gathered_rows
from .._registry import translates
from .indexing.scatter import scatter_op
from .norm import linalg_vector_norm
from .reduction import extremum


@translates("aten::embedding")
def embedding(
    op: Op,
    weight: ir.Value,
    indices: ir.Value,
    padding_idx: Dim = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> ir.Value:
    """aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) -> Tensor"""
    rows = gathered_rows(op, weight, indices)
    return op.Gather(weight, indices, axis=0) if rows is None else rows


def _bag_numbers(op: Op, offsets: ir.Value, count: Dim) -> ir.Value:
    """Return the bag of each of ``count`` indices, INT64 [count, 1]: the number of offsets up to its position."""
    # An empty bag may begin after the last index.
    begun = op.expand(op.const([0]), [count + 1])
    ones = op.expand(op.const([1]), op.dims(offsets))
    started = op.CumSum(scatter_op(op, "ScatterElements", begun, offsets, ones, "add", 0), op.const(0))
    return op.Unsqueeze(op.Sub(op.Slice(started, [0], op.size(count), [0]), 1), [1])


def _bag_length(op: Op, indices: ir.Value, offsets: ir.Value, include_last_offset: bool) -> int | None:
    """Return the length of all bags if the offsets are constants at equal distances and cover the indices."""
    edges, count = op.numbers(offsets), op.dims(indices)[0]
    if edges is None or not isinstance(count, int):
        return None
    if not include_last_offset:
        edges = [*edges, count]
    bags = len(edges) - 1
    if bags < 1 or count == 0 or count % bags or edges != list(range(0, count + 1, count // bags)):
        return None
    return count // bags


def _bags_of_length(op: Op, weight: ir.Value, indices: ir.Value, mode: int, length: int) -> ir.Value:
    """Reduce bags of one length as an axis of the gathered rows."""
    dtype = op.dtype_of(weight)
    wide = ir.DataType.DOUBLE if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    bags = op.result.shape[0]
    rows = op.cast(op.Gather(weight, op.reshape(indices, [bags, length]), axis=0), wide)
    if mode == 2:
        return op.cast(extremum(op, "ReduceMax", rows, [1], False), dtype)
    return op.cast((op.ReduceSum if mode == 0 else op.ReduceMean)(rows, [1], keepdims=0), dtype)


@translates("aten::embedding_bag.padding_idx")
def embedding_bag(
    op: Op,
    weight: ir.Value,
    indices: ir.Value,
    offsets: ir.Value,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: ir.Value | None,
    include_last_offset: bool,
    padding_idx: int | None,
) -> list[ir.Value | None]:
    """aten::embedding_bag.padding_idx(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq, int mode, bool sparse, Tensor? per_sample_weights, bool include_last_offset, int? padding_idx) -> (Tensor, Tensor, Tensor, Tensor)"""
    length = _bag_length(op, indices, offsets, include_last_offset)
    if length is not None and per_sample_weights is None and padding_idx is None:
        return [_bags_of_length(op, weight, indices, mode, length), None, None, None]
    width = op.dims(weight)[1]
    # Half types are summed in float32 and rounded once.
    dtype = ir.DataType.DOUBLE if op.dtype_of(weight) == ir.DataType.DOUBLE else ir.DataType.FLOAT
    bags = op.result.shape[0]
    last = None
    if include_last_offset:
        # The last offset is the end of the last bag, not the beginning of another one.
        last = op.Slice(offsets, [-1], [END], [0])
        offsets = op.shaped(op.Slice(offsets, [0], [-1], [0]), (bags,))
    numbers = _bag_numbers(op, op.cast(offsets, INT64), op.dims(indices)[0])
    rows = op.cast(op.Gather(weight, indices, axis=0), dtype)
    if per_sample_weights is not None:
        rows = op.Mul(rows, op.cast(op.Unsqueeze(per_sample_weights, [1]), dtype))
    if last is not None and mode != 2 and padding_idx is None and op.dtype_of(weight) != ir.DataType.DOUBLE:
        # Indices after the last offset belong to the last bag, but only torch's slower kernels add them.
        beyond = op.GreaterOrEqual(arange(op, op.dims(indices)[0]), op.cast(last, INT64))
        rows = op.Where(op.Unsqueeze(beyond, [1]), op.const(0.0, dtype), rows)
    empty, reduction = (-math.inf, "max") if mode == 2 else (0.0, "add")
    counted = op.expand(op.const([[1.0]], dtype), [op.dims(indices)[0], 1])
    if padding_idx is not None:
        total = op.dims(weight)[0]
        ignored = op.Unsqueeze(op.Equal(indices, op.operand(padding_idx % total, op.dtype_of(indices))), [1])
        rows = op.Where(ignored, op.const(empty, dtype), rows)
        counted = op.Where(ignored, op.const(0.0, dtype), counted)
    start = op.expand(op.const([[empty]], dtype), [bags, width])
    result = scatter_op(op, "ScatterND", start, numbers, rows, reduction)
    if mode != 0:
        none = op.expand(op.const([[0.0]], dtype), [bags, 1])
        count = scatter_op(op, "ScatterND", none, numbers, counted, "add")
        if mode == 1:
            result = op.Div(result, op.Max(count, op.const(1.0, dtype)))
        else:
            zero = op.const(0.0, dtype)
            result = op.Where(op.Equal(count, zero), zero, result)
    # The other outputs are for the backward pass.
    return [op.cast(result, op.dtype_of(weight)), None, None, None]


@translates("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag_core(
    op: Op,
    weight: ir.Value,
    indices: ir.Value,
    offsets: ir.Value,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: ir.Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> list[ir.Value | None]:
    """aten::_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)
    aten::_embedding_bag_forward_only(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)
    """
    # Here -1 means no padding index, not the last row.
    padding = None if padding_idx < 0 else padding_idx
    bag = (per_sample_weights, include_last_offset, padding)
    return embedding_bag(op, weight, indices, offsets, scale_grad_by_freq, mode, sparse, *bag)


@translates("aten::embedding_renorm", exact="NaN propagates through infinity norms")
def embedding_renorm(op: Op, self: ir.Value, indices: ir.Value, max_norm: float, norm_type: float) -> ir.Value:
    """aten::embedding_renorm(Tensor self, Tensor indices, float max_norm, float norm_type) -> Tensor"""
    positions = op.Reshape(indices, [-1])
    rows = op.Gather(self, positions, axis=0)
    dtype = op.dtype_of(rows)
    carrier = ir.DataType.DOUBLE if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    wide = op.cast(rows, carrier)
    # torch rounds the norm of half types, the factor and the scaled rows, each once.
    length = op.cast(op.cast(linalg_vector_norm(op, wide, float(norm_type), [1], True), dtype), carrier)
    limit = op.const(float(max_norm), carrier)
    factor = op.cast(op.cast(op.Div(limit, op.Add(length, 1e-7)), dtype), carrier)
    scaled = op.cast(op.Mul(wide, factor), dtype)
    shorter = op.Where(op.Greater(length, limit), scaled, rows)
    # A row that occurs twice is written twice with the same values.
    return scatter_op(op, "ScatterND", self, op.Unsqueeze(op.cast(positions, INT64), [1]), shorter, None)


@translates("aten::one_hot")
def one_hot(op: Op, self: ir.Value, num_classes: int = -1) -> ir.Value:
    """aten::one_hot(Tensor self, int num_classes=-1) -> Tensor"""
    if num_classes < 0:
        raise Unsupported("one_hot without num_classes: the size of its result is data-dependent")
    size, numbers = op.const(num_classes), op.const([0, 1])
    if op.rank_of(self) == 0:
        # OneHot does not accept 0-dim indices.
        return op.Squeeze(op.OneHot(op.Unsqueeze(self, [0]), size, numbers, axis=-1), [0])
    return op.OneHot(self, size, numbers, axis=-1)
