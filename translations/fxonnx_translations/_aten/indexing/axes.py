"""Helpers shared by slicing and indexing: axes, slice bounds and selection."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import sympy

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
    "refuse_complex",
    "sliced",
    "split_at",
]

END = 2**63 - 1
"""What torch and ONNX both take for "up to the end" of a slice."""

_BOOL = ir.DataType.BOOL
# ONNX Runtime's CPU provider has no kernels for these in Where, Compress, TopK, Trilu ...: the nearest type that holds
# all their values and has one.
_CARRIERS = {
    ir.DataType.INT16: ir.DataType.INT32,
    ir.DataType.UINT16: ir.DataType.INT32,
    ir.DataType.UINT32: ir.DataType.INT64,
    # Casts between the 64 bit integers keep all bits, which is enough where nothing is compared.
    ir.DataType.UINT64: ir.DataType.INT64,
    ir.DataType.BFLOAT16: ir.DataType.FLOAT,
}


def as_carrier(op: Op, value: ir.Value, emit: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """Moves the elements in a type that ONNX Runtime has kernels for, then casts back."""
    dtype = op.dtype_of(value)
    carrier = _CARRIERS.get(dtype)
    return emit(value) if carrier is None else op.cast(emit(op.cast(value, carrier)), dtype)


def rank(op: Op, value: ir.Value) -> int:
    """Number of axes torch sees of an operand of the result's kind: without the trailing 2 of complex tensors."""
    return op.rank_of(value) - int(op.result.torch_dtype.is_complex)


def axis_of(op: Op, value: ir.Value, dim: int) -> int:
    """Non-negative axis of an operand of the result's kind."""
    return op.axis(dim, rank(op, value))


def refuse_complex(op: Op, name: str) -> None:
    """Declines a result of complex numbers.

    Raises:
        Unsupported: If the result is complex.
    """
    if op.result.torch_dtype.is_complex:
        raise Unsupported(f"{name} of a complex tensor")


def is_nonnegative(dim: Dim) -> bool:
    """Whether a size or position is known not to be negative."""
    return dim >= 0 if isinstance(dim, int) else dim.is_nonnegative is True


def position(index: Dim, size: Dim, *, in_range: bool = False) -> Dim:
    """The index as a number from the end where it is one, so that nothing is computed at run time.

    Args:
        index: The index, counted from the end where it is negative.
        size: Size of the axis.
        in_range: Whether the index is known to be between 0 and the size, even if its form does not tell.
    """
    if isinstance(index, int) or not (in_range or is_nonnegative(index)):
        # A negative index counts from the end already: ``index - size`` would be another position.
        return index
    from_end = index - size
    return int(from_end) if from_end.is_Integer and from_end < 0 else index


def first_position(start: Dim, size: Dim) -> Dim:
    """The start of a slice, counted from the beginning; it may still be greater than the size."""
    if is_nonnegative(start):
        return start
    if isinstance(start, int):
        return max(start + size, 0) if isinstance(size, int) else sympy.Max(0, size + start)
    return sympy.Max(0, sympy_functions.Where(sympy.Lt(start, 0), start + size, start))


def sliced(
    op: Op, value: ir.Value, axis: int, start: Dim, end: Dim, step: Dim = 1, *, in_range: bool = False
) -> ir.Value:
    """One Slice along one axis; limits count from the end when negative and are clamped, as torch's.

    Args:
        op: The op object.
        value: The tensor.
        axis: Its axis, not negative.
        start: The first position.
        end: The position after the last one.
        step: The distance between positions.
        in_range: Whether both limits are known to be between 0 and the size, even if their form does not tell.
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
    """The value cut into consecutive pieces of the given sizes."""
    if len(sizes) <= 1:
        return [value] * len(sizes)
    if op.opset >= 13 or all(isinstance(size, int) for size in sizes):
        return list(op.multi("Split", value, op.sizes(sizes), axis=axis, outputs=len(sizes)))
    # Before opset 13 Split takes sizes known at export time only.
    pieces, start = [], 0
    for size in sizes:
        pieces.append(sliced(op, value, axis, start, start + size))
        start = start + size
    return pieces


def choose(op: Op, condition: ir.Value, chosen: ir.Value, other: ir.Value) -> ir.Value:
    """Where, for every element type.

    Args:
        op: The op object.
        condition: BOOL, broadcastable with the others.
        chosen: Taken where the condition is true.
        other: Taken elsewhere; of the same element type.
    """
    dtype = op.dtype_of(chosen)
    if dtype != _BOOL:
        carrier = _CARRIERS.get(dtype, dtype)
        return op.cast(op.Where(condition, op.cast(chosen, carrier), op.cast(other, carrier)), dtype)
    # Where has no kernel for BOOL, and the logical operators say the same.
    if op.numbers(chosen) == [True]:
        return op.Or(condition, other)
    if op.numbers(chosen) == [False]:
        return op.And(op.Not(condition), other)
    if op.numbers(other) == [False]:
        return op.And(condition, chosen)
    return op.Or(op.And(condition, chosen), op.And(op.Not(condition), other))
