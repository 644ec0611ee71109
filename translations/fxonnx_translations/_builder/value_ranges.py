"""Value range analysis of integer and boolean tensors, to decide comparisons of positions at export time.

Models compute positions and compare them to make masks. With dynamic sizes these are not constants, but their ranges
often determine the result: the last token attends to every token, for example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import sympy

from .builder_protocol import BuilderProtocol
from .constants import array_of
from .symbolic_dims import Dim

__all__ = [
    "COMPARISONS",
    "INDICES_KEY",
    "decide_comparison",
    "every_row_unmasked",
    "is_computed_from_weights",
    "is_consecutive",
    "is_nonnegative",
    "value_range",
]

ValueRange: TypeAlias = tuple[Dim, Dim]
"""Lower and upper bound of the elements, both inclusive; for booleans 0 is False."""

_LARGEST_CONSTANT = 2**16
_UNKNOWN_BOOL: ValueRange = (0, 1)
_MOVES = frozenset(
    {"Squeeze", "Unsqueeze", "Reshape", "Expand", "Slice", "Identity", "Transpose", "Gather", "Split", "Flatten"}
)
INDICES_KEY = "indices"
"""Metadata of a derived weight: names of the sources that only select elements of the others."""
COMPARISONS = frozenset({"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})


def value_range(builder: BuilderProtocol, value: ir.Value | None) -> ValueRange | None:
    """Return the range of the elements of an integer or boolean tensor, or None if it is not known."""
    if value is None or value.dtype is None or not (value.dtype.is_integer() or value.dtype == ir.DataType.BOOL):
        return None
    if value not in builder.value_ranges:
        builder.value_ranges[value] = _value_range(builder, value)
    return builder.value_ranges[value]


def _value_range(builder: BuilderProtocol, value: ir.Value) -> ValueRange | None:
    expr = builder.size_expr(value)
    if expr is not None:
        return expr, expr
    array = array_of(value)
    if array is not None:
        is_small = 0 < array.size <= _LARGEST_CONSTANT
        return (int(array.min()), int(array.max())) if is_small else None
    node = value.producer()
    fallback = _UNKNOWN_BOOL if value.dtype == ir.DataType.BOOL else None
    if node is None or node.domain != "":
        return fallback
    if node.op_type in _MOVES:
        return value_range(builder, node.inputs[0])
    if node.op_type in COMPARISONS:
        decided = decide_comparison(builder, node.op_type, *node.inputs)
        return fallback if decided is None else (int(decided), int(decided))
    rule = _RULES.get(node.op_type)
    return fallback if rule is None else rule(builder, node) or fallback


def decide_comparison(
    builder: BuilderProtocol, op_type: str, left: ir.Value | None, right: ir.Value | None
) -> bool | None:
    """Return the result of a comparison if it is the same for all elements, else None."""
    first, second = value_range(builder, left), value_range(builder, right)
    if first is None or second is None:
        return None
    if first[0] == first[1] and second[0] == second[1]:
        # Numbers, as in the condition of a loop. Masks have no elements if a size is 0, but these do.
        first, second = _of_any_size(first), _of_any_size(second)
    if op_type in ("Greater", "GreaterOrEqual"):
        first, second, op_type = second, first, op_type.replace("Greater", "Less")
    (low, high), (other_low, other_high) = first, second
    if op_type == "Equal":
        if low == high == other_low == other_high:
            return True
        return False if _is_less(high, other_low) or _is_less(other_high, low) else None
    if op_type == "Less":
        return True if _is_less(high, other_low) else False if _is_at_most(other_high, low) else None
    return True if _is_at_most(high, other_low) else False if _is_less(other_high, low) else None


def _of_any_size(known: ValueRange) -> ValueRange:
    """The range in terms of sizes that may be 0; torch's symbols for sizes are positive."""
    low, high = known
    return _of_size(low), _of_size(high)


def _of_size(bound: Dim) -> Dim:
    if isinstance(bound, int):
        return bound
    sizes = {symbol: sympy.Symbol(symbol.name, integer=True, nonnegative=True) for symbol in bound.free_symbols}
    replaced: Dim = bound.xreplace({symbol: size for symbol, size in sizes.items() if symbol.is_positive})
    return replaced


def _is_at_most(first: Dim, second: Dim) -> bool:
    difference = second - first
    return difference >= 0 if isinstance(difference, int) else difference.is_nonnegative is True


def _is_less(first: Dim, second: Dim) -> bool:
    difference = second - first
    return difference > 0 if isinstance(difference, int) else difference.is_positive is True


def is_nonnegative(builder: BuilderProtocol, value: ir.Value) -> bool:
    """Whether no element of an integer tensor is negative, also if sizes are 0."""
    known = value_range(builder, value)
    return known is not None and _is_at_most(0, _of_size(known[0]))


def _range(builder: BuilderProtocol, node: ir.Node) -> ValueRange | None:
    start, limit = (value_range(builder, value) for value in node.inputs[:2])
    step = array_of(node.inputs[2])
    # is_consecutive relies on the lower bound being the first element.
    if start is None or limit is None or start[0] != start[1] or step is None or step.item() != 1:
        return None
    return start[0], limit[1] - 1


def _sum(builder: BuilderProtocol, node: ir.Node) -> ValueRange | None:
    left, right = (value_range(builder, value) for value in node.inputs)
    return None if left is None or right is None else (left[0] + right[0], left[1] + right[1])


def _difference(builder: BuilderProtocol, node: ir.Node) -> ValueRange | None:
    left, right = (value_range(builder, value) for value in node.inputs)
    return None if left is None or right is None else (left[0] - right[1], left[1] - right[0])


def _cast(builder: BuilderProtocol, node: ir.Node) -> ValueRange | None:
    known, to = value_range(builder, node.inputs[0]), node.attributes["to"].as_int()
    if known is None or to in (ir.DataType.INT64, ir.DataType.INT32):
        return known
    # Values wrap around in smaller integer types.
    if to != ir.DataType.BOOL:
        return None
    if known == (0, 0):
        return known
    return (1, 1) if _is_less(0, known[0]) else None


def _and(builder: BuilderProtocol, node: ir.Node) -> ValueRange | None:
    known = [value_range(builder, value) for value in node.inputs]
    return (0, 0) if (0, 0) in known else (1, 1) if known == [(1, 1), (1, 1)] else None


def _or(builder: BuilderProtocol, node: ir.Node) -> ValueRange | None:
    known = [value_range(builder, value) for value in node.inputs]
    return (1, 1) if (1, 1) in known else (0, 0) if known == [(0, 0), (0, 0)] else None


def _not(builder: BuilderProtocol, node: ir.Node) -> ValueRange | None:
    known = value_range(builder, node.inputs[0])
    return None if known is None else (1 - known[1], 1 - known[0])


def _if_all_equal(builder: BuilderProtocol, node: ir.Node) -> ValueRange | None:
    known = {value_range(builder, value) for value in node.inputs}
    return known.pop() if len(known) == 1 else None


def _zeros(builder: BuilderProtocol, node: ir.Node) -> ValueRange | None:
    return (0, 0) if value_range(builder, node.inputs[0]) == (0, 0) else None


_RULES: Mapping[str, Callable[[Any, ir.Node], ValueRange | None]] = MappingProxyType(
    {
        "Range": _range,
        "Add": _sum,
        "Sub": _difference,
        "Cast": _cast,
        "And": _and,
        "Or": _or,
        "Not": _not,
        "Concat": _if_all_equal,
        "CumSum": _zeros,
    }
)


def is_consecutive(builder: BuilderProtocol, value: ir.Value | None) -> bool:
    """Whether the elements along the last axis are consecutive: n, n + 1, n + 2 ..."""
    while value is not None:
        node = value.producer()
        if node is None or node.domain != "" or builder.dims(value)[-1] == 1:
            return False
        if node.op_type == "Range":
            step = array_of(node.inputs[2])
            return step is not None and step.item() == 1
        if node.op_type not in ("Unsqueeze", "Expand"):
            return False
        source = node.inputs[0]
        if source is None or (node.op_type == "Expand" and builder.dims(source)[-1:] != builder.dims(value)[-1:]):
            return False
        value = source
    return False


def every_row_unmasked(builder: BuilderProtocol, mask: ir.Value) -> bool:
    """Whether every row of a mask is known to have an unmasked element (True, or greater than -inf)."""
    array = array_of(mask)
    node = mask.producer()
    if mask.dtype != ir.DataType.BOOL:
        return _is_finite(mask) if array is None else bool((array > -np.inf).any(axis=-1).all())
    if array is not None:
        return bool(array.any(axis=-1).all())
    if node is not None and node.op_type in ("Unsqueeze", "Expand") and node.inputs[0] is not None:
        # The rows are repeated, or have more leading axes.
        last = builder.dims(mask)[-1]
        return (
            last != 1 and builder.dims(node.inputs[0])[-1:] == (last,) and every_row_unmasked(builder, node.inputs[0])
        )
    if node is None or node.domain != "" or node.op_type not in ("LessOrEqual", "GreaterOrEqual"):
        return value_range(builder, mask) == (1, 1)
    keys, query = node.inputs if node.op_type == "LessOrEqual" else reversed(node.inputs)
    first, lowest = value_range(builder, keys), value_range(builder, query)
    # The first key is the smallest of its row, and no query is smaller.
    return (
        first is not None and lowest is not None and is_consecutive(builder, keys) and _is_at_most(first[0], lowest[0])
    )


def _is_finite(value: ir.Value | None) -> bool:
    """Whether a float tensor is known to be finite: computed from finite constants and weights."""
    array, node = array_of(value), None if value is None else value.producer()
    if array is not None:
        return bool(np.isfinite(array).all())
    if node is None or node.domain != "":
        return is_computed_from_weights(value)
    if node.op_type in _MOVES:
        return _is_finite(node.inputs[0])
    if node.op_type == "Where":
        return all(map(_is_finite, node.inputs[1:]))
    return is_computed_from_weights(value) or (node.op_type in ("Add", "Sub") and all(map(_is_finite, node.inputs)))


_KEEP_FINITE = frozenset({"Add", "Sub", "Mul", "Sigmoid", "Tanh", "Concat"})


def is_computed_from_weights(value: ir.Value | None) -> bool:
    """Whether a float tensor is computed from weights alone, such as a relative position bias."""
    node = None if value is None else value.producer()
    if value is None or node is None:
        return value is not None and _is_parameter(value)
    if node.domain != "":
        return False
    if node.op_type in _MOVES:
        return is_computed_from_weights(node.inputs[0])
    return node.op_type in _KEEP_FINITE and all(map(is_computed_from_weights, node.inputs))


def _is_parameter(value: ir.Value) -> bool:
    """Whether an initializer is a parameter, or computed from parameters; a buffer may be a mask itself."""
    if not value.is_initializer() or value.graph is None:
        return False
    kind = value.metadata_props.get("pkg.torch.export.graph_signature.InputSpec.kind")
    if kind is not None:
        return kind == "PARAMETER"
    sources = value.metadata_props.get("pkg.fxonnx.derived_from", "").split(", ")
    indices = value.meta.get(INDICES_KEY, ())
    return all(
        name in indices or (name in value.graph.initializers and _is_parameter(value.graph.initializers[name]))
        for name in sources
    )
