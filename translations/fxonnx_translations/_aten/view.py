"""Views and pixel rearrangement: operators that move or regroup elements without changing them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch

from .._builder.bit_casts import bit_cast
from .._builder.op import Op, Unsupported
from .._builder.symbolic_dims import Dim
from .._registry import translates

# ---- views


@translates("aten::view", "aten::_unsafe_view")
def view(op: Op, self: ir.Value, size: Sequence[Dim]) -> ir.Value:
    """aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)
    aten::_unsafe_view(Tensor self, SymInt[] size) -> Tensor
    """
    return op.reshape(self, op.result.shape)


@translates("aten::reshape")
def reshape(op: Op, self: ir.Value, shape: Sequence[Dim]) -> ir.Value:
    """aten::reshape(Tensor(a) self, SymInt[] shape) -> Tensor(a)"""
    return op.reshape(self, op.result.shape)


@translates("aten::view.dtype")
def view_dtype(op: Op, self: ir.Value, dtype: torch.dtype) -> ir.Value:
    """aten::view.dtype(Tensor(a) self, ScalarType dtype) -> Tensor(a)"""
    return bit_cast(op, self, op.result.dtype)


@translates("aten::flatten.using_ints")
def flatten(op: Op, self: ir.Value, start_dim: int = 0, end_dim: int = -1) -> ir.Value:
    """aten::flatten.using_ints(Tensor(a) self, int start_dim=0, int end_dim=-1) -> Tensor(a)"""
    return op.reshape(self, op.result.shape)


@translates("aten::unflatten.int")
def unflatten(op: Op, self: ir.Value, dim: int, sizes: Sequence[Dim]) -> ir.Value:
    """aten::unflatten.int(Tensor(a) self, int dim, SymInt[] sizes) -> Tensor(a)"""
    return op.reshape(self, op.result.shape)


@translates("aten::reshape_as", "aten::view_as")
def reshape_as(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::reshape_as(Tensor(a) self, Tensor other) -> Tensor(a)
    aten::view_as(Tensor(a) self, Tensor other) -> Tensor(a)
    """
    return op.reshape(self, op.result.shape)


@translates("aten::squeeze", "aten::squeeze.dim", "aten::squeeze.dims")
def squeeze(op: Op, self: ir.Value, dim: int | Sequence[int] | None = None) -> ir.Value:
    """aten::squeeze(Tensor(a) self) -> Tensor(a)
    aten::squeeze.dim(Tensor(a) self, int dim) -> Tensor(a)
    aten::squeeze.dims(Tensor(a) self, int[] dim) -> Tensor(a)
    """
    dims = op.dims(self)
    asked = range(len(dims)) if dim is None else [dim] if isinstance(dim, int) else dim
    axes = sorted({op.axis(axis, len(dims)) for axis in asked})
    # torch keeps axes of any other size.
    return op.Squeeze(self, [axis for axis in axes if dims and dims[axis] == 1])


@translates("fxonnx::squeeze_result")
def squeeze_result(op: Op, x: ir.Value, axes: Sequence[int]) -> ir.Value:
    """fxonnx::squeeze_result(Tensor x, int[] axes) -> Tensor

    The tensor is reshaped to the sizes that remain. onnx's checker requires a shape of each output: the one for other sizes.
    """
    sizes = op.Shape(x)
    is_asked = [axis in axes for axis in range(op.rank_of(x))]
    removed = op.And(op.Equal(sizes, 1), op.const(is_asked, ir.DataType.BOOL))
    remaining = op.Compress(sizes, op.Not(removed), axis=0)
    return op.unranked(op.Reshape(x, remaining, allowzero=1 if op.opset >= 14 else None))


@translates("aten::unsqueeze")
def unsqueeze(op: Op, self: ir.Value, dim: int) -> ir.Value:
    """aten::unsqueeze(Tensor(a) self, int dim) -> Tensor(a)"""
    return op.Unsqueeze(self, [dim % (op.rank_of(self) + 1)])


@translates("aten::permute")
def permute(op: Op, self: ir.Value, dims: Sequence[int]) -> ir.Value:
    """aten::permute(Tensor(a) self, int[] dims) -> Tensor(a)"""
    rank = op.rank_of(self)
    return op.Transpose(self, perm=[dim % rank for dim in dims]) if rank else self


def swapped(op: Op, value: ir.Value, first: int, second: int) -> ir.Value:
    """Swap two axes."""
    rank = op.rank_of(value)
    if rank == 0:
        return value
    perm = list(range(rank))
    perm[first % rank], perm[second % rank] = perm[second % rank], perm[first % rank]
    return op.Transpose(value, perm=perm)


@translates("aten::transpose.int")
def transpose(op: Op, self: ir.Value, dim0: int, dim1: int) -> ir.Value:
    """aten::transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)"""
    return swapped(op, self, dim0, dim1)


@translates("aten::t")
def t(op: Op, self: ir.Value) -> ir.Value:
    """aten::t(Tensor(a) self) -> Tensor(a)"""
    return op.Transpose(self, perm=[1, 0]) if op.rank_of(self) == 2 else self


@translates("aten::numpy_T")
def numpy_t(op: Op, self: ir.Value) -> ir.Value:
    """aten::numpy_T(Tensor(a) self) -> Tensor(a)"""
    return op.Transpose(self, perm=list(reversed(range(op.rank_of(self)))))


@translates("aten::expand")
def expand(op: Op, self: ir.Value, size: Sequence[Dim], implicit: bool = False) -> ir.Value:
    """aten::expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)"""
    return op.expand(self, op.result.shape)


@translates("aten::expand_as")
def expand_as(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::expand_as(Tensor(a) self, Tensor other) -> Tensor(a)"""
    return op.expand(self, op.result.shape)


@translates("aten::broadcast_to")
def broadcast_to(op: Op, self: ir.Value, size: Sequence[Dim]) -> ir.Value:
    """aten::broadcast_to(Tensor(a) self, SymInt[] size) -> Tensor(a)"""
    return op.expand(self, op.result.shape)


@translates("aten::broadcast_tensors")
def broadcast_tensors(op: Op, tensors: Sequence[ir.Value]) -> list[ir.Value]:
    """aten::broadcast_tensors(Tensor[] tensors) -> Tensor[]"""
    return [op.expand(value, result.shape) for value, result in zip(tensors, op.results, strict=True)]


@translates(
    "aten::alias",
    "aten::detach",
    "aten::lift_fresh_copy",
    "aten::positive",
    "aten::resolve_conj",
    "aten::resolve_neg",
)
def same(op: Op, self: ir.Value) -> ir.Value:
    """aten::alias(Tensor(a) self) -> Tensor(a)
    aten::detach(Tensor(a) self) -> Tensor(a)
    aten::lift_fresh_copy(Tensor self) -> Tensor
    aten::positive(Tensor(a) self) -> Tensor(a)
    aten::resolve_conj(Tensor(a) self) -> Tensor(a)
    aten::resolve_neg(Tensor(a) self) -> Tensor(a)
    """
    return self


@translates("aten::clone", "aten::contiguous")
def clone(op: Op, self: ir.Value, memory_format: torch.memory_format | None = None) -> ir.Value:
    """aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor
    aten::contiguous(Tensor(a) self, *, MemoryFormat memory_format=0) -> Tensor(a)
    """
    return self


@translates("aten::_shape_as_tensor")
def shape_as_tensor(op: Op, self: ir.Value) -> ir.Value:
    """aten::_shape_as_tensor(Tensor self) -> Tensor"""
    return op.sizes(op.dims(self))


# The types with DepthToSpace and SpaceToDepth kernels in ONNX Runtime.
_BLOCK_DTYPES = frozenset(
    {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.INT8, ir.DataType.UINT8}
)


def _channels(op: Op, value: ir.Value, axis: int) -> int:
    size = op.dims(value)[axis]
    if not isinstance(size, int):
        raise Unsupported(f"the channels have the symbolic size {size}")
    return size


# ---- pixel rearrangement


@translates("aten::pixel_shuffle")
def pixel_shuffle(op: Op, self: ir.Value, upscale_factor: int) -> ir.Value:
    """aten::pixel_shuffle(Tensor self, int upscale_factor) -> Tensor"""
    factor, rank = upscale_factor, op.rank_of(self)
    if factor == 1:
        return self
    if rank == 4 and op.dtype_of(self) in _BLOCK_DTYPES:
        return op.DepthToSpace(self, blocksize=factor, mode="CRD")
    *batch, _, height, width = op.dims(self)
    channels = _channels(op, self, rank - 3) // factor**2
    # (..., C, r, r, H, W) -> (..., C, H, r, W, r)
    blocks = op.reshape(self, [*batch, channels, factor, factor, height, width])
    first = len(batch) + 1
    perm = [*range(first), first + 2, first, first + 3, first + 1]
    return op.reshape(op.Transpose(blocks, perm=perm), op.result.shape)


@translates("aten::pixel_unshuffle")
def pixel_unshuffle(op: Op, self: ir.Value, downscale_factor: int) -> ir.Value:
    """aten::pixel_unshuffle(Tensor self, int downscale_factor) -> Tensor"""
    factor, rank = downscale_factor, op.rank_of(self)
    if factor == 1:
        return self
    channels = _channels(op, self, rank - 3)
    if rank == 4 and op.dtype_of(self) in _BLOCK_DTYPES:
        blocks = op.SpaceToDepth(self, blocksize=factor)
        # In ONNX the position in the block comes before the channel, in torch after it.
        order = torch.arange(channels * factor**2).reshape(factor**2, channels).t().reshape(-1)
        return blocks if channels == 1 else op.Gather(blocks, order.tolist(), axis=1)
    *batch, _, height, width = op.result.shape
    # (..., C, H, r, W, r) -> (..., C, r, r, H, W)
    blocks = op.reshape(self, [*batch, channels, height, factor, width, factor])
    first = len(batch) + 1
    perm = [*range(first), first + 1, first + 3, first, first + 2]
    return op.reshape(op.Transpose(blocks, perm=perm), op.result.shape)


@translates("aten::channel_shuffle", "aten::native_channel_shuffle")
def channel_shuffle(op: Op, self: ir.Value, groups: int) -> ir.Value:
    """aten::channel_shuffle(Tensor self, SymInt groups) -> Tensor
    aten::native_channel_shuffle(Tensor self, SymInt groups) -> Tensor
    """
    batch, channels, *positions = op.dims(self)
    if isinstance(channels, int):
        order = torch.arange(channels).reshape(groups, channels // groups).t().reshape(-1).tolist()
        return self if order == sorted(order) else op.Gather(self, order, axis=1)
    # (N, g, C / g, ...) -> (N, C / g, g, ...)
    grouped = op.reshape(self, [batch, groups, channels / groups, *positions])
    perm = [0, 2, 1, *range(3, 3 + len(positions))]
    return op.reshape(op.Transpose(grouped, perm=perm), op.dims(self))
