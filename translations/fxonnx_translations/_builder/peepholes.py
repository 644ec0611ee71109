"""Peephole optimizations, applied to each operator before it is emitted.

A peephole returns the value that already is the operator's result, possibly of simpler operators it emits, or None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from .builder_protocol import BuilderProtocol
from .constants import array_of
from .dtypes import to_torch_dtype
from .shape_inference import broadcast, ints_of
from .stored_codes import transposed_dequantization
from .symbolic_dims import Dim, is_static
from .value_ranges import COMPARISONS, decide_comparison, is_consecutive, is_nonnegative, value_range

__all__ = ["PEEPHOLES"]

# A reshaped literal is stored in addition to the original: worth it for small ones only.
_LARGEST_LITERAL = 4096

Peephole = Callable[[BuilderProtocol, list[ir.Value], dict[str, Any]], ir.Value | None]


def _cast(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
    if inputs[0].dtype == attributes["to"]:
        return inputs[0]
    converted = _cast_constant(builder, inputs[0], attributes["to"])
    if converted is None:
        converted = _cast_alternatives(builder, inputs[0], attributes["to"])
    if converted is not None:
        return converted
    before = _producer_of_type(inputs[0], "Cast")
    source = None if before is None else before.inputs[0]
    if source is None or source.dtype != attributes["to"]:
        return None
    # A cast and its reverse cancel if the type in between represents all numbers of the other.
    return source if (source.dtype, inputs[0].dtype) in _LOSSLESS_CASTS else None


def _cast_constant(builder: BuilderProtocol, value: ir.Value, dtype: ir.DataType) -> ir.Value | None:
    """Store a small constant in the type that it is used in."""
    given = value.dtype
    if dtype not in _FLOATS or given is None or not (given.is_floating_point() or given == ir.DataType.INT64):
        return None
    array = array_of(value)
    if array is None:
        return builder.stored_in(value, dtype) if given in _FLOATS else None
    if array.size > _LARGEST_LITERAL:
        return None
    numbers = torch.from_numpy(array.astype(np.int64 if given == ir.DataType.INT64 else np.float64))
    return builder.constant(numbers.to(to_torch_dtype(dtype)))


def _cast_alternatives(builder: BuilderProtocol, value: ir.Value, dtype: ir.DataType) -> ir.Value | None:
    """Cast the numbers that a mask is made of instead of the mask: a Where with two scalar literals."""
    where = _producer_of_type(value, "Where")
    arrays = [] if where is None else [array_of(operand) for operand in where.inputs[1:] if operand is not None]
    if where is None or any(array is None or array.size != 1 for array in arrays) or dtype not in _FLOATS:
        return None
    if dtype in builder.missing_kernels.get("Where", ()):
        return None
    numbers = [
        builder.constant(torch.from_numpy(array.astype(np.float64)).to(to_torch_dtype(dtype)))
        for array in arrays
        if array is not None
    ]
    return builder.value_of("Where", where.inputs[0], *numbers)


_FLOATS = (ir.DataType.BFLOAT16, ir.DataType.FLOAT16, ir.DataType.FLOAT)
_LOSSLESS_CASTS = frozenset(
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
    for position, narrow in enumerate(family)
    for wide in family[position + 1 :]
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
    return transposed_dequantization(builder, value, perm) or _transpose_as_reshape(builder, value, perm)


def _transpose_as_reshape(builder: BuilderProtocol, value: ir.Value, perm: Sequence[int]) -> ir.Value | None:
    """A Transpose that only moves axes of size 1, as a Reshape: it copies nothing and merges with adjacent Reshapes."""
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
    producer = _producer_of_type(value, "Reshape")
    source = None if producer is None else producer.inputs[0]
    if source is not None and _copies_same_sizes(builder.dims(source), dims, target):
        return builder.value_of("Reshape", source, inputs[1], **attributes)
    return _split_before_transpose(builder, value, target)


def _copies_same_sizes(source: Sequence[Dim], dims: Sequence[Dim], target: Sequence[int]) -> bool:
    """Whether the sizes 0 of a Reshape, which copy its input's, are the same for the input's own input."""
    copied = [axis for axis, size in enumerate(target) if size == 0]
    return all(axis < min(len(source), len(dims)) and source[axis] == dims[axis] for axis in copied)


def _split_before_transpose(builder: BuilderProtocol, value: ir.Value, target: list[int]) -> ir.Value | None:
    """Reshape, Transpose and a Reshape that splits one axis: let the first Reshape split it."""
    transpose = _producer_of_type(value, "Transpose")
    first = None if transpose is None else _producer_of_type(transpose.inputs[0], "Reshape")
    if transpose is None or first is None or first.inputs[0] is None:
        return None
    shaped = first.outputs[0]
    dims, before = builder.dims(value), builder.dims(shaped)
    split = _split_axis(dims, target) if is_static(dims) and is_static(before) else None
    if split is None or 0 in dims:
        return None
    axis, count = split
    perm, parts = list(transpose.attributes["perm"].as_ints()), target[axis : axis + count]
    position = perm[axis]
    inner = [*before[:position], *parts, *before[position + 1 :]]
    moved = [[p + (count - 1 if p > position else 0)] if p != position else list(range(p, p + count)) for p in perm]
    reshaped = builder.value_of("Reshape", first.inputs[0], [int(size) for size in inner])
    return builder.value_of("Transpose", reshaped, perm=[axis for group in moved for axis in group])


def _split_axis(dims: Sequence[Any], target: list[int]) -> tuple[int, int] | None:
    """Return the axis that a Reshape splits and the number of its parts, or None if it does anything else."""
    count = len(target) - len(dims) + 1
    if count < 2 or any(size < 1 for size in target):
        return None
    axis = next((at for at, (size, dim) in enumerate(zip(target, dims, strict=False)) if size != dim), len(dims) - 1)
    rest = [*target[:axis], *target[axis + count :]]
    same = rest == [*dims[:axis], *dims[axis + 1 :]] and math.prod(target[axis : axis + count]) == dims[axis]
    return (axis, count) if same else None


def _producer_of_type(value: ir.Value | None, op_type: str) -> ir.Node | None:
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
            return _merge_unsqueeze(builder, inputs[0], axes) if insert else _cancel_unsqueeze(builder, inputs[0], axes)
        changed = np.expand_dims(array, tuple(axes)) if insert else np.squeeze(array, tuple(axes))
        return builder.constant(ir.Tensor(changed))

    return rule


def _inserted_axes(node: ir.Node, rank: int) -> list[int] | None:
    """Return the axes that an Unsqueeze with a result of this rank inserts."""
    given = node.attributes.get("axes")
    axes = list(given.as_ints()) if given is not None else ints_of(node.inputs[1])
    return None if axes is None else sorted(axis % rank for axis in axes)


def _merge_unsqueeze(builder: BuilderProtocol, value: ir.Value, axes: list[int]) -> ir.Value | None:
    """Merge consecutive Unsqueezes; move an Expand after the Unsqueeze, where it may not be needed."""
    dims = builder.dims(value)
    later = {axis % (len(dims) + len(axes)) for axis in axes}
    kept = [position for position in range(len(dims) + len(axes)) if position not in later]
    expand, first = _producer_of_type(value, "Expand"), _producer_of_type(value, "Unsqueeze")
    if expand is not None and expand.inputs[0] is not None and len(builder.dims(expand.inputs[0])) == len(dims):
        result: list[Dim] = [1] * (len(dims) + len(axes))
        for position, dim in zip(kept, dims, strict=True):
            result[position] = dim
        return _expand_if_defined(builder, builder.value_of("Unsqueeze", expand.inputs[0], sorted(later)), result)
    earlier = None if first is None else _inserted_axes(first, len(dims))
    if first is None or earlier is None or first.inputs[0] is None:
        return None
    return builder.value_of("Unsqueeze", first.inputs[0], sorted(later.union(kept[axis] for axis in earlier)))


def _cancel_unsqueeze(builder: BuilderProtocol, value: ir.Value, axes: list[int]) -> ir.Value | None:
    """Cancel a Squeeze with the Unsqueeze that inserted the axes, possibly before a Transpose."""
    rank = len(builder.dims(value))
    dropped = {axis % rank for axis in axes}
    unsqueeze = _producer_of_type(value, "Unsqueeze")
    inserted = None if unsqueeze is None else _inserted_axes(unsqueeze, rank)
    if unsqueeze is not None and inserted is not None and unsqueeze.inputs[0] is not None and dropped <= set(inserted):
        rest = [axis - sum(each < axis for each in dropped) for axis in inserted if axis not in dropped]
        return builder.value_of("Unsqueeze", unsqueeze.inputs[0], rest) if rest else unsqueeze.inputs[0]
    transpose = _producer_of_type(value, "Transpose")
    unsqueeze = None if transpose is None else _producer_of_type(transpose.inputs[0], "Unsqueeze")
    inserted = None if unsqueeze is None else _inserted_axes(unsqueeze, rank)
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
        return _filled(builder, known[0], value.dtype or ir.DataType.INT64, result)
    if len(chosen) == 1 and chosen[0] == dims[axis] and _is_arange(builder, indices):
        return value
    limits = _producer_of_type(indices, "Range")
    if limits is not None and not all(one is not None and is_nonnegative(builder, one) for one in limits.inputs[:2]):
        # ONNX Runtime makes a Slice of the two, in which a negative start or limit counts from the end.
        return builder.value_of("Gather", value, builder.value_of("Cast", indices, to=ir.DataType.INT32), axis=axis)
    expand = _producer_of_type(value, "Expand")
    source = None if expand is None else expand.inputs[0]
    if source is None or len(chosen) != 1 or len(builder.dims(source)) != len(dims):
        return None
    if builder.dims(source)[axis] == 1 and dims[axis] != 1:
        return _expand_if_defined(builder, source, result)
    return _expand_if_defined(builder, builder.value_of("Gather", source, indices, axis=axis), result)


def _matmul(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
    """A product of a computed matrix and a vector, as one of two matrices.

    ONNX Runtime fuses a Transpose into MatMul, also one that it has moved, and then computes other products of vectors.
    """
    matrix, vector = inputs
    dims = builder.dims(matrix)
    if len(builder.dims(vector)) != 1 or len(dims) < 2 or matrix.producer() is None:
        return None
    transpose = _producer_of_type(matrix, "Transpose")
    source = None if transpose is None else transpose.inputs[0]
    last = len(dims) - 1
    if transpose is not None and source is not None:
        perm = list(transpose.attributes["perm"].as_ints())
        if perm == [*range(last - 1), last, last - 1]:
            return builder.value_of("MatMul", vector, source)
    column = builder.value_of("Unsqueeze", vector, builder.constant(torch.tensor([1])))
    return builder.value_of(
        "Squeeze", builder.value_of("MatMul", matrix, column), builder.constant(torch.tensor([last]))
    )


def _is_arange(builder: BuilderProtocol, indices: ir.Value) -> bool:
    array = array_of(indices)
    if array is not None:
        return np.array_equal(array, np.arange(len(array)))
    known = value_range(builder, indices)
    return known is not None and known[0] == 0 and is_consecutive(builder, indices)


def _identity(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
    return inputs[0]


def _neutral(number: float, floats: bool, commutative: bool) -> Peephole:
    """Identity elimination: ``x op number`` is x if the number, a one-element constant, does not broadcast x."""

    def rule(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
        pairs = [(inputs[0], inputs[1])] + ([(inputs[1], inputs[0])] if commutative else [])
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


def _without_expanded_operands(op_type: str, rule: Peephole | None = None) -> Peephole:
    """Use the operands of an elementwise operator as they were before an Expand; expand the result if necessary."""

    def unexpanded(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
        simpler = None if rule is None else rule(builder, inputs, attributes)
        if simpler is not None:
            return simpler
        expands = [_producer_of_type(value, "Expand") for value in inputs]
        if not any(expands):
            return None
        narrow = [
            value if expand is None or expand.inputs[0] is None else expand.inputs[0]
            for value, expand in zip(inputs, expands, strict=True)
        ]
        dims = _broadcast_dims(builder, inputs)
        return (
            None
            if dims is None
            else _expand_if_defined(builder, builder.value_of(op_type, *narrow, **attributes), dims)
        )

    return unexpanded


def _broadcast_dims(builder: BuilderProtocol, inputs: Sequence[ir.Value]) -> tuple[Dim, ...] | None:
    """The shape of an elementwise result; None if two sizes are different expressions, of which one may be 1.

    No guard requires that they are equal where a translation broadcasts, as in ``masked_select``.
    """
    shapes = [builder.dims(value) for value in inputs]
    dims = broadcast(builder, shapes)
    for shape in shapes:
        for known, dim in zip(dims[len(dims) - len(shape) :], shape, strict=True):
            is_open = known != dim and not isinstance(dim, int) and not isinstance(known, int)
            if is_open and not builder.symbols.is_one(dim):
                return None
    return dims


def _expand_if_defined(builder: BuilderProtocol, value: ir.Value, dims: Sequence[Dim] | None) -> ir.Value | None:
    """Return the value expanded to a shape, or None if a symbol in it was invented by ONNX shape inference."""
    if dims is None:
        return None
    symbols = {symbol for dim in dims if not isinstance(dim, int) for symbol in dim.free_symbols}
    return builder.expand(value, dims) if all(map(builder.symbols.is_defined, symbols)) else None


def _filled(builder: BuilderProtocol, value: Any, dtype: ir.DataType, dims: Sequence[Dim] | None) -> ir.Value | None:
    return _expand_if_defined(builder, builder.constant(value, dtype), dims)


def _constant_comparison(op_type: str) -> Peephole:
    """A comparison whose result is the same for all elements, by their value ranges."""

    def rule(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
        answer = decide_comparison(builder, op_type, *inputs)
        return None if answer is None else _filled(builder, answer, ir.DataType.BOOL, _broadcast_dims(builder, inputs))

    return rule


def _constant_operand(neutral: int) -> Peephole:
    """And, Or with an operand that is True everywhere or False everywhere."""

    def rule(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
        for value, other in (inputs, inputs[::-1]):
            known = value_range(builder, value)
            if known == (neutral, neutral):
                return _expand_if_defined(builder, other, _broadcast_dims(builder, inputs))
            if known == (1 - neutral, 1 - neutral):
                return _filled(builder, bool(1 - neutral), ir.DataType.BOOL, _broadcast_dims(builder, inputs))
        return None

    return rule


def _not(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
    known = value_range(builder, inputs[0])
    if known not in ((0, 0), (1, 1)):
        return None
    return _filled(builder, known == (0, 0), ir.DataType.BOOL, builder.dims(inputs[0]))


def _cumsum(builder: BuilderProtocol, inputs: list[ir.Value], attributes: dict[str, Any]) -> ir.Value | None:
    return inputs[0] if value_range(builder, inputs[0]) == (0, 0) else None


_BROADCASTING = ("Xor", "Where", "Pow", "Mod", "Min", "Max", "BitwiseAnd", "BitwiseOr", "BitwiseXor")

PEEPHOLES: Mapping[str, Peephole] = {
    **{op_type: _without_expanded_operands(op_type) for op_type in _BROADCASTING},
    **{op_type: _without_expanded_operands(op_type, _constant_comparison(op_type)) for op_type in COMPARISONS},
    "And": _without_expanded_operands("And", _constant_operand(neutral=1)),
    "Or": _without_expanded_operands("Or", _constant_operand(neutral=0)),
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
    "MatMul": _matmul,
    "Identity": _identity,
    # x + 0.0 turns -0.0 into 0.0, so it stays for floats; x - 0.0 does not.
    "Add": _without_expanded_operands("Add", _neutral(0, floats=False, commutative=True)),
    "Sub": _without_expanded_operands("Sub", _neutral(0, floats=False, commutative=False)),
    "Mul": _without_expanded_operands("Mul", _neutral(1, floats=True, commutative=True)),
    "Div": _without_expanded_operands("Div", _neutral(1, floats=True, commutative=False)),
}
