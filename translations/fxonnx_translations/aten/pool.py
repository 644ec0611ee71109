"""Pooling."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch

from ..op import Op, Unsupported
from ..registry import Call, translates
from ..symbols import Dim
from .conv import spatial

aten = torch.ops.aten


def _batched(op: Op, value: ir.Value, count: int) -> tuple[ir.Value, bool]:
    """torch takes one sample without a batch axis, too."""
    batched = op.rank_of(value) == count + 2
    return (value if batched else op.Unsqueeze(value, [0])), batched


def _overhang(size: Dim, kernel: int, stride: int, pad: int, dilation: int) -> bool:
    """Whether ceil_mode makes a last window that starts beyond the input and its left padding.

    torch drops such a window; ONNX before opset 22 and ONNX Runtime keep it.
    """
    if not isinstance(size, int):
        return True
    span = size + 2 * pad - dilation * (kernel - 1) - 1
    windows = -(-span // stride) + 1
    return (windows - 1) * stride >= size + pad


def _max_pool(
    op: Op,
    self: ir.Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    count: int,
) -> ir.Value:
    value, batched = _batched(op, self, count)
    kernel = spatial(kernel_size, count)
    strides = spatial(stride, count) if stride else kernel
    pads, dilations = spatial(padding, count), spatial(dilation, count)
    if ceil_mode:
        facts = zip(op.dims(value)[2:], kernel, strides, pads, dilations, strict=True)
        if any(_overhang(*fact) for fact in facts) and not _fits_exactly(op, value, kernel, strides, pads, dilations):
            raise Unsupported("ceil_mode leaves a window that ONNX and torch treat differently")
    result = op.MaxPool(
        value,
        kernel_shape=kernel,
        strides=strides,
        pads=pads * 2,
        dilations=dilations,
        ceil_mode=int(ceil_mode),
    )
    return result if batched else op.Squeeze(result, [0])


def _fits_exactly(
    op: Op, value: ir.Value, kernel: list[int], strides: list[int], pads: list[int], dilations: list[int]
) -> bool:
    """Windows with stride <= kernel and no padding never start beyond the input, whatever its size."""
    return all(pad == 0 and stride <= size for pad, stride, size in zip(pads, strides, kernel, strict=True))


@translates(aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default)
def max_pool(
    op: Op,
    self: ir.Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> ir.Value:
    """aten::max_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=[0], int[1] dilation=[1], bool ceil_mode=False) -> Tensor
    aten::max_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> Tensor
    aten::max_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, int[3] dilation=1, bool ceil_mode=False) -> Tensor
    """
    return _max_pool(op, self, kernel_size, stride, padding, dilation, ceil_mode, len(kernel_size))


def _divides(call: Call) -> str | None:
    """Adaptive pooling has one window size only if the output size divides the input size."""
    value, sizes = call.arguments["self"], call.arguments["output_size"]
    sizes = [sizes] if isinstance(sizes, int) else sizes
    for size, wanted in zip(value.shape[-len(sizes) :], sizes, strict=True):
        if wanted == 1:
            continue
        if not isinstance(size, int) or not isinstance(wanted, int):
            return f"adaptive pooling to {wanted} of an axis of symbolic size {size}"
        if size % wanted:
            return f"adaptive pooling to {wanted} of an axis of size {size}, which it does not divide"
    return None


@translates(
    aten.adaptive_avg_pool1d.default,
    aten.adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool3d.default,
    accepts=_divides,
)
def adaptive_avg_pool(op: Op, self: ir.Value, output_size: Sequence[Dim]) -> ir.Value:
    """aten::adaptive_avg_pool1d(Tensor self, int[1] output_size) -> Tensor
    aten::adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor
    aten::adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor
    """
    count = len(output_size)
    value, batched = _batched(op, self, count)
    if all(size == 1 for size in output_size):
        result = op.GlobalAveragePool(value)
    else:
        kernel = [
            size // wanted if isinstance(size, int) and isinstance(wanted, int) else 0
            for size, wanted in zip(op.dims(value)[2:], output_size, strict=True)
        ]
        if 0 in kernel:
            raise Unsupported("adaptive pooling of one axis to 1 beside an axis of symbolic size")
        result = op.AveragePool(value, kernel_shape=kernel, strides=kernel)
    return result if batched else op.Squeeze(result, [0])
