"""Low-precision weights: DequantizeLinear of stored codes, scales and zero points, in the form that runtimes fuse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir
import torch

from .._builder.dtypes import BFLOAT16, FLOAT, FLOAT8, HALF_FLOATS, INT32, to_torch_dtype
from .._builder.initializers import BITS, DerivedTensor, TorchTensor, has_content, sources_of, values_of
from .._builder.op import Op, Unsupported
from .._builder.stored_codes import derive_stored, is_stored
from .._registry import translates
from .affine import RANGES

__all__ = ["dequantize_stored", "is_code", "quantize_stored", "storable_dtype"]

_INT4, _UINT4, _INT8, _UINT8 = ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.UINT8
_SINCE = {
    _INT8: 10,
    _UINT8: 10,
    **dict.fromkeys((ir.DataType.INT16, ir.DataType.UINT16, _INT4, _UINT4), 21),
    **dict.fromkeys(FLOAT8, 19),
    ir.DataType.FLOAT4E2M1: 23,
}
"""Element types of DequantizeLinear with the opsets that introduced them."""
_LIMITS = {
    _INT4: (-(2**3), 2**3 - 1),
    _UINT4: (0, 2**4 - 1),
    **{dtype: RANGES[dtype] for dtype in (_INT8, _UINT8, ir.DataType.INT16, ir.DataType.UINT16)},
}
_PER_AXIS_OPSET, _HALF_SCALES_OPSET, _BLOCKS_OPSET = 13, 19, 21
_LEAST_BLOCK, _LARGEST_BLOCK = 16, 256
"""ONNX Runtime multiplies by blocks of a power of two of these sizes without dequantizing them first."""


def is_code(op: Op, value: ir.Value) -> bool:
    """Whether a value consists of stored integers of at most 8 bits or float8 numbers."""
    return is_stored(value) and (op.dtype_of(value) in FLOAT8 or op.dtype_of(value) in (_INT8, _UINT8, *BITS))


def storable_dtype(op: Op, low: int, high: int) -> ir.DataType | None:
    """Return the narrowest element type for integer codes of a range that the target opset can dequantize."""
    for dtype, (least, most) in _LIMITS.items():
        if op.opset >= _SINCE[dtype] and least <= low and high <= most:
            return dtype
    return None


@dataclass(frozen=True)
class _Layout:
    """How scales are laid out over codes.

    Attributes:
        axis: The axis of the channels or of the blocks; None for one scale.
        block_size: Elements of a block along the axis; 0 for one scale per channel.
        shape: Shape of the scales: one number, a vector, or the shape of the codes with one scale per block.
        repeats: How often each scale is repeated along each axis, if it is not one for the whole axis.
    """

    axis: int | None
    block_size: int
    shape: tuple[int, ...]
    repeats: tuple[int, ...] = ()


def dequantize_stored(
    op: Op,
    codes: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value | None = None,
    *,
    axis: int | None = None,
    block_size: int | None = None,
    dtype: ir.DataType | None = None,
    result: ir.DataType = FLOAT,
    table: ir.Value | None = None,
) -> ir.Value | None:
    """Return ``(codes - zero_point) * scale`` of stored values, by DequantizeLinear where it can express it.

    A Transpose of the DequantizeLinear is applied to the initializers. Otherwise, as for blocks below opset 21 and zero
    points that are not integers, it is Cast, Sub and Mul of the codes, in 8 bits where the opset has no 4 bits. The scales
    of a half-precision result are stored in FLOAT where the target has no product in half precision.

    Args:
        op: The op object.
        codes: Stored integers or float8 numbers, one per element.
        scale: Stored floating-point numbers: of rank 0; of rank 1 along ``axis``; or of the rank of the codes, where each
            axis has the size 1, the codes', or the number of its blocks.
        zero_point: None, or stored numbers in a shape as ``scale`` may have.
        axis: The axis of scales of rank 1.
        block_size: Elements of a block, if the last one may be shorter.
        dtype: Element type in which to store the codes and the zero points; it must hold all of them. By default that of
            ``codes``.
        result: Element type of the result.
        table: The numbers that the codes are the indices of, if they are not the integers themselves.

    Returns:
        The value, or None if an operand is not stored, or the shapes do not fit.
    """
    if not all(map(is_stored, (codes, scale))) or not (zero_point is None or is_stored(zero_point)):
        return None
    sizes = _sizes(op, codes)
    parameters = [scale] if zero_point is None or op.is_zero(zero_point) else [scale, zero_point]
    shapes = [_in_all_axes(_sizes(op, parameter), len(sizes), axis) for parameter in parameters]
    layout = _layout(sizes, shapes, block_size)
    if layout is None:
        return None
    dtype = dtype or op.dtype_of(codes)
    if op.opset < _SINCE.get(dtype, 0):
        dtype = {_INT4: _INT8, _UINT4: _UINT8}.get(dtype, dtype)
    if table is not None or not _is_expressible(op, dtype, layout, parameters, result):
        return _written_out(op, _codes(op, codes, dtype), parameters, layout, shapes, result, table)
    kind = _computed_in(op, result)
    inputs = [_codes(op, codes, dtype)]
    for parameter, shape, suffix, to in zip(parameters, shapes, ("scale", "zero_point"), (kind, dtype), strict=False):
        inputs.append(_parameter(op, parameter, suffix, layout, shape, to))
    value = op.DequantizeLinear(*inputs, axis=layout.axis, block_size=layout.block_size or None)
    if value.type is None:
        # From opset 23 on the schema no longer derives the output type from the scale.
        value.type = ir.TensorType(kind)
    return value if kind == result else op.rounded(value, result)


def quantize_stored(
    op: Op,
    weight: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value,
    limits: tuple[int, int],
    axis: int | None = None,
) -> ir.Value | None:
    """Return the fake quantization of a stored weight as the DequantizeLinear of its codes.

    Args:
        op: The op object.
        weight: The weight.
        scale: 0-dim, or one per channel.
        zero_point: As ``scale``, integers.
        limits: Smallest and largest code.
        axis: The axis of the channels, nonnegative, or None.

    Returns:
        The value, or None if an operand is not stored, or the codes do not fit 8 bits.
    """
    dtype, result = storable_dtype(op, *limits), op.dtype_of(weight)
    if dtype is None or not all(map(is_stored, (weight, scale, zero_point))) or not _fits(op, zero_point, dtype):
        return None
    if result not in (FLOAT, *HALF_FLOATS):
        return None

    def quantized(x: torch.Tensor, step: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        shape = [-1 if position == axis else 1 for position in range(x.dim())]
        reciprocal = (1 / step.float()).reshape(() if axis is None else shape)
        codes = torch.round(x.float() * reciprocal) + shift.float().reshape(() if axis is None else shape)
        return codes.clamp(*limits).to(_unpacked(dtype))

    key = (limits, axis, dtype)
    codes = derive_stored(op.builder, [weight, scale, zero_point], dtype.name.lower(), quantized, _packed(dtype), key)
    return dequantize_stored(op, codes, scale, zero_point, axis=axis, result=result)


def _written_out(
    op: Op,
    codes: ir.Value,
    parameters: Sequence[ir.Value],
    layout: _Layout,
    shapes: Sequence[Sequence[int]],
    result: ir.DataType,
    table: ir.Value | None = None,
) -> ir.Value | None:
    """Return ``(codes - zero_point) * scale`` with one axis for the blocks and one for their elements."""
    sizes, axis, size = _sizes(op, codes), layout.axis, layout.block_size
    kind = FLOAT if result in HALF_FLOATS else result
    if axis is not None and size and sizes[axis] % size:
        return None
    if axis is not None and size:
        blocks = (*sizes[:axis], sizes[axis] // size, size, *sizes[axis + 1 :])
        codes = derive_stored(op.builder, [codes], "blocks", partial(torch.reshape, shape=blocks), _packed(codes.dtype))
    stored = []
    for parameter, shape, suffix in zip(parameters, shapes, ("scale", "zero_point"), strict=False):
        # In the narrow type, which runtimes convert once.
        to = op.dtype_of(parameter) if op.dtype_of(parameter) in HALF_FLOATS else kind
        if suffix == "zero_point" and codes.dtype is not None and _fits(op, parameter, codes.dtype):
            to = codes.dtype
        value = op.cast(_parameter(op, parameter, suffix, layout, shape, to), kind)
        if axis is not None:
            value = op.Unsqueeze(value, [axis + 1] if size else list(range(1, len(sizes) - axis)))
        stored.append(value)
    value = op.cast(codes, kind) if table is None else op.Gather(op.cast(table, kind), op.cast(codes, INT32), axis=0)
    for zero_point in stored[1:]:
        value = op.Sub(value, zero_point)
    value = op.Mul(value, stored[0])
    if size:
        value = op.Reshape(value, list(sizes))
    return value if kind == result else op.rounded(value, result)


def _sizes(op: Op, value: ir.Value) -> tuple[int, ...]:
    return tuple(int(dim) for dim in op.dims(value))


def _is_expressible(
    op: Op, dtype: ir.DataType, layout: _Layout, parameters: Sequence[ir.Value], result: ir.DataType
) -> bool:
    """Whether DequantizeLinear of the target opset has these element types and this layout."""
    since = _SINCE.get(dtype)
    if since is None or result not in (FLOAT, *HALF_FLOATS):
        return False
    if any(not _fits(op, zero_point, dtype) for zero_point in parameters[1:]):
        return False
    needed = _BLOCKS_OPSET if layout.block_size else _PER_AXIS_OPSET if layout.axis is not None else since
    return op.opset >= max(since, needed)


def _computed_in(op: Op, result: ir.DataType) -> ir.DataType:
    """Return the element type of the DequantizeLinear: without a kernel for the product, a fusion needs FLOAT."""
    if result == BFLOAT16 or op.opset < _HALF_SCALES_OPSET or not op.has_kernel("MatMul", result):
        return FLOAT
    return result


# ---- layouts of scales


def _in_all_axes(shape: tuple[int, ...], rank: int, axis: int | None) -> tuple[int, ...]:
    """Return the shape of scales with the rank of the codes, if it is not one number."""
    if math.prod(shape) == 1:
        return (1,) * rank
    if len(shape) == 1 and axis is not None:
        return tuple(shape[0] if at == axis % rank else 1 for at in range(rank))
    return shape


def _layout(codes: Sequence[int], shapes: Sequence[Sequence[int]], block_size: int | None) -> _Layout | None:
    """Return the layout of scales and zero points of these shapes over codes of a shape; None if they do not fit."""
    rank = len(codes)
    if any(len(shape) != rank for shape in shapes) or 0 in codes:
        return None
    counts = [max(sizes) for sizes in zip(*shapes, strict=True)]
    if any(size not in (1, count) for shape in shapes for size, count in zip(shape, counts, strict=True)):
        return None
    if math.prod(counts) == 1:
        return _Layout(None, 0, ())
    blocks = [_block(size, count, block_size) for size, count in zip(codes, counts, strict=True)]
    if 0 in blocks:
        return None
    full = [at for at in range(rank) if counts[at] == codes[at] > 1]
    if len(full) == 1 and math.prod(counts) == codes[full[0]]:
        return _Layout(full[0], 0, (codes[full[0]],))
    blocked = [at for at in range(rank) if counts[at] != codes[at]]
    if not blocked:
        return None
    # The scales of the other axes are repeated: rather one number for the whole axis.
    axis = max(blocked, key=lambda at: (counts[at] > 1, at))
    size = _fused_size(blocks[axis], codes[axis])
    shape = tuple(-(-codes[at] // size) if at == axis else codes[at] for at in range(rank))
    repeats = tuple(blocks[at] // size if at == axis else blocks[at] for at in range(rank))
    return _Layout(axis, size, shape, repeats)


def _block(size: int, count: int, block_size: int | None) -> int:
    """Return the number of elements of a block of one axis; 0 if the scales do not fit the axis."""
    if count and size % count == 0:
        return size // count
    return block_size if block_size and -(-size // block_size) == count else 0


def _fused_size(block: int, size: int) -> int:
    """Return the largest block that ONNX Runtime fuses, if blocks of it make up the given one, or the given one."""
    power = min(block & -block, _LARGEST_BLOCK)
    return power if power >= _LEAST_BLOCK and (block < size or power < block) else block


# ---- initializers


def _codes(op: Op, codes: ir.Value, dtype: ir.DataType) -> ir.Value:
    if op.dtype_of(codes) == dtype:
        return codes
    to = partial(_narrowed, dtype=dtype)
    return derive_stored(op.builder, [codes], dtype.name.lower(), to, _packed(dtype))


def _fits(op: Op, zero_point: ir.Value, dtype: ir.DataType) -> bool:
    """Whether zero points are integers of an element type; those without values are checked while saving."""
    if dtype not in _LIMITS or op.is_float(zero_point):
        return False
    content = zero_point.const_value
    numbers = op.numbers(zero_point)
    if numbers is None and isinstance(content, TorchTensor | DerivedTensor):
        known = all(has_content(source.raw) for source in sources_of(content))
        numbers = values_of(content).flatten().tolist() if known else None
    low, high = _LIMITS[dtype]
    return numbers is None or all(low <= number <= high for number in numbers)


def _narrowed(tensor: torch.Tensor, dtype: ir.DataType) -> torch.Tensor:
    """Convert codes or zero points to an element type that must hold them."""
    if dtype in _LIMITS and tensor.numel() and not tensor.is_meta:
        low, high = _LIMITS[dtype]
        least, most = (end.item() for end in tensor.aminmax())
        # NaN does not fit either.
        if not (low <= least and most <= high):
            raise ValueError(f"codes from {least} to {most} do not fit {dtype.name}, {low} to {high}")
    return tensor.to(_unpacked(dtype))


def _packed(dtype: ir.DataType | None) -> ir.DataType | None:
    """Return the element type if torch has no dtype for it."""
    return dtype if dtype in BITS else None


def _unpacked(dtype: ir.DataType) -> torch.dtype:
    """Return the dtype of codes, one per element."""
    if dtype in BITS:
        return torch.int8 if dtype == _INT4 else torch.uint8
    return to_torch_dtype(dtype)


def _parameter(
    op: Op, value: ir.Value, suffix: str, layout: _Layout, shape: Sequence[int], dtype: ir.DataType
) -> ir.Value:
    """Return scales or zero points in the layout and element type of DequantizeLinear's input."""
    if op.dtype_of(value) == dtype and _sizes(op, value) == layout.shape:
        return value

    def laid_out(tensor: torch.Tensor) -> torch.Tensor:
        tensor = _narrowed(tensor, dtype)
        if tensor.numel() == 1:
            return tensor.reshape(()).expand(layout.shape)
        if not layout.block_size:
            return tensor.reshape(layout.shape)
        tensor = tensor.reshape(tuple(shape))
        for axis, (count, wanted, repeats) in enumerate(zip(shape, layout.shape, layout.repeats, strict=True)):
            if 1 < count < wanted:
                tensor = tensor.repeat_interleave(repeats, dim=axis).narrow(axis, 0, wanted)
        return tensor.expand(layout.shape)

    return derive_stored(op.builder, [value], suffix, laid_out, _packed(dtype), (dtype, layout, tuple(shape)))


# ---- recognized weights


@translates("fxonnx::dequantize")
def dequantize(
    op: Op,
    codes: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value | None,
    table: ir.Value | None,
    low: int,
    high: int,
    block: Sequence[int],
) -> ir.Value:
    """fxonnx::dequantize(Tensor codes, Tensor scale, Tensor? zero_point, Tensor? table, int low, int high, int[] block) -> Tensor"""
    dtype = storable_dtype(op, low, high)
    value = dequantize_stored(op, codes, scale, zero_point, table=table, dtype=dtype, result=op.result.dtype)
    if value is None:
        raise Unsupported("scales that do not fit the codes")
    return value
