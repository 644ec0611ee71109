"""Views of memory by size and stride."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .._builder.op import Op
from .._builder.symbolic_dims import Dim, is_static
from .._registry import Call, translates
from .scatter import scatter_op


def _is_in_order(source: torch.Tensor) -> bool:
    """Whether the elements are one after the other in memory; symbolic sizes are not guarded on."""
    expected: Any = 1
    for size, stride in reversed(list(zip(source.shape, source.stride(), strict=True))):
        if not statically_known_true(size == 1) and not statically_known_true(stride == expected):
            return False
        expected = expected * size
    return True


def _declines(call: Call) -> str | None:
    """as_strided addresses memory, which ONNX tensors have none of: only elements in order tell where they are."""
    source, offset = call.arguments["self"], call.arguments["storage_offset"]
    if not _is_in_order(source):
        return "as_strided of a tensor whose elements are not in order"
    if offset is not None and not statically_known_true(source.storage_offset() == 0):
        return "as_strided with an offset into the memory that another tensor begins"
    size, stride = call.arguments["size"], call.arguments["stride"]
    last: Any = offset or 0
    for count, distance in zip(size, stride, strict=True):
        last = last + (count - 1) * distance
    if statically_known_true(last >= source.numel()) and not any(statically_known_true(count == 0) for count in size):
        return "as_strided that reads beyond the tensor it is given"
    return None


def _places(op: Op, size: Sequence[Dim], stride: Sequence[Dim], first: Dim) -> ir.Value:
    """The position in memory of each element of the view, INT64 of its shape."""
    if is_static([*size, *stride, first]):
        known = np.full((), first, dtype=np.int64)
        for count, distance in zip(size, stride, strict=True):
            known = known[..., None] + np.arange(count, dtype=np.int64) * distance
        return op.const(torch.from_numpy(known))
    places = op.scalar(first, ir.DataType.INT64)
    for count, distance in zip(size, stride, strict=True):
        steps = op.Mul(op.Range(0, op.scalar(count), 1), op.scalar(distance))
        places = op.Add(op.Unsqueeze(places, [-1]), steps)
    return op.shaped(places, size)


@translates("aten::as_strided", accepts=_declines)
def as_strided(
    op: Op, self: ir.Value, size: Sequence[Dim], stride: Sequence[Dim], storage_offset: Dim | None = None
) -> ir.Value:
    """aten::as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor(a)"""
    places = _places(op, size, stride, 0 if storage_offset is None else storage_offset)
    return op.Gather(op.Reshape(self, [-1]), places, axis=0)


@translates("aten::as_strided_scatter", accepts=_declines)
def as_strided_scatter(
    op: Op,
    self: ir.Value,
    src: ir.Value,
    size: Sequence[Dim],
    stride: Sequence[Dim],
    storage_offset: Dim | None = None,
) -> ir.Value:
    """aten::as_strided_scatter(Tensor self, Tensor src, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor"""
    places = _places(op, size, stride, 0 if storage_offset is None else storage_offset)
    flat, spots, values = (op.Reshape(value, [-1]) for value in (self, places, op.expand(src, size)))
    return op.reshape(
        scatter_op(op, "ScatterElements", flat, spots, op.cast(values, op.dtype_of(self)), None, 0), op.dims(self)
    )
