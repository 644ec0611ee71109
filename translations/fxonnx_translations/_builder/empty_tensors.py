"""Sizes that must not be 0: kernels that fail on empty tensors, and captured shapes that are valid from size 1 on.

torch captures a model under the assumption that sizes are at least 1, and simplifies expressions with it. Most models
are right for empty inputs anyway (a cache without a past, an image without boxes), so empty inputs are only rejected
where a node of the graph needs an element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import sympy

from .builder import Builder
from .constants import array_of
from .size_values import EVALUATION_ERRORS
from .symbolic_dims import Dim

__all__ = ["STATIC_SLICE", "Requirement", "requirements", "symbols_that_must_be_positive"]

STATIC_SLICE = "the captured shape of Slice is not valid for empty tensors"
"""Reason why an axis must not be empty whose slice has a static size."""

_MOST_SYMBOLS = 6
_LONGEST = 60
_OTHER_SIZES = (1, 2, 5)


@dataclass(frozen=True)
class Requirement:
    """A lower limit of a size, for which the graph is valid.

    Attributes:
        size: The size, in the user's dim names.
        least: The limit.
        reason: The reason, such as "MaxPool does not support empty tensors in ONNX Runtime".
    """

    size: sympy.Expr
    least: int
    reason: str


def requirements(builder: Builder) -> list[Requirement]:
    """Return the requirements of a finished graph, without duplicates."""
    found: dict[tuple[sympy.Expr, int], Requirement] = {}

    def require(size: sympy.Expr, least: int, reason: str) -> None:
        found.setdefault((size, least), Requirement(size, least, reason))

    checked: set[sympy.Expr] = set()
    for node in builder.graph:
        captured = f"the captured shape of {node.op_type} is not valid for empty tensors"
        rule = _NEEDS_ELEMENTS.get(node.op_type) if node.domain == "" else None
        kernel = STATIC_SLICE if rule is _sliced else f"{node.op_type} does not support empty tensors in ONNX Runtime"
        for size in rule(node, builder) if rule is not None else ():
            if not isinstance(size, int):
                require(size, 1, kernel)
        for output in node.outputs:
            for symbol in builder.nonempty_symbols.get(output, ()):
                require(symbol, 1, captured)
            for size in builder.recorded_dims(output) or ():
                if isinstance(size, int) or size.is_Symbol or size in checked:
                    continue
                checked.add(size)
                if _may_be_negative(size):
                    require(size, 0, captured)
    for size, reason in builder.positive_sizes.items():
        require(size, 1, reason)
    for numerator in builder.floor_div_numerators():
        # Floor divisions are emitted without the correction for negative numerators where torch assumes positive sizes.
        if numerator not in checked and _may_be_negative(numerator):
            require(numerator, 0, "the captured size arithmetic is not valid for empty tensors")
    return list(found.values())


def symbols_that_must_be_positive(size: Dim, start: Dim, end: Dim, step: Dim, length: Dim) -> tuple[sympy.Symbol, ...]:
    """Return the symbols that must not be 0, because the captured length of a slice would be wrong.

    torch assumes that every size is positive: it takes the limit -1 for ``size - 1``, which is -1 for an empty axis.

    Args:
        size: Size of the axis.
        start: The first position.
        end: The position after the last one.
        step: The distance between positions.
        length: The captured size of the result.
    """
    if isinstance(length, int) or all(isinstance(limit, int) and limit >= 0 for limit in (start, end)):
        return ()
    limits = (size, start, end, step)
    free = {symbol for dim in (*limits, length) if not isinstance(dim, int) for symbol in dim.free_symbols}
    if len(free) > _MOST_SYMBOLS or length.count_ops() > _LONGEST:
        return ()
    symbols = sorted(free, key=str)
    return tuple(
        symbol
        for symbol in symbols
        if any(
            _is_wrong(limits, length, {**one, symbol: 0})
            for one in (dict.fromkeys(symbols, number) for number in _OTHER_SIZES)
        )
    )


def _is_wrong(limits: Sequence[Dim], length: Dim, sizes: Mapping[sympy.Symbol, int]) -> bool:
    try:
        size, start, end, step, expected = (_evaluated(dim, sizes) for dim in (*limits, length))
    except EVALUATION_ERRORS:
        return False
    return step > 0 and len(range(size)[start:end:step]) != expected


def _evaluated(dim: Dim, sizes: Mapping[sympy.Symbol, int]) -> int:
    """Return the value of an expression at these sizes."""
    if isinstance(dim, int):
        return dim
    return int(dim.xreplace({symbol: sympy.Integer(number) for symbol, number in sizes.items()}))


def _may_be_negative(size: sympy.Expr) -> bool:
    """Whether the captured expression of a size, valid from 1 on, is negative where some of its symbols are 0."""
    symbols = size.free_symbols
    if not 0 < len(symbols) <= _MOST_SYMBOLS or size.count_ops() > _LONGEST:
        return False
    corners = [dict.fromkeys(symbols, 0), *({**dict.fromkeys(symbols, 1), symbol: 0} for symbol in symbols)]
    for corner in corners:
        try:
            value = size.xreplace({symbol: sympy.Integer(number) for symbol, number in corner.items()})
        except AssertionError:
            # torch's Mod raises it for a negative operand, which is a size as well.
            return True
        except EVALUATION_ERRORS:
            continue
        if value.is_negative is True:
            return True
    return False


def _dims(builder: Builder, value: ir.Value | None) -> tuple[Dim, ...]:
    return () if value is None else builder.recorded_dims(value) or ()


def _all_sizes(node: ir.Node, builder: Builder) -> Iterator[Dim]:
    for value in node.inputs:
        yield from _dims(builder, value)


def _sizes_of_first(node: ir.Node, builder: Builder) -> Iterator[Dim]:
    yield from _dims(builder, node.inputs[0])


def _sizes_of_states(node: ir.Node, builder: Builder) -> Iterator[Dim]:
    """The sizes of query, key and value of an Attention; its past may be empty."""
    for value in node.inputs[:3]:
        yield from _dims(builder, value)


def _spatial(node: ir.Node, builder: Builder) -> Iterator[Dim]:
    """Channels and spatial sizes, also the result's; the batch may be empty."""
    yield from _dims(builder, node.inputs[0])[1:]
    yield from _dims(builder, node.outputs[0])[2:]


def _reduced(node: ir.Node, builder: Builder) -> Iterator[Dim]:
    dims = _dims(builder, node.inputs[0])
    attribute = node.attributes.get("axes")
    array = array_of(node.inputs[1]) if len(node.inputs) > 1 else None
    axes = list(attribute.as_ints()) if attribute is not None else None if array is None else array.tolist()
    yield from dims if axes is None else (dims[axis] for axis in axes if dims)


def _reduced_numbers(node: ir.Node, builder: Builder) -> Iterator[Dim]:
    """The axes of a minimum of numbers; without flags, as integers, it is the largest integer, which is true."""
    cast = node.inputs[0].producer() if node.inputs[0] is not None else None
    if cast is None or cast.op_type != "Cast" or cast.inputs[0] is None or cast.inputs[0].dtype != ir.DataType.BOOL:
        yield from _reduced(node, builder)


def _along_axis(node: ir.Node, builder: Builder) -> Iterator[Dim]:
    attribute = node.attributes.get("axis")
    dims = _dims(builder, node.inputs[0])
    if dims:
        yield dims[0 if attribute is None else attribute.as_int()]


def _sliced(node: ir.Node, builder: Builder) -> Iterator[Dim]:
    """The sizes of axes whose slice has a static size: ``x[:1]`` has one element only from size 1 on."""
    for before, after in zip(_dims(builder, node.inputs[0]), _dims(builder, node.outputs[0]), strict=False):
        if isinstance(after, int) and after > 0:
            yield before


def _split(node: ir.Node, builder: Builder) -> Iterator[Dim]:
    if "num_outputs" in node.attributes:
        yield from _along_axis(node, builder)


def _copied(node: ir.Node, builder: Builder) -> Iterator[Dim]:
    """The copied sizes (0) of a Reshape with -1: if one is 0, -1 cannot be inferred from the number of elements."""
    target = array_of(node.inputs[1])
    if target is None:
        # Without allowzero a computed size of 0 copies the input's size.
        yield from () if "allowzero" in node.attributes else _dims(builder, node.outputs[0])
        return
    if -1 not in target.tolist():
        return
    dims = _dims(builder, node.inputs[0])
    for axis, size in enumerate(target.tolist()):
        if size == 0 and axis < len(dims):
            yield dims[axis]


def _padded(node: ir.Node, builder: Builder) -> Iterator[Dim]:
    attribute = node.attributes.get("mode")
    mode = "constant" if attribute is None else attribute.as_string()
    pads = array_of(node.inputs[1]) if len(node.inputs) > 1 else None
    if mode == "constant":
        return
    dims = _dims(builder, node.inputs[0])
    for axis, size in enumerate(dims):
        # In the mode "wrap" the kernel rejects all empty tensors.
        if mode == "wrap" or pads is None or pads[axis] or pads[axis + len(dims)]:
            yield size


def _fused_transpose(node: ir.Node, builder: Builder) -> Iterator[Dim]:
    """The sizes of an operand whose Transpose ONNX Runtime fuses into the MatMul.

    Its kernel divides by the first size if the Transpose moves it after the batch, and leaves products of empty matrices
    uninitialized.
    """
    for value in node.inputs:
        producer = None if value is None else value.producer()
        if producer is None or producer.op_type != "Transpose":
            continue
        perm = list(producer.attributes["perm"].as_ints()) if "perm" in producer.attributes else []
        moves_batch = len(perm) > 2 and perm[:-2] == list(range(1, len(perm) - 1)) and 0 in perm[-2:]
        if moves_batch:
            yield from _dims(builder, producer.inputs[0])[:1]
        if moves_batch or (len(perm) > 2 and perm[-2:] == [len(perm) - 1, len(perm) - 2]):
            yield from _dims(builder, node.inputs[0])[-1:]


def _number_of_items(node: ir.Node, builder: Builder) -> Iterator[Dim]:
    """The number of tensors of a sequence."""
    yield from builder.dims(node.outputs[0])[:1]


_NEEDS_ELEMENTS: Mapping[str, Callable[[ir.Node, Builder], Iterator[Dim]]] = {
    **dict.fromkeys(("ReduceMean", "ReduceMax"), _reduced),
    "ReduceMin": _reduced_numbers,
    **dict.fromkeys(("ArgMax", "ArgMin"), _along_axis),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "MaxPool", "AveragePool", "LpPool", "Conv"), _spatial),
    **dict.fromkeys(("ConvTranspose", "GridSample", "Resize"), _spatial),
    # These end the process on empty tensors, with SIGFPE, SIGABRT or SIGSEGV.
    **dict.fromkeys(("Einsum", "Scan"), _all_sizes),
    **dict.fromkeys(("GRU", "LSTM", "RNN", "GroupNormalization", "InstanceNormalization", "LRN"), _sizes_of_first),
    "Attention": _sizes_of_states,
    "ConcatFromSequence": _number_of_items,
    "MatMul": _fused_transpose,
    "Pad": _padded,
    "Reshape": _copied,
    "Slice": _sliced,
    "Split": _split,
}
"""ONNX operators whose ONNX Runtime kernels fail, crash or differ from torch for empty tensors (a mean is 0, not NaN), to
the sizes of a node that must not be 0."""
