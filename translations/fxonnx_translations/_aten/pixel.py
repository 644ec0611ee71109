"""Elements moved between channels and pixels."""

from __future__ import annotations

import onnx_ir as ir
import torch

from .._builder.op import Op, Unsupported
from .._registry import translates

# What ONNX Runtime's DepthToSpace and SpaceToDepth have kernels for.
_BLOCK_DTYPES = frozenset(
    {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.INT8, ir.DataType.UINT8}
)


def _channels(op: Op, value: ir.Value, axis: int) -> int:
    size = op.dims(value)[axis]
    if not isinstance(size, int):
        raise Unsupported(f"the channels have the symbolic size {size}")
    return size


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
        # ONNX puts the place in the block before the channel, torch behind it.
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
    batch, channels, *places = op.dims(self)
    if isinstance(channels, int):
        order = torch.arange(channels).reshape(groups, channels // groups).t().reshape(-1).tolist()
        return self if order == sorted(order) else op.Gather(self, order, axis=1)
    # (N, g, C / g, ...) -> (N, C / g, g, ...)
    grouped = op.reshape(self, [batch, groups, channels / groups, *places])
    perm = [0, 2, 1, *range(3, 3 + len(places))]
    return op.reshape(op.Transpose(grouped, perm=perm), op.dims(self))
