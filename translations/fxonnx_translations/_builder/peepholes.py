"""No-ops that are not emitted in the first place.

Each rule sees an operator about to be emitted and returns the value that already is its result, or None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from .builder_protocol import BuilderProtocol
from .constants import array_of
from .shape_inference import broadcast, ints_of
from .symbolic_dims import Dim, is_static
from .value_ranges import COMPARISONS, decide_comparison, is_consecutive, value_range

__all__ = ["PEEPHOLES"]

# A literal with another shape is stored beside the original: worth it for the small ones only.
_LARGEST_LITERAL = 4096

Peephole = Callable[[BuilderProtocol, list[ir.Value], dict[str, Any]], ir.Value | None]


def _cast(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
    if inputs[0].dtype == attributes["to"]:
        return inputs[0]
    before = _made_by(inputs[0], "Cast")
    source = None if before is None else before.inputs[0]
    if source is None or source.dtype != attributes["to"]:
        return None
    # There and back is no change if the type between holds all numbers of the other.
    return source if (source.dtype, inputs[0].dtype) in _HELD else None


_HELD = frozenset(
    (narrow, wide)
    for family in (
        (ir.DataType.BOOL, ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
        (ir.DataType.BOOL, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
        (ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE),
        (ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE),
        (ir.DataType.INT16, ir.DataType.FLOAT, ir.DataType.DOUBLE),
        (ir.DataType.INT32, ir.DataType.DOUBLE),
        (ir.DataType.BOOL, ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE),
        (ir.DataType.BOOL, ir.DataType.BFLOAT16),
        (ir.DataType.INT8, ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE),
        (ir.DataType.INT8, ir.DataType.BFLOAT16),
        (ir.DataType.UINT8, ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE),
        (ir.DataType.UINT8, ir.DataType.BFLOAT16),
    )
    for place, narrow in enumerate(family)
    for wide in family[place + 1 :]
)


def _transpose(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
    perm = attributes.get("perm")
    if perm is None:
        return None
    value = inputs[0]
    if list(perm) == list(range(len(perm))):
        return value
    producer = value.producer()
    if producer is not None and producer.op_type == "Transpose" and producer.domain == "":
        first = producer.attributes["perm"].as_ints()
        source = producer.inputs[0]
        if source is not None:
            return builder.value_of("Transpose", source, perm=[first[axis] for axis in perm])
    return _moved_ones(builder, value, perm)


def _moved_ones(builder: BuilderProtocol, value: ir.Value, perm: Sequence[int]) -> ir.Value | None:
    """A Transpose that moves only axes of one element copies nothing as a Reshape, which may join one next to it."""
    dims = builder.dims(value)
    large = [axis for axis in perm if dims[axis] != 1]
    if large != sorted(large) or 0 in dims or sum(not isinstance(dim, int) for dim in dims) > 1:
        return None
    return builder.value_of("Reshape", value, [dim if isinstance(dim, int) else -1 for dim in (dims[a] for a in perm)])


def _reshape(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
    target = ints_of(inputs[1])
    if target is None:
        return None
    value = inputs[0]
    array = array_of(value)
    if array is not None and 0 not in target and array.size <= _LARGEST_LITERAL:
        return builder.constant(ir.Tensor(array.reshape(target)))
    dims = builder.dims(value)
    if len(target) == len(dims):
        same = [
            size == dim or (size == 0 and "allowzero" not in attributes) for size, dim in zip(target, dims, strict=True)
        ]
        if all(same) or (same.count(False) == 1 and target[same.index(False)] == -1 and 0 not in dims):
            return value
    producer = value.producer()
    # The size 0 refers to the input's own axes, so only a target without it can skip the first Reshape.
    if producer is not None and producer.op_type == "Reshape" and producer.domain == "" and 0 not in target:
        source = producer.inputs[0]
        if source is not None:
            return builder.value_of("Reshape", source, inputs[1], **attributes)
    return _split_before_transposing(builder, value, target)


def _split_before_transposing(builder: BuilderProtocol, value: ir.Value, target: list[int]) -> ir.Value | None:
    """The axis of a transposed tensor that a Reshape splits can be split by the Reshape that comes before."""
    transpose = _made_by(value, "Transpose")
    first = None if transpose is None else _made_by(transpose.inputs[0], "Reshape")
    if transpose is None or first is None or first.inputs[0] is None:
        return None
    shaped = first.outputs[0]
    dims, before = builder.dims(value), builder.dims(shaped)
    split = _split_axis(dims, target) if is_static(dims) and is_static(before) else None
    if split is None or 0 in dims:
        return None
    axis, count = split
    perm, parts = list(transpose.attributes["perm"].as_ints()), target[axis : axis + count]
    place = perm[axis]
    inner = [*before[:place], *parts, *before[place + 1 :]]
    moved = [[p + (count - 1 if p > place else 0)] if p != place else list(range(p, p + count)) for p in perm]
    reshaped = builder.value_of("Reshape", first.inputs[0], [int(size) for size in inner])
    return builder.value_of("Transpose", reshaped, perm=[axis for group in moved for axis in group])


def _split_axis(dims: Sequence[Any], target: list[int]) -> tuple[int, int] | None:
    """Which axis becomes how many, if all others stay as they are; None if it is not one."""
    count = len(target) - len(dims) + 1
    if count < 2 or any(size < 1 for size in target):
        return None
    axis = next((at for at, (size, dim) in enumerate(zip(target, dims, strict=False)) if size != dim), len(dims) - 1)
    rest = [*target[:axis], *target[axis + count :]]
    same = rest == [*dims[:axis], *dims[axis + 1 :]] and math.prod(target[axis : axis + count]) == dims[axis]
    return (axis, count) if same else None


def _made_by(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op_type and node.domain == "" else None


def _expand(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
    target = ints_of(inputs[1])
    dims = builder.dims(inputs[0])
    if target is None or not is_static(dims):
        return None
    offset = len(dims) - len(target)
    fits = offset >= 0 and all(size in (1, dim) for size, dim in zip(target, dims[offset:], strict=True))
    return inputs[0] if fits else None


def _axes(insert: bool) -> Peephole:
    def rule(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
        axes = attributes.get("axes", ints_of(inputs[1]) if len(inputs) > 1 else None)
        if axes == []:
            return inputs[0]
        array = array_of(inputs[0])
        if array is None or axes is None or array.size > _LARGEST_LITERAL:
            if axes is None:
                return None
            return _inserted_at_once(builder, inputs[0], axes) if insert else _undone(builder, inputs[0], axes)
        changed = np.expand_dims(array, tuple(axes)) if insert else np.squeeze(array, tuple(axes))
        return builder.constant(ir.Tensor(changed))

    return rule


def _inserted(node: ir.Node, rank: int) -> list[int] | None:
    """The axes that an Unsqueeze inserts, in a result of that rank."""
    given = node.attributes.get("axes")
    axes = list(given.as_ints()) if given is not None else ints_of(node.inputs[1])
    return None if axes is None else sorted(axis % rank for axis in axes)


def _inserted_at_once(builder: BuilderProtocol, value: ir.Value, axes: list[int]) -> ir.Value | None:
    """Two Unsqueezes after each other are one; an Expand before one comes after it, where it may not be needed."""
    dims = builder.dims(value)
    later = {axis % (len(dims) + len(axes)) for axis in axes}
    kept = [place for place in range(len(dims) + len(axes)) if place not in later]
    expand, first = _made_by(value, "Expand"), _made_by(value, "Unsqueeze")
    if expand is not None and expand.inputs[0] is not None and len(builder.dims(expand.inputs[0])) == len(dims):
        result: list[Dim] = [1] * (len(dims) + len(axes))
        for place, dim in zip(kept, dims, strict=True):
            result[place] = dim
        return _expanded(builder, builder.value_of("Unsqueeze", expand.inputs[0], sorted(later)), result)
    earlier = None if first is None else _inserted(first, len(dims))
    if first is None or earlier is None or first.inputs[0] is None:
        return None
    return builder.value_of("Unsqueeze", first.inputs[0], sorted(later.union(kept[axis] for axis in earlier)))


def _undone(builder: BuilderProtocol, value: ir.Value, axes: list[int]) -> ir.Value | None:
    """Squeeze of axes that were put in before, maybe in front of a Transpose."""
    rank = len(builder.dims(value))
    dropped = {axis % rank for axis in axes}
    unsqueeze = _made_by(value, "Unsqueeze")
    inserted = None if unsqueeze is None else _inserted(unsqueeze, rank)
    if unsqueeze is not None and inserted is not None and unsqueeze.inputs[0] is not None and dropped <= set(inserted):
        rest = [axis - sum(each < axis for each in dropped) for axis in inserted if axis not in dropped]
        return builder.value_of("Unsqueeze", unsqueeze.inputs[0], rest) if rest else unsqueeze.inputs[0]
    transpose = _made_by(value, "Transpose")
    unsqueeze = None if transpose is None else _made_by(transpose.inputs[0], "Unsqueeze")
    inserted = None if unsqueeze is None else _inserted(unsqueeze, rank)
    if transpose is None or unsqueeze is None or unsqueeze.inputs[0] is None or inserted is None or len(dropped) != 1:
        return None
    perm = list(transpose.attributes["perm"].as_ints())
    (gone,) = dropped
    if len(inserted) != 1 or perm[gone] != inserted[0]:
        return None
    left = [p - (p > inserted[0]) for at, p in enumerate(perm) if at != gone]
    return builder.value_of("Transpose", unsqueeze.inputs[0], perm=left)


def _concat(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
    if len(inputs) == 1:
        return inputs[0]
    arrays = [array for array in map(array_of, inputs) if array is not None]
    if len(arrays) < len(inputs) or sum(array.size for array in arrays) > _LARGEST_LITERAL:
        return None
    return builder.constant(ir.Tensor(np.concatenate(arrays, axis=attributes["axis"])))


def _gather(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
    value, indices = inputs
    dims, chosen = builder.dims(value), builder.dims(indices)
    axis = attributes.get("axis", 0) % max(len(dims), 1)
    known = value_range(builder, value)
    result = (*dims[:axis], *chosen, *dims[axis + 1 :])
    if known is not None and isinstance(known[0], int) and known[0] == known[1] and array_of(value) is None:
        return _everywhere(builder, known[0], value.dtype or ir.DataType.INT64, result)
    if len(chosen) == 1 and chosen[0] == dims[axis] and _counts_from_zero(builder, indices):
        return value
    expand = _made_by(value, "Expand")
    source = None if expand is None else expand.inputs[0]
    if source is None or len(chosen) != 1 or len(builder.dims(source)) != len(dims):
        return None
    if builder.dims(source)[axis] == 1 and dims[axis] != 1:
        return _expanded(builder, source, result)
    return _expanded(builder, builder.value_of("Gather", source, indices, axis=axis), result)


def _counts_from_zero(builder: BuilderProtocol, indices: ir.Value) -> bool:
    array = array_of(indices)
    if array is not None:
        return np.array_equal(array, np.arange(len(array)))
    known = value_range(builder, indices)
    return known is not None and known[0] == 0 and is_consecutive(builder, indices)


def _identity(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
    return inputs[0]


def _neutral(number: float, floats: bool, left_too: bool) -> Peephole:
    """``x op number`` is x, where the other operand is a one-element constant that does not broadcast x."""

    def rule(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
        pairs = [(inputs[0], inputs[1])] + ([(inputs[1], inputs[0])] if left_too else [])
        for value, other in pairs:
            array = array_of(other)
            if array is None or array.size != 1 or value.dtype is None:
                continue
            if not floats and value.dtype.is_floating_point():
                continue
            if array.item() == number and len(builder.dims(other)) <= len(builder.dims(value)):
                return value
        return None

    return rule


def _broadcasting(op_type: str, rule: Peephole | None = None) -> Peephole:
    """Operands that were expanded are taken as they were before; if need be, the result is expanded instead."""

    def unexpanded(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
        simpler = None if rule is None else rule(builder, inputs, attributes)
        if simpler is not None:
            return simpler
        expands = [_made_by(value, "Expand") for value in inputs]
        if not any(expands):
            return None
        narrow = [
            value if expand is None or expand.inputs[0] is None else expand.inputs[0]
            for value, expand in zip(inputs, expands, strict=True)
        ]
        return _expanded(builder, builder.value_of(op_type, *narrow, **attributes), _joint(builder, inputs))

    return unexpanded


def _joint(builder: BuilderProtocol, inputs: Sequence[ir.Value]) -> tuple[Dim, ...]:
    return broadcast(builder, [builder.dims(value) for value in inputs])


def _expanded(builder: BuilderProtocol, value: ir.Value, dims: Sequence[Dim]) -> ir.Value | None:
    """The value in that shape; None if its sizes are of a kind that only ONNX's shape inference has names for."""
    symbols = {symbol for dim in dims if not isinstance(dim, int) for symbol in dim.free_symbols}
    return builder.expand(value, dims) if all(map(builder.symbols.is_defined, symbols)) else None


def _everywhere(builder: BuilderProtocol, value: Any, dtype: ir.DataType, dims: Sequence[Dim]) -> ir.Value | None:
    return _expanded(builder, builder.constant(value, dtype), dims)


def _decided(op_type: str) -> Peephole:
    """A comparison of positions that says the same of all."""

    def rule(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
        answer = decide_comparison(builder, op_type, *inputs)
        return None if answer is None else _everywhere(builder, answer, ir.DataType.BOOL, _joint(builder, inputs))

    return rule


def _logical(neutral: int) -> Peephole:
    """And with what is True everywhere, Or with what is False everywhere; and the other way round."""

    def rule(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
        for value, other in (inputs, inputs[::-1]):
            known = value_range(builder, value)
            if known == (neutral, neutral):
                return _expanded(builder, other, _joint(builder, inputs))
            if known == (1 - neutral, 1 - neutral):
                return _everywhere(builder, bool(1 - neutral), ir.DataType.BOOL, _joint(builder, inputs))
        return None

    return rule


def _not(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
    known = value_range(builder, inputs[0])
    if known not in ((0, 0), (1, 1)):
        return None
    return _everywhere(builder, known == (0, 0), ir.DataType.BOOL, builder.dims(inputs[0]))


def _cumsum(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
    return inputs[0] if value_range(builder, inputs[0]) == (0, 0) else None


_PLAIN_BROADCASTING = ("Xor", "Where", "Pow", "Mod", "Min", "Max", "BitwiseAnd", "BitwiseOr", "BitwiseXor")

PEEPHOLES: Mapping[str, Peephole] = {
    **{op_type: _broadcasting(op_type) for op_type in _PLAIN_BROADCASTING},
    **{op_type: _broadcasting(op_type, _decided(op_type)) for op_type in COMPARISONS},
    "And": _broadcasting("And", _logical(neutral=1)),
    "Or": _broadcasting("Or", _logical(neutral=0)),
    "Not": _not,
    "CumSum": _cumsum,
    "Cast": _cast,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Expand": _expand,
    "Squeeze": _axes(insert=False),
    "Unsqueeze": _axes(insert=True),
    "Concat": _concat,
    "Gather": _gather,
    "Identity": _identity,
    # x + 0.0 turns -0.0 into 0.0, so it stays for floats; x - 0.0 does not.
    "Add": _broadcasting("Add", _neutral(0, floats=False, left_too=True)),
    "Sub": _broadcasting("Sub", _neutral(0, floats=False, left_too=False)),
    "Mul": _broadcasting("Mul", _neutral(1, floats=True, left_too=True)),
    "Div": _broadcasting("Div", _neutral(1, floats=True, left_too=False)),
}
