"""Reductions of consecutive segments."""

from __future__ import annotations

import math
from types import MappingProxyType

import onnx_ir as ir

from .._builder.op import Op, Unsupported
from .._registry import translates
from .reduction import amax, amin

INT64 = ir.DataType.INT64

_STARTS = MappingProxyType({"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf})


def _bounds(op: Op, lengths: ir.Value | None, offsets: ir.Value | None) -> tuple[ir.Value, ir.Value]:
    """First and last position of each segment, the last one exclusive: INT64 [*, segments]."""
    if offsets is not None:
        edges = op.cast(offsets, INT64)
        last = op.rank_of(edges) - 1
        return op.Slice(edges, [0], [-1], [last]), op.Slice(edges, [1], [2**62], [last])
    if lengths is None:
        raise Unsupported("segments given by neither lengths nor offsets")
    sizes = op.cast(lengths, INT64)
    ends = op.CumSum(sizes, op.const(-1))
    return op.Sub(ends, sizes), ends


@translates("aten::segment_reduce")
def segment_reduce(
    op: Op,
    data: ir.Value,
    reduce: str,
    *,
    lengths: ir.Value | None = None,
    indices: ir.Value | None = None,
    offsets: ir.Value | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> ir.Value:
    """aten::segment_reduce(Tensor data, str reduce, *, Tensor? lengths=None, Tensor? indices=None, Tensor? offsets=None, int axis=0, bool unsafe=False, Scalar? initial=None) -> Tensor"""
    rank, dtype = op.rank_of(data), op.dtype_of(data)
    carrier = dtype if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    dim = op.axis(axis, rank)
    begin, end = _bounds(op, lengths, offsets)
    trailing = list(range(dim + 1, rank))
    # [*, segments, elements, 1 ...]
    columns = [dim + 1, *(position + 1 for position in trailing)]
    places = op.Range(0, op.scalar(op.dims(data)[dim]), 1)
    places = op.Unsqueeze(places, list(range(1, rank - dim))) if trailing else places
    begin, end = op.Unsqueeze(begin, columns), op.Unsqueeze(end, columns)
    inside = op.And(op.GreaterOrEqual(places, begin), op.Less(places, end))
    start = _STARTS[reduce]
    values = op.Where(inside, op.Unsqueeze(op.cast(data, carrier), [dim]), op.const(start, carrier))
    if reduce in ("max", "min"):
        result = (amax if reduce == "max" else amin)(op, values, [dim + 1])
    else:
        result = (op.ReduceProd if reduce == "prod" else op.ReduceSum)(values, [dim + 1], keepdims=0)
    counts = op.Squeeze(op.cast(op.Sub(end, begin), carrier), [dim + 1])
    if initial is not None:
        first = op.const(float(initial), carrier)
        combine = {"sum": op.Add, "mean": op.Add, "prod": op.Mul, "max": op.Max, "min": op.Min}[reduce]
        result = combine(result, first)
    if reduce == "mean":
        empty = op.const(math.nan if initial is None else float(initial), carrier)
        some = op.Greater(counts, op.const(0.0, carrier))
        result = op.Where(some, op.Div(result, op.Max(counts, op.const(1.0, carrier))), empty)
    return op.cast(result, dtype)
