"""Sums of overlapping windows, the inverse of ``unfold``, with the same number of nodes for any number of windows."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from .._builder.op import Op
from .._builder.symbolic_dims import Dim
from .._registry import translates


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
