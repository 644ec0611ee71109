"""Sizes that must not be 0: kernels that fail or crash on empty tensors, and shapes that hold from 1 on only.

torch captures a model for sizes from 1 on, and simplifies with that. Most models are right for empty inputs all the
same (a cache without a past, an image without boxes), so an empty input is refused only where something of the graph
needs an element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import sympy

from .builder import Builder
from .constants import array_of
from .symbolic_dims import Dim

__all__ = ["Requirement", "requirements", "symbols_that_must_be_positive"]

_MOST_SYMBOLS = 6
_LONGEST = 60
_OTHER_SIZES = (1, 2, 5)


@dataclass(frozen=True)
class Requirement:
    """A size of some value in the graph that is not right below a limit.

    Attributes:
        size: The size, in the user's names.
        least: The lowest one that is right.
        reason: Why: "MaxPool does not support empty tensors in ONNX Runtime".
    """

    size: sympy.Expr
    least: int
    reason: str


def requirements(builder: Builder) -> list[Requirement]:
    """The sizes that limit a finished graph, each once."""
    found: dict[tuple[sympy.Expr, int], Requirement] = {}

    def require(size: sympy.Expr, least: int, reason: str) -> None:
        found.setdefault((size, least), Requirement(size, least, reason))

    checked: set[sympy.Expr] = set()
    for node in builder.graph:
        captured = f"the captured shape of {node.op_type} is not valid for empty tensors"
        rule = _NEEDS_ELEMENTS.get(node.op_type) if node.domain == "" else None
        kernel = captured if rule is _sliced else f"{node.op_type} does not support empty tensors in ONNX Runtime"
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
    for numerator in builder.floor_div_numerators():
        # Sizes that torch takes for positive are divided without a correction for negative ones.
        if numerator not in checked and _may_be_negative(numerator):
            require(numerator, 0, "the captured size arithmetic is not valid for empty tensors")
    return list(found.values())


def symbols_that_must_be_positive(size: Dim, start: Dim, end: Dim, step: Dim, length: Dim) -> tuple[sympy.Symbol, ...]:
    """The symbols for which torch's length of a slice is another one than that of the slice where they are 0.

    torch takes every size for positive: the last element, at -1, is at ``size - 1`` for it, not at 0.

    Args:
        size: Size of the axis.
        start: The first position.
        end: The position after the last one.
        step: The distance between positions.
        length: What torch says that the result's size is.
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
    except (TypeError, ZeroDivisionError):
        return False
    return step > 0 and len(range(size)[start:end:step]) != expected


def _evaluated(dim: Dim, sizes: Mapping[sympy.Symbol, int]) -> int:
    """The number at these sizes.

    Raises:
        TypeError: If the expression does not become a number.
    """
    if isinstance(dim, int):
        return dim
    return int(dim.xreplace({symbol: sympy.Integer(number) for symbol, number in sizes.items()}))


def _may_be_negative(size: sympy.Expr) -> bool:
    """Whether torch's form of a size, which holds from 1 on, is negative where some of the symbols are 0."""
    symbols = size.free_symbols
    if not 0 < len(symbols) <= _MOST_SYMBOLS or size.count_ops() > _LONGEST:
        return False
    corners = [dict.fromkeys(symbols, 0), *({**dict.fromkeys(symbols, 1), symbol: 0} for symbol in symbols)]
    for corner in corners:
        try:
            value = size.xreplace({symbol: sympy.Integer(number) for symbol, number in corner.items()})
        except ZeroDivisionError:
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
    """Query, key and value of an Attention; its past may be empty."""
    for value in node.inputs[:3]:
        yield from _dims(builder, value)


def _spatial(node: ir.Node, builder: Builder) -> Iterator[Dim]:
    """Channels and positions, those of the result, too; the batch may be empty."""
    yield from _dims(builder, node.inputs[0])[1:]
    yield from _dims(builder, node.outputs[0])[2:]


def _reduced(node: ir.Node, builder: Builder) -> Iterator[Dim]:
    dims = _dims(builder, node.inputs[0])
    attribute = node.attributes.get("axes")
    array = array_of(node.inputs[1]) if len(node.inputs) > 1 else None
    axes = list(attribute.as_ints()) if attribute is not None else None if array is None else array.tolist()
    yield from dims if axes is None else (dims[axis] for axis in axes if dims)


def _along_axis(node: ir.Node, builder: Builder) -> Iterator[Dim]:
    attribute = node.attributes.get("axis")
    dims = _dims(builder, node.inputs[0])
    if dims:
        yield dims[0 if attribute is None else attribute.as_int()]


def _sliced(node: ir.Node, builder: Builder) -> Iterator[Dim]:
    """The sizes that are cut to a number: ``x[:1]`` has one element from size 1 on."""
    for before, after in zip(_dims(builder, node.inputs[0]), _dims(builder, node.outputs[0]), strict=False):
        if isinstance(after, int) and after > 0:
            yield before


def _split(node: ir.Node, builder: Builder) -> Iterator[Dim]:
    if "num_outputs" in node.attributes:
        yield from _along_axis(node, builder)


def _copied(node: ir.Node, builder: Builder) -> Iterator[Dim]:
    """The sizes beside a -1 of Reshape: nothing can be found from the number of elements if one of them is 0."""
    target = array_of(node.inputs[1])
    if target is None:
        # Without allowzero a 0 that is computed copies the input's size.
        yield from () if "allowzero" in node.attributes else _dims(builder, node.outputs[0])
        return
    if -1 not in target.tolist():
        return
    dims = _dims(builder, node.inputs[0])
    for axis, size in enumerate(target.tolist()):
        if size == 0 and axis < len(dims):
            yield dims[axis]


def _padded(node: ir.Node, builder: Builder) -> Iterator[Dim]:
    mode = node.attributes.get("mode")
    pads = array_of(node.inputs[1]) if len(node.inputs) > 1 else None
    if mode is None or mode.as_string() == "constant":
        return
    dims = _dims(builder, node.inputs[0])
    for axis, size in enumerate(dims):
        if pads is None or pads[axis] or pads[axis + len(dims)]:
            yield size


_NEEDS_ELEMENTS: Mapping[str, Callable[[ir.Node, Builder], Iterator[Dim]]] = {
    **dict.fromkeys(("ReduceMean", "ReduceMax", "ReduceMin"), _reduced),
    **dict.fromkeys(("ArgMax", "ArgMin"), _along_axis),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "MaxPool", "AveragePool", "LpPool", "Conv"), _spatial),
    **dict.fromkeys(("ConvTranspose", "GridSample", "Resize"), _spatial),
    # These end the process on empty tensors, with SIGFPE, SIGABRT or SIGSEGV.
    **dict.fromkeys(("Einsum", "Scan"), _all_sizes),
    **dict.fromkeys(("GRU", "LSTM", "RNN", "GroupNormalization", "InstanceNormalization", "LRN"), _sizes_of_first),
    "Attention": _sizes_of_states,
    "Pad": _padded,
    "Reshape": _copied,
    "Slice": _sliced,
    "Split": _split,
}
"""ONNX operators whose ONNX Runtime kernels fail, crash or return another number for empty tensors: to the sizes of
a node that must not be 0. A mean of nothing is 0 there, not nan."""
