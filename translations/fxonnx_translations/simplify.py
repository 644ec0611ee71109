"""No-ops that are not emitted in the first place.

Each rule sees an operator about to be emitted and returns the value that already is its result, or None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from .constants import array_of
from .shapes import broadcast, ints_of
from .symbols import is_static

if TYPE_CHECKING:
    from .builder import Builder

__all__ = ["RULES"]

# A literal with another shape is stored beside the original: worth it for the small ones only.
_LARGEST_LITERAL = 4096

Rule = Callable[["Builder", list[ir.Value], dict[str, Any]], "ir.Value | None"]


def _cast(builder: Builder, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
    return inputs[0] if inputs[0].dtype == attributes["to"] else None


def _transpose(builder: Builder, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
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
    return None


def _reshape(builder: Builder, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
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


def _split_before_transposing(builder: Builder, value: ir.Value, target: list[int]) -> ir.Value | None:
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


def _expand(builder: Builder, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
    target = ints_of(inputs[1])
    dims = builder.dims(inputs[0])
    if target is None or not is_static(dims):
        return None
    offset = len(dims) - len(target)
    fits = offset >= 0 and all(size in (1, dim) for size, dim in zip(target, dims[offset:], strict=True))
    return inputs[0] if fits else None


def _axes(insert: bool) -> Rule:
    def rule(builder: Builder, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
        axes = attributes.get("axes", ints_of(inputs[1]) if len(inputs) > 1 else None)
        if axes == []:
            return inputs[0]
        array = array_of(inputs[0])
        if array is None or axes is None or array.size > _LARGEST_LITERAL:
            return None if insert or axes is None else _undone(builder, inputs[0], axes)
        changed = np.expand_dims(array, tuple(axes)) if insert else np.squeeze(array, tuple(axes))
        return builder.constant(ir.Tensor(changed))

    return rule


def _undone(builder: Builder, value: ir.Value, axes: list[int]) -> ir.Value | None:
    """Squeeze of an axis that was put in before a Transpose."""
    transpose = _made_by(value, "Transpose")
    unsqueeze = None if transpose is None else _made_by(transpose.inputs[0], "Unsqueeze")
    if transpose is None or unsqueeze is None or unsqueeze.inputs[0] is None or len(axes) != 1:
        return None
    perm = list(transpose.attributes["perm"].as_ints())
    given = unsqueeze.attributes.get("axes")
    known = list(given.as_ints()) if given is not None else ints_of(unsqueeze.inputs[1])
    if known is None or len(known) != 1 or perm[axes[0]] != known[0] % len(perm):
        return None
    place, dropped = known[0] % len(perm), axes[0] % len(perm)
    rest = [p - (p > place) for at, p in enumerate(perm) if at != dropped]
    return builder.value_of("Transpose", unsqueeze.inputs[0], perm=rest)


def _concat(builder: Builder, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
    if len(inputs) == 1:
        return inputs[0]
    arrays = [array for array in map(array_of, inputs) if array is not None]
    if len(arrays) < len(inputs) or sum(array.size for array in arrays) > _LARGEST_LITERAL:
        return None
    return builder.constant(ir.Tensor(np.concatenate(arrays, axis=attributes["axis"])))


def _gather(builder: Builder, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
    indices, dims = array_of(inputs[1]), builder.dims(inputs[0])
    if indices is None or indices.ndim != 1 or len(indices) != dims[attributes.get("axis", 0)]:
        return None
    return inputs[0] if np.array_equal(indices, np.arange(len(indices))) else None


def _identity(builder: Builder, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
    return inputs[0]


def _neutral(number: float, floats: bool, left_too: bool) -> Rule:
    """``x op number`` is x, where the other operand is a one-element constant that does not broadcast x."""

    def rule(builder: Builder, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
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


def _broadcasting(op_type: str, rule: Rule | None = None) -> Rule:
    """Operands that were expanded, where the operator broadcasts to the same shape without."""

    def unexpanded(builder: Builder, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
        simpler = None if rule is None else rule(builder, inputs, attributes)
        if simpler is not None:
            return simpler
        for index, value in enumerate(inputs):
            expand = _made_by(value, "Expand")
            if expand is None or expand.inputs[0] is None:
                continue
            dims = [builder.dims(each) for each in inputs]
            others = [*dims[:index], builder.dims(expand.inputs[0]), *dims[index + 1 :]]
            if broadcast(others) == broadcast(dims):
                narrow = [*inputs[:index], expand.inputs[0], *inputs[index + 1 :]]
                return builder.value_of(op_type, *narrow, **attributes)
        return None

    return unexpanded


_PLAIN_BROADCASTING = (
    *("And", "Or", "Xor", "Where", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
    *("Pow", "Mod", "Min", "Max", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
)

RULES: Mapping[str, Rule] = {
    **{op_type: _broadcasting(op_type) for op_type in _PLAIN_BROADCASTING},
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
