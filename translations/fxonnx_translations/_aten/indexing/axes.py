"""Helpers shared by slicing and indexing: axes, slice bounds and selection."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import sympy

from ..._builder.constants import END
from ..._builder.dtypes import BOOL
from ..._builder.op import Op, Unsupported
from ..._builder.symbolic_dims import Dim
from ..._torch_compat import sympy_functions

__all__ = [
    "END",
    "as_carrier",
    "axis_of",
    "choose",
    "first_position",
    "is_nonnegative",
    "position",
    "rank",
    "reject_complex",
    "sliced",
    "split_at",
]


# Types without kernels in Where, Compress, TopK, Trilu ... to the smallest type with kernels that represents all their
# values.
_CARRIERS = {
    ir.DataType.INT16: ir.DataType.INT32,
    ir.DataType.UINT16: ir.DataType.INT32,
    ir.DataType.UINT32: ir.DataType.INT64,
    # Casts between 64-bit integers keep all bits, which suffices for operators that only move elements.
    ir.DataType.UINT64: ir.DataType.INT64,
    ir.DataType.BFLOAT16: ir.DataType.FLOAT,
}


def as_carrier(op: Op, value: ir.Value, emit: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """Apply an operator that moves elements in a type that has kernels, and cast the result back."""
    dtype = op.dtype_of(value)
    carrier = _CARRIERS.get(dtype)
    return emit(value) if carrier is None else op.cast(emit(op.cast(value, carrier)), dtype)


def rank(op: Op, value: ir.Value) -> int:
    """Return torch's rank of an operand that is complex if the result is: without the trailing axis of 2."""
    return op.rank_of(value) - int(op.result.torch_dtype.is_complex)


def axis_of(op: Op, value: ir.Value, dim: int) -> int:
    """Return the nonnegative axis of an operand that is complex if the result is."""
    return op.axis(dim, rank(op, value))


def reject_complex(op: Op, name: str) -> None:
    """Reject complex results.

    Raises:
        Unsupported: If the result is complex.
    """
    if op.result.torch_dtype.is_complex:
        raise Unsupported(f"{name} of a complex tensor")


def is_nonnegative(dim: Dim) -> bool:
    """Whether a size or position is known to be nonnegative."""
    return dim >= 0 if isinstance(dim, int) else dim.is_nonnegative is True


def position(index: Dim, size: Dim, *, in_range: bool = False) -> Dim:
    """Return the index as a negative number if it has a constant distance from the end, to avoid size arithmetic.

    Args:
        index: The index, counted from the end where it is negative.
        size: Size of the axis.
        in_range: Whether the index is known to be between 0 and the size, for other reasons than its expression.
    """
    if isinstance(index, int) or not (in_range or is_nonnegative(index)):
        # A negative index counts from the end: ``index - size`` would be another position.
        return index
    from_end = index - size
    return int(from_end) if from_end.is_Integer and from_end < 0 else index


def first_position(start: Dim, size: Dim) -> Dim:
    """Return the nonnegative start of a slice; it may be greater than the size."""
    if is_nonnegative(start):
        return start
    if isinstance(start, int):
        return max(start + size, 0) if isinstance(size, int) else sympy.Max(0, size + start)
    return sympy.Max(0, sympy_functions.Where(sympy.Lt(start, 0), start + size, start))


def sliced(
    op: Op, value: ir.Value, axis: int, start: Dim, end: Dim, step: Dim = 1, *, in_range: bool = False
) -> ir.Value:
    """Slice along one axis; negative limits count from the end and limits are clamped, as in torch.

    Args:
        op: The op object.
        value: The tensor.
        axis: The axis, nonnegative.
        start: The first position.
        end: The position after the last one.
        step: The distance between positions.
        in_range: Whether both limits are known to be between 0 and the size, for other reasons than their expressions.
    """
    size = op.dims(value)[axis]
    whole = end in (size, END) or (isinstance(end, int) and isinstance(size, int) and end >= size)
    if start == 0 and step == 1 and whole:
        return value
    first = op.size(position(start, size, in_range=in_range))
    last = op.const([END]) if end == size else op.size(position(end, size, in_range=in_range))
    if step == 1:
        return op.Slice(value, first, last, [axis])
    return op.Slice(value, first, last, [axis], op.size(step))


def split_at(op: Op, value: ir.Value, axis: int, sizes: list[Dim]) -> list[ir.Value]:
    """Split the value into consecutive pieces of the given sizes."""
    if len(sizes) <= 1:
        return [value] * len(sizes)
    if op.opset >= 13 or all(isinstance(size, int) for size in sizes):
        return list(op.multi("Split", value, op.sizes(sizes), axis=axis, outputs=len(sizes)))
    # Before opset 13 the sizes of Split are an attribute.
    pieces, start = [], 0
    for size in sizes:
        pieces.append(sliced(op, value, axis, start, start + size))
        start = start + size
    return pieces


def choose(op: Op, condition: ir.Value, chosen: ir.Value, other: ir.Value) -> ir.Value:
    """Emit Where for any element type.

    Args:
        op: The op object.
        condition: BOOL, broadcastable with the others.
        chosen: The elements where the condition is true.
        other: The elements elsewhere; of the same element type.
    """
    dtype = op.dtype_of(chosen)
    if dtype != BOOL:
        carrier = _CARRIERS.get(dtype, dtype)
        return op.cast(op.selected(condition, op.cast(chosen, carrier), op.cast(other, carrier)), dtype)
    # Where has no kernel for BOOL; logical operators are equivalent.
    if op.numbers(chosen) == [True]:
        return op.Or(condition, other)
    if op.numbers(chosen) == [False]:
        return op.And(op.Not(condition), other)
    if op.numbers(other) == [False]:
        return op.And(condition, chosen)
    return op.Or(op.And(condition, chosen), op.And(op.Not(condition), other))
