"""Calibration: the ranges of values over batches of representative inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from .._capture import Capture
from .._program.assumption_checks import check_assumptions
from .._program.call_binding import bind_call
from .._program.session import Session
from ..errors import ArgumentError, ExportError, RuntimeSessionError, SaveError
from .static import Range

__all__ = ["ranges_of"]

_STATISTICS = ("ReduceMin", "ReduceMax", "ReduceSum")


def ranges_of(model: ir.Model, names: Sequence[str], capture: Capture, batches: Iterable[Any]) -> dict[str, Range]:
    """Run a model in ONNX Runtime on all batches, one at a time, and return the ranges of values.

    Args:
        model: The model before the quantization; its graph is changed.
        names: Names of values of the main graph.
        capture: The capture, which the arguments of a batch are bound to.
        batches: The batches; see ``QuantizeConfig.calibration``.

    Raises:
        ArgumentError: If it yields no batches, or one does not fit the model or causes values that are not finite.
    """
    _return_statistics(model, names)
    try:
        session = Session(model)
    except (RuntimeSessionError, SaveError) as error:
        raise ArgumentError("quantize", f"calibration: the model cannot be run: {error}") from error
    found: dict[str, Range] = {}
    try:
        for index, batch in enumerate(batches):
            inputs = _inputs(capture, batch, index)
            try:
                lows, highs, sums = _thirds(session.run(inputs))
            except (ArgumentError, RuntimeSessionError) as error:
                raise _misfit(index, error) from error
            for name, low, high, total in zip(names, lows, highs, sums, strict=True):
                if not all(map(math.isfinite, (low, high, total))):
                    raise ArgumentError(
                        "quantize",
                        f"calibration: batch {index} makes {name!r} infinite or not a number",
                        hint="check the batch, or exclude the layers that read or compute it",
                    )
                before = found.get(name, (low, high))
                found[name] = min(before[0], low), max(before[1], high)
    finally:
        session.close()
    if not found:
        raise ArgumentError(
            "quantize",
            "calibration: it yields no batches",
            hint="an iterator that was used before is exhausted; pass a list or a DataLoader",
        )
    return found


def _return_statistics(model: ir.Model, names: Sequence[str]) -> None:
    """Replace the outputs of a model by the least, the largest and the sum of the elements of values."""
    graph = model.graph
    values = {str(value.name): value for value in graph.inputs}
    values.update({str(value.name): value for node in graph for value in node.outputs})
    # The sum is not finite if an element is not; the least and the largest may ignore NaN.
    nodes = [ir.node(op_type, [values[name]], {"keepdims": 0}) for op_type in _STATISTICS for name in names]
    for index, node in enumerate(nodes):
        node.outputs[0].name = f"fxonnx_statistic_{index}"
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    graph.extend(nodes)
    graph.outputs[:] = [node.outputs[0] for node in nodes]


def _thirds(statistics: Sequence[Any]) -> tuple[list[float], list[float], list[float]]:
    numbers = [float(value) for value in statistics]
    count = len(numbers) // 3
    return numbers[:count], numbers[count : 2 * count], numbers[2 * count :]


def _inputs(capture: Capture, batch: Any, index: int) -> tuple[Any, ...]:
    """Bind a batch to the inputs of the graph.

    Raises:
        ArgumentError: If it does not fit the model.
    """
    args, kwargs = _arguments(batch, capture)
    forward = None if capture.source is None else capture.source.forward
    try:
        call = bind_call(capture.exported_program, args, kwargs, forward, capture.inputs.frozen, capture.inputs.lists)
        capture.limits.check(call.inputs)
        check_assumptions(capture, call.inputs, {})
    except ArgumentError as error:
        raise _misfit(index, error) from error
    return call.inputs


def _arguments(batch: Any, capture: Capture) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Positional and keyword arguments of a batch; the label of a pair is omitted."""
    if isinstance(batch, Mapping):
        return (), batch
    if not isinstance(batch, (tuple, list)):
        return (batch,), {}
    specs = [spec for part in capture.exported_program.call_spec.in_spec.children() for spec in part.children()]
    is_nested = isinstance(batch[0], (tuple, list, Mapping)) if batch else False
    if len(batch) != 2 or (len(specs) == 2 and not (is_nested and specs[0].is_leaf())):
        return tuple(batch), {}
    if isinstance(batch[0], Mapping):
        return (), batch[0]
    return tuple(batch[0]) if is_nested else (batch[0],), {}


def _misfit(index: int, error: ExportError) -> ArgumentError:
    hint = (
        "a batch is a tensor, a tuple of arguments, a dict of keyword arguments, or a pair of one of these and a label"
    )
    return ArgumentError(
        "quantize", f"calibration: batch {index} does not fit the model: {error.message}", hint=error.hint or hint
    )
