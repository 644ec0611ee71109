"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch

from ..op import Op
from ..registry import translates

aten = torch.ops.aten


def spatial(value: int | Sequence[int], count: int) -> list[int]:
    """torch's int or list as one number per spatial axis."""
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


def _operands(op: Op, input: ir.Value, weight: ir.Value, bias: ir.Value | None) -> list[ir.Value]:
    """The operands in a type ONNX Runtime convolves in, which DOUBLE and BFLOAT16 are not, with a batch axis."""
    dtype = op.dtype_of(input)
    carrier = ir.DataType.FLOAT if dtype in (ir.DataType.DOUBLE, ir.DataType.BFLOAT16) else dtype
    # torch takes one sample without a batch axis, too.
    value = input if op.rank_of(input) == op.rank_of(weight) else op.Unsqueeze(input, [0])
    return [op.cast(operand, carrier) for operand in (value, weight, bias) if operand is not None]


def _result(op: Op, value: ir.Value, rank: int) -> ir.Value:
    unbatched = len(op.result.shape) < rank
    return op.cast(op.Squeeze(value, [0]) if unbatched else value, op.result.dtype)


def _conv(
    op: Op,
    input: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    stride: Sequence[int],
    pads: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> ir.Value:
    count = op.rank_of(weight) - 2
    result = op.Conv(
        *_operands(op, input, weight, bias),
        strides=spatial(stride, count),
        pads=list(pads),
        dilations=spatial(dilation, count),
        group=groups,
    )
    return _result(op, result, count + 2)


@translates(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)
def conv(
    op: Op,
    input: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> ir.Value:
    """aten::conv1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=[1], SymInt[1] padding=[0], SymInt[1] dilation=[1], SymInt groups=1) -> Tensor
    aten::conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1], SymInt[2] padding=[0, 0], SymInt[2] dilation=[1, 1], SymInt groups=1) -> Tensor
    aten::conv3d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], SymInt[3] padding=[0, 0, 0], SymInt[3] dilation=[1, 1, 1], SymInt groups=1) -> Tensor
    """
    pads = spatial(padding, op.rank_of(weight) - 2)
    return _conv(op, input, weight, bias, stride, pads * 2, dilation, groups)


@translates(aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding)
def conv_padding(
    op: Op,
    input: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None = None,
    stride: Sequence[int] = (1,),
    padding: str = "valid",
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> ir.Value:
    """aten::conv1d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=[1], str padding="valid", SymInt[1] dilation=[1], SymInt groups=1) -> Tensor
    aten::conv2d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1], str padding="valid", SymInt[2] dilation=[1, 1], SymInt groups=1) -> Tensor
    aten::conv3d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], str padding="valid", SymInt[3] dilation=[1, 1, 1], SymInt groups=1) -> Tensor
    """
    kernel = op.dims(weight)[2:]
    begin, end = [0] * len(kernel), [0] * len(kernel)
    if padding == "same":
        for axis, (size, step) in enumerate(zip(kernel, spatial(dilation, len(kernel)), strict=True)):
            total = step * (int(size) - 1)
            # An odd one goes to the end, as in torch.
            begin[axis], end[axis] = total // 2, total - total // 2
    return _conv(op, input, weight, bias, stride, begin + end, dilation, groups)


@translates(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
def conv_transpose(
    op: Op,
    input: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
    dilation: Sequence[int] = (1,),
) -> ir.Value:
    """aten::conv_transpose1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=[1], SymInt[1] padding=[0], SymInt[1] output_padding=[0], SymInt groups=1, SymInt[1] dilation=[1]) -> Tensor
    aten::conv_transpose2d.input(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1], SymInt[2] padding=[0, 0], SymInt[2] output_padding=[0, 0], SymInt groups=1, SymInt[2] dilation=[1, 1]) -> Tensor
    aten::conv_transpose3d.input(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], SymInt[3] padding=[0, 0, 0], SymInt[3] output_padding=[0, 0, 0], SymInt groups=1, SymInt[3] dilation=[1, 1, 1]) -> Tensor
    """
    count = op.rank_of(weight) - 2
    strides, begin, extra = spatial(stride, count), spatial(padding, count), spatial(output_padding, count)
    # ONNX Runtime wants less output padding than stride; more output is less cut off at the end as well.
    moved = [min(pad, more) if more >= step else 0 for pad, more, step in zip(begin, extra, strides, strict=True)]
    end = [pad - move for pad, move in zip(begin, moved, strict=True)]
    result = op.ConvTranspose(
        *_operands(op, input, weight, bias),
        strides=strides,
        pads=[*begin, *end],
        output_padding=[more - move for more, move in zip(extra, moved, strict=True)],
        dilations=spatial(dilation, count),
        group=groups,
    )
    return _result(op, result, count + 2)
