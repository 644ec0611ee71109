"""Convolutions by the operators that torch's decompositions and older programs turn all others into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from .._builder.op import Op
from .._builder.symbolic_dims import Dim
from .._registry import translates
from .conv import conv, conv_transpose


@translates("aten::convolution")
def convolution(
    op: Op,
    input: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    stride: Sequence[Dim],
    padding: Sequence[Dim],
    dilation: Sequence[Dim],
    transposed: bool,
    output_padding: Sequence[Dim],
    groups: Dim,
) -> ir.Value:
    """aten::convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor"""
    if transposed:
        return conv_transpose(op, input, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(op, input, weight, bias, stride, padding, dilation, groups)


@translates("aten::_convolution", "aten::_convolution.deprecated")
def _convolution(
    op: Op,
    input: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    stride: Sequence[Dim],
    padding: Sequence[Dim],
    dilation: Sequence[Dim],
    transposed: bool,
    output_padding: Sequence[Dim],
    groups: Dim,
    benchmark: bool,
    deterministic: bool,
    cudnn_enabled: bool,
    allow_tf32: bool = False,
) -> ir.Value:
    """aten::_convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool benchmark, bool deterministic, bool cudnn_enabled, bool allow_tf32) -> Tensor
    aten::_convolution.deprecated(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, int[] output_padding, SymInt groups, bool benchmark, bool deterministic, bool cudnn_enabled) -> Tensor
    """
    return convolution(op, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


@translates("aten::conv_tbc")
def conv_tbc(op: Op, self: ir.Value, weight: ir.Value, bias: ir.Value, pad: int = 0) -> ir.Value:
    """aten::conv_tbc(Tensor self, Tensor weight, Tensor bias, int pad=0) -> Tensor"""
    # time, batch, channels; the weight is kernel, inputs, outputs.
    time, batch, channels = op.result.shape
    value, factors = op.Transpose(self, perm=[1, 2, 0]), op.Transpose(weight, perm=[2, 1, 0])
    inner = Op(op.builder, [replace(op.result, shape=(batch, channels, time))], op.shared)
    made = conv(inner, value, factors, bias, [1], [pad])
    return op.Transpose(made, perm=[2, 0, 1])
