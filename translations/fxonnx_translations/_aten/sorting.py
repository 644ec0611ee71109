"""Order statistics: sort, topk, kthvalue, and the positions of extremes."""

from __future__ import annotations

import math

import onnx_ir as ir

from .._builder.op import Op, Unsupported
from .._builder.symbolic_dims import Dim
from .._registry import translates

INT64 = ir.DataType.INT64
# ONNX Runtime has no TopK and ArgMax kernels for these: the type that holds all their values in the same order.
_ORDERED = {
    ir.DataType.BOOL: ir.DataType.INT32,
    ir.DataType.INT8: ir.DataType.INT32,
    ir.DataType.UINT8: ir.DataType.INT32,
    ir.DataType.INT16: ir.DataType.INT32,
    ir.DataType.UINT16: ir.DataType.INT32,
    ir.DataType.UINT32: INT64,
    ir.DataType.BFLOAT16: ir.DataType.FLOAT,
    ir.DataType.FLOAT16: ir.DataType.FLOAT,
}


def _ordered(op: Op, value: ir.Value) -> ir.Value:
    dtype = op.dtype_of(value)
    if dtype == ir.DataType.UINT64:
        raise Unsupported("no signed type orders UINT64")
    return op.cast(value, _ORDERED.get(dtype, dtype))


def _top(op: Op, self: ir.Value, k: Dim, dim: int, largest: bool) -> tuple[ir.Value, ir.Value]:
    """Values and positions of the k largest or smallest, in order; equal ones in the order of their positions."""
    if op.rank_of(self) == 0:
        return self, op.const(0)
    axis = op.axis(dim, op.rank_of(self))
    key, count = _ordered(op, self), op.size(k)
    if not op.is_float(self):
        values, places = op.multi("TopK", key, count, axis=axis, largest=int(largest), outputs=2)
        return op.cast(values, op.dtype_of(self)), places
    # NaN is the largest number to torch, while it disturbs the order of all others in ONNX Runtime.
    key = op.Where(op.IsNaN(key), op.const(math.inf, op.dtype_of(key)), key)
    _, places = op.multi("TopK", key, count, axis=axis, largest=int(largest), outputs=2)
    return op.GatherElements(self, places, axis=axis), places


def _size(op: Op, self: ir.Value, dim: int) -> Dim:
    dims = op.dims(self)
    return dims[dim] if dims else 1


@translates("aten::topk")
def topk(
    op: Op, self: ir.Value, k: Dim, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[ir.Value, ir.Value]:
    """aten::topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)"""
    return _top(op, self, k, dim, largest)


@translates("aten::sort")
def sort(op: Op, self: ir.Value, dim: int = -1, descending: bool = False) -> tuple[ir.Value, ir.Value]:
    """aten::sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)"""
    return _top(op, self, _size(op, self, dim), dim, descending)


@translates("aten::sort.stable")
def sort_stable(
    op: Op, self: ir.Value, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[ir.Value, ir.Value]:
    """aten::sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)"""
    return _top(op, self, _size(op, self, dim), dim, descending)


@translates("aten::argsort", "aten::argsort.stable")
def argsort(op: Op, self: ir.Value, dim: int = -1, descending: bool = False, stable: bool = False) -> ir.Value:
    """aten::argsort(Tensor self, int dim=-1, bool descending=False) -> Tensor
    aten::argsort.stable(Tensor self, *, bool stable, int dim=-1, bool descending=False) -> Tensor
    """
    return _top(op, self, _size(op, self, dim), dim, descending)[1]


@translates("aten::msort")
def msort(op: Op, self: ir.Value) -> ir.Value:
    """aten::msort(Tensor self) -> Tensor"""
    return _top(op, self, _size(op, self, 0), 0, largest=False)[0]


@translates("aten::kthvalue")
def kthvalue(op: Op, self: ir.Value, k: Dim, dim: int = -1, keepdim: bool = False) -> list[ir.Value]:
    """aten::kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    if op.rank_of(self) == 0:
        return [self, op.const(0)]
    axis = op.axis(dim, op.rank_of(self))
    last = op.size(k - 1) if keepdim else op.scalar(k - 1)
    return [op.Gather(value, last, axis=axis) for value in _top(op, self, k, dim, largest=False)]


# ---- positions of extremes


def _extreme_place(op: Op, operator: str, self: ir.Value, dim: int | None, keepdim: bool) -> ir.Value:
    """The first position of the extreme; NaN is both extremes to torch, and takes the place of an infinity here."""
    if op.rank_of(self) == 0:
        return op.const(0)
    value = _ordered(op, self)
    if op.is_float(value):
        infinity = math.inf if operator == "ArgMax" else -math.inf
        value = op.Where(op.IsNaN(value), op.const(infinity, op.dtype_of(value)), value)
    if dim is not None:
        place: ir.Value = getattr(op, operator)(value, axis=op.axis(dim, op.rank_of(self)), keepdims=int(keepdim))
        return place
    place = getattr(op, operator)(op.Reshape(value, [-1]), axis=0, keepdims=0)
    return op.reshape(place, op.result.shape) if keepdim else place


@translates("aten::argmax")
def argmax(op: Op, self: ir.Value, dim: int | None = None, keepdim: bool = False) -> ir.Value:
    """aten::argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor"""
    return _extreme_place(op, "ArgMax", self, dim, keepdim)


@translates("aten::argmin")
def argmin(op: Op, self: ir.Value, dim: int | None = None, keepdim: bool = False) -> ir.Value:
    """aten::argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor"""
    return _extreme_place(op, "ArgMin", self, dim, keepdim)


def _extreme(op: Op, operator: str, self: ir.Value, dim: int, keepdim: bool) -> list[ir.Value]:
    """The extreme and its position; reading the one at the other gets NaN right, too."""
    if op.rank_of(self) == 0:
        return [self, op.const(0)]
    axis = op.axis(dim, op.rank_of(self))
    place = _extreme_place(op, operator, self, axis, True)
    value = op.GatherElements(self, place, axis=axis)
    return [value, place] if keepdim else [op.Squeeze(value, [axis]), op.Squeeze(place, [axis])]


@translates("aten::max.dim")
def max_along(op: Op, self: ir.Value, dim: int, keepdim: bool = False) -> list[ir.Value]:
    """aten::max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    return _extreme(op, "ArgMax", self, dim, keepdim)


@translates("aten::min.dim")
def min_along(op: Op, self: ir.Value, dim: int, keepdim: bool = False) -> list[ir.Value]:
    """aten::min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    return _extreme(op, "ArgMin", self, dim, keepdim)
