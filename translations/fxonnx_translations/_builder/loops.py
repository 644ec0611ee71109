"""ONNX loops with states of constant shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from .op import Op
from .symbolic_dims import Dim

__all__ = ["arange", "loop"]

LoopStep = Callable[[Op, ir.Value, Sequence[ir.Value]], Sequence[ir.Value]]
"""``step(op, k, states)`` emits one iteration with the body's ``op`` and returns the new states; ``k`` is INT64 [1]."""


LoopCondition = Callable[[Op, Sequence[ir.Value]], ir.Value]
"""``condition(op, states)``: a 0-dim BOOL."""


def loop(
    op: Op, count: Dim | ir.Value, states: Sequence[ir.Value], step: LoopStep, proceed: LoopCondition | None = None
) -> list[ir.Value]:
    """Emit a Loop that runs ``step`` for k = 0 .. count - 1.

    Args:
        op: The ``op`` of the enclosing graph.
        count: Number of iterations: a size, or a 0-dim INT64 value.
        states: The initial loop-carried values; their dtypes and shapes stay the same.
        step: Emits the body, which may use values of the enclosing graph.
        proceed: Emits the condition, after each iteration, to continue.

    Returns:
        The final states.
    """
    types = [(op.dtype_of(state), op.dims(state)) for state in states]
    body = op.body("step", [(ir.DataType.INT64, ()), (ir.DataType.BOOL, ()), *types])
    counter, going, *old = body.graph.inputs
    new = step(body, body.Unsqueeze(counter, [0]), old)
    sizes = [dims for _, dims in types]
    if proceed is not None:
        going = proceed(body, new)
    graph = body.finish([(going, ()), *zip(new, sizes, strict=True)])
    trips = count if isinstance(count, ir.Value) else op.scalar(count, ir.DataType.INT64)
    last = op.multi("Loop", trips, op.const(True), *states, outputs=len(states), body=graph)
    for value, (dtype, dims) in zip(last, types, strict=True):
        value.type = ir.TensorType(dtype)
        op.shaped(value, dims)
    return list(last)


def arange(op: Op, size: Dim) -> ir.Value:
    """Return 0 .. size - 1 as INT64: a constant if the size is static."""
    if isinstance(size, int):
        return op.const(list(range(size)), ir.DataType.INT64)
    return op.shaped(op.Range(op.const(0), op.scalar(size), op.const(1)), (size,))
