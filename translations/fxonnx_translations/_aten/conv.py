"""Convolutions, transposed convolutions, their gradients, and sliding blocks (``F.unfold`` and ``F.fold``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
import sympy
import torch

from .._builder.constants import array_of
from .._builder.op import Op, Unsupported
from .._builder.shape_inference import ints_of
from .._builder.symbolic_dims import Dim, is_static
from .._registry import OpCall, translates
from .._torch_compat import FloorDiv

__all__ = [
    "AxisWindows",
    "padded_spatially",
    "windowed",
]


# ---- operands


def spatial(value: Dim | Sequence[Dim], count: int) -> list[Dim]:
    """Return torch's int or list as one number per spatial axis."""
    values = list(value) if isinstance(value, Sequence) else [value]
    return values * count if len(values) == 1 else values


def _operands(op: Op, input: ir.Value, weight: ir.Value, bias: ir.Value | None) -> list[ir.Value]:
    """Return the operands in an element type with a Conv kernel, with a batch axis."""
    dtype = op.dtype_of(input)
    # Sums of products wrap around equally in every integer type.
    carrier = dtype if dtype.is_floating_point() else ir.DataType.INT64
    # torch also accepts one sample without a batch axis.
    value = input if op.rank_of(input) == op.rank_of(weight) else op.Unsqueeze(input, [0])
    return [op.cast(operand, carrier) for operand in (value, weight, bias) if operand is not None]


# ---- convolutions as matrix products


def _needs_matmul(op: Op, value: ir.Value) -> bool:
    """Whether ONNX Runtime has no Conv kernel for this type, but a MatMul kernel."""
    dtype = op.dtype_of(value)
    return dtype == ir.DataType.DOUBLE or not dtype.is_floating_point()


def _conv_as_matmul(
    op: Op, value: ir.Value, weight: ir.Value, bias: ir.Value | None, groups: Dim, rows: Sequence[AxisWindows]
) -> ir.Value:
    """A convolution as a matrix product."""
    windows, rank = windowed(op, value, rows), len(rows)
    perm = [0, 1, *range(3, 3 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2)]
    spots = math.prod(row.count for row in rows)
    columns = op.reshape(op.Transpose(windows, perm=perm), [op.dims(value)[0], groups, op.dims(weight)[2], spots])
    batch, outputs = op.result.shape[:2] if op.rank_of(value) == len(op.result.shape) else (1, op.result.shape[0])
    product = op.reshape(op.MatMul(weight, columns), [batch, outputs, *(row.count for row in rows)])
    return product if bias is None else op.Add(product, op.Reshape(bias, [-1] + [1] * rank))


def _result(op: Op, value: ir.Value, rank: int) -> ir.Value:
    unbatched = len(op.result.shape) < rank
    return op.cast(op.Squeeze(value, [0]) if unbatched else value, op.result.dtype)


# ---- convolution


def _fuse_preceding_pad(op: Op, value: ir.Value, pads: Sequence[Dim]) -> tuple[ir.Value, Sequence[Dim]]:
    """Fuse a preceding Pad with zeros: return its input and the total padding, which may be asymmetric."""
    node = value.producer()
    if node is None or node.op_type != "Pad" or node.domain != "" or node.inputs[0] is None:
        return value, pads
    mode = node.attributes.get("mode")
    filler = array_of(node.inputs[2]) if len(node.inputs) > 2 else np.zeros(())
    amounts = ints_of(node.inputs[1])
    if (mode is not None and mode.as_string() != "constant") or filler is None or filler.any() or amounts is None:
        return value, pads
    begin, end = amounts[: len(amounts) // 2], amounts[len(amounts) // 2 :]
    spatial_axes = len(pads) // 2
    if len(node.inputs) > 3 or len(begin) != spatial_axes + 2 or any([*begin[:2], *end[:2]]) or min(amounts) < 0:
        return value, pads
    return node.inputs[0], [pad + more for pad, more in zip(pads, begin[2:] + end[2:], strict=True)]


def _kernel_shape(op: Op, weight: ir.Value) -> list[Dim] | None:
    """The sizes of the kernel, which compilers for FPGAs and NPUs read from the attribute; None if they are not static."""
    kernel = list(op.dims(weight)[2:])
    return kernel if is_static(kernel) else None


def _conv(
    op: Op,
    input: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    stride: Sequence[Dim],
    pads: Sequence[Dim],
    dilation: Sequence[Dim],
    groups: Dim,
) -> ir.Value:
    count = op.rank_of(weight) - 2
    strides, dilations = spatial(stride, count), spatial(dilation, count)
    value, factors, *added = _operands(op, input, weight, bias)
    value, pads = _fuse_preceding_pad(op, value, pads)
    # Attributes are numbers.
    if _needs_matmul(op, value) or not is_static([*strides, *dilations, groups]):
        padded = padded_spatially(op, value, pads[:count], pads[count:])
        outputs, channels, *kernel = op.dims(weight)
        counts = op.result.shape[-count:]
        rows = [AxisWindows(*axis) for axis in zip(counts, kernel, strides, dilations, strict=True)]
        matrices = op.reshape(factors, [groups, _channels_per_group(outputs, groups), _product_of([channels, *kernel])])
        return _result(op, _conv_as_matmul(op, padded, matrices, added[0] if added else None, groups, rows), count + 2)
    if not is_static(pads):
        value, pads = padded_spatially(op, value, pads[:count], pads[count:]), [0] * len(pads)
    result = op.Conv(
        value,
        factors,
        *added,
        kernel_shape=_kernel_shape(op, factors),
        strides=strides,
        pads=list(pads),
        dilations=dilations,
        group=groups,
    )
    return _result(op, result, count + 2)


CONVOLUTIONS = tuple(f"aten::conv{rank}d{overload}" for overload in ("", ".padding") for rank in (1, 2, 3))


@translates(*CONVOLUTIONS)
def conv(
    op: Op,
    input: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None = None,
    stride: Sequence[Dim] = (1,),
    padding: Sequence[Dim] | str = (0,),
    dilation: Sequence[Dim] = (1,),
    groups: Dim = 1,
) -> ir.Value:
    """aten::conv1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=[1], SymInt[1] padding=[0], SymInt[1] dilation=[1], SymInt groups=1) -> Tensor
    aten::conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1], SymInt[2] padding=[0, 0], SymInt[2] dilation=[1, 1], SymInt groups=1) -> Tensor
    aten::conv3d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], SymInt[3] padding=[0, 0, 0], SymInt[3] dilation=[1, 1, 1], SymInt groups=1) -> Tensor
    aten::conv1d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=[1], str padding="valid", SymInt[1] dilation=[1], SymInt groups=1) -> Tensor
    aten::conv2d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1], str padding="valid", SymInt[2] dilation=[1, 1], SymInt groups=1) -> Tensor
    aten::conv3d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], str padding="valid", SymInt[3] dilation=[1, 1, 1], SymInt groups=1) -> Tensor
    """
    kernel = op.dims(weight)[2:]
    if not isinstance(padding, str):
        return _conv(op, input, weight, bias, stride, spatial(padding, len(kernel)) * 2, dilation, groups)
    begin, end = [0] * len(kernel), [0] * len(kernel)
    if padding == "same":
        for axis, (size, step) in enumerate(zip(kernel, spatial(dilation, len(kernel)), strict=True)):
            total = step * (int(size) - 1)
            # The odd element goes to the end, as in torch.
            begin[axis], end[axis] = total // 2, total - total // 2
    return _conv(op, input, weight, bias, stride, begin + end, dilation, groups)


# ---- transposed convolution


@translates("aten::conv_transpose1d", "aten::conv_transpose2d.input", "aten::conv_transpose3d.input")
def conv_transpose(
    op: Op,
    input: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None = None,
    stride: Sequence[Dim] = (1,),
    padding: Sequence[Dim] = (0,),
    output_padding: Sequence[Dim] = (0,),
    groups: Dim = 1,
    dilation: Sequence[Dim] = (1,),
) -> ir.Value:
    """aten::conv_transpose1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=[1], SymInt[1] padding=[0], SymInt[1] output_padding=[0], SymInt groups=1, SymInt[1] dilation=[1]) -> Tensor
    aten::conv_transpose2d.input(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1], SymInt[2] padding=[0, 0], SymInt[2] output_padding=[0, 0], SymInt groups=1, SymInt[2] dilation=[1, 1]) -> Tensor
    aten::conv_transpose3d.input(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], SymInt[3] padding=[0, 0, 0], SymInt[3] output_padding=[0, 0, 0], SymInt groups=1, SymInt[3] dilation=[1, 1, 1]) -> Tensor
    """
    count = op.rank_of(weight) - 2
    strides, begin, extra = spatial(stride, count), spatial(padding, count), spatial(output_padding, count)
    dilations = spatial(dilation, count)
    value, factors, *added = _operands(op, input, weight, bias)
    if _needs_matmul(op, value) or not is_static([*strides, *begin, *extra, *dilations, groups]):
        result = _conv_transpose_as_matmul(
            op, value, factors, added[0] if added else None, strides, begin, extra, groups, dilations
        )
        return _result(op, result, count + 2)
    # ONNX Runtime requires output padding below the stride; less padding at the end enlarges the output as well.
    moved = [min(pad, more) if more >= step else 0 for pad, more, step in zip(begin, extra, strides, strict=True)]
    end = [pad - move for pad, move in zip(begin, moved, strict=True)]
    result = op.ConvTranspose(
        value,
        factors,
        *added,
        kernel_shape=_kernel_shape(op, factors),
        strides=strides,
        pads=[*begin, *end],
        output_padding=[more - move for more, move in zip(extra, moved, strict=True)],
        dilations=dilations,
        group=groups,
    )
    return _result(op, result, count + 2)


def _conv_transpose_as_matmul(
    op: Op,
    value: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    strides: Sequence[Dim],
    padding: Sequence[Dim],
    output_padding: Sequence[Dim],
    groups: Dim,
    dilations: Sequence[Dim],
) -> ir.Value:
    """A transposed convolution as a convolution of the dilated input with the flipped weight."""
    batch, channels, *sizes = op.dims(value)
    inputs, outputs, *kernel = op.dims(weight)
    rank, apart = len(sizes), [step - 1 for step in strides]
    if any(apart):
        columns = op.Unsqueeze(value, [3 + 2 * axis for axis in range(rank)])
        zeros = [0, 0] + [pad for more in apart for pad in (0, more)]
        spread = op.Pad(columns, op.sizes([*[0] * len(zeros), *zeros]))
        wide = [size * step for size, step in zip(sizes, strides, strict=True)]
        value = op.shaped(op.Reshape(spread, op.sizes([batch, channels, *wide])), (batch, channels, *wide))
    reach = [step * (size - 1) for step, size in zip(dilations, kernel, strict=True)]
    before = [far - pad for far, pad in zip(reach, padding, strict=True)]
    after = [far + more - zero for far, more, zero in zip(before, output_padding, apart, strict=True)]
    counts = op.result.shape[-rank:]
    rows = [
        AxisWindows(count, size, 1, step, True) for count, size, step in zip(counts, kernel, dilations, strict=True)
    ]
    grouped = op.reshape(weight, [groups, _channels_per_group(inputs, groups), outputs, *kernel])
    swapped = op.Transpose(grouped, perm=[0, 2, 1, *range(3, 3 + rank)])
    matrices = op.reshape(swapped, [groups, outputs, _channels_per_group(inputs, groups) * math.prod(kernel)])
    return _conv_as_matmul(op, padded_spatially(op, value, before, after), matrices, bias, groups, rows)


def _channels_per_group(channels: Dim, groups: Dim) -> Dim:
    """Channels of one group."""
    if isinstance(channels, int) and isinstance(groups, int):
        return channels // groups
    return _number(channels / sympy.sympify(groups))


def _product_of(dims: Sequence[Dim]) -> Dim:
    return _number(sympy.prod(dims))


def _number(expr: Dim) -> Dim:
    return int(expr) if isinstance(expr, int) or expr.is_Integer else expr


# ---- general convolution


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
    # The input is [time, batch, channels], the weight [kernel, inputs, outputs].
    time, batch, channels = op.result.shape
    value, factors = op.Transpose(self, perm=[1, 2, 0]), op.Transpose(weight, perm=[2, 1, 0])
    inner = Op(op.builder, [replace(op.result, shape=(batch, channels, time))], op.shared)
    made = conv(inner, value, factors, bias, [1], [pad])
    return op.Transpose(made, perm=[2, 0, 1])


# ---- gradients


@translates("aten::convolution_backward")
def convolution_backward(
    op: Op,
    grad_output: ir.Value,
    input: ir.Value,
    weight: ir.Value,
    bias_sizes: Sequence[Dim] | None,
    stride: Sequence[Dim],
    padding: Sequence[Dim],
    dilation: Sequence[Dim],
    transposed: bool,
    output_padding: Sequence[Dim],
    groups: Dim,
    output_mask: Sequence[bool],
) -> list[ir.Value]:
    """aten::convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"""
    if transposed and output_mask[1]:
        raise Unsupported("gradients of the weights of a transposed convolution")
    count = op.rank_of(weight) - 2
    step, pad, spread = spatial(stride, count), spatial(padding, count), spatial(dilation, count)
    of_input = of_weight = of_bias = None
    if output_mask[0]:
        inner = Op(op.builder, [replace(op.result, shape=tuple(op.dims(input)))], op.shared)
        if transposed:
            of_input = conv(inner, grad_output, weight, None, step, pad, spread, groups)
        else:
            # The input is at most one stride shorter than this: windows begin at multiples of the stride.
            extra = [one - 1 for one in step]
            longest = conv_transpose(inner, grad_output, weight, None, step, pad, extra, groups, spread)
            of_input = _first_elements(op, longest, op.dims(input)[-count:])
    if output_mask[1]:
        of_weight = _weight_gradient(op, grad_output, input, weight, step, pad, spread, groups)
    if output_mask[2]:
        axes = [axis for axis in range(count + 2) if axis != 1]
        of_bias = op.ReduceSum(grad_output, axes, keepdims=0)
    return [value for value in (of_input, of_weight, of_bias) if value is not None]


def _weight_gradient(
    op: Op,
    grad_output: ir.Value,
    input: ir.Value,
    weight: ir.Value,
    stride: Sequence[Dim],
    padding: Sequence[Dim],
    dilation: Sequence[Dim],
    groups: Dim,
) -> ir.Value:
    """The convolution of the input with the gradients, in which samples are channels, and the stride the dilation."""
    count = op.rank_of(weight) - 2
    batch, channels, *sizes = op.dims(input)
    axes = list(range(3, count + 3))
    grouped = op.reshape(input, (batch, groups, channels // groups, *sizes))
    data = op.reshape(op.Transpose(grouped, perm=[2, 1, 0, *axes]), (channels // groups, groups * batch, *sizes))
    factors = op.Transpose(grad_output, perm=[1, 0, *range(2, count + 2)])
    inner = Op(op.builder, [replace(op.result, shape=tuple(op.dims(weight)))], op.shared)
    rows = zip(sizes, op.dims(grad_output)[-count:], dilation, padding, stride, strict=True)
    counts = [_block_count(*row) for row in rows]
    made = conv(inner, data, factors, None, dilation, padding, stride, groups)
    made = op.shaped(made, (channels // groups, op.dims(weight)[0], *counts))
    kept = _first_elements(op, made, op.dims(weight)[-count:])
    return op.Transpose(kept, perm=[1, 0, *range(2, count + 2)])


def _first_elements(op: Op, value: ir.Value, sizes: Sequence[Dim]) -> ir.Value:
    """The first elements along the last axes."""
    axes = list(range(-len(sizes), 0))
    return op.Slice(value, op.const([0] * len(sizes)), op.sizes(sizes), op.const(axes))


# ---- windows


@dataclass(frozen=True)
class AxisWindows:
    """The windows along one axis.

    Attributes:
        count: Number of windows.
        size: Elements of a window.
        stride: Distance between windows.
        dilation: Distance between elements of a window.
        mirrored: Whether the elements of a window are in reverse order.
    """

    count: Dim
    size: Dim
    stride: Dim = 1
    dilation: Dim = 1
    mirrored: bool = False

    def positions(self, op: Op) -> ir.Value:
        """Return the positions of the elements of each window, INT64 [count, size]."""
        count, size, stride, dilation = self.count, self.size, self.stride, self.dilation
        if isinstance(count, int) and isinstance(size, int) and isinstance(stride, int) and isinstance(dilation, int):
            known = torch.arange(size) * dilation
            known = known.flip(0) if self.mirrored else known
            return op.const(torch.arange(count)[:, None] * stride + known)
        first = op.Mul(op.Range(0, op.scalar(self.count), 1), op.scalar(self.stride))
        number = op.Range(0, op.scalar(self.size), 1)
        if self.mirrored:
            number = op.Sub(op.scalar(self.size - 1), number)
        steps = op.Mul(number, op.scalar(self.dilation))
        return op.shaped(op.Add(op.Unsqueeze(first, [1]), steps), (self.count, self.size))


def windowed(op: Op, value: ir.Value, rows: Sequence[AxisWindows]) -> ir.Value:
    """Replace each of the last axes by two: the windows, and the elements of a window."""
    position = op.rank_of(value) - len(rows)
    for row in rows:
        dims = op.dims(value)
        value = op.shaped(
            op.Gather(value, row.positions(op), axis=position),
            (*dims[:position], row.count, row.size, *dims[position + 1 :]),
        )
        position += 2
    return value


def padded_spatially(op: Op, value: ir.Value, before: Sequence[Dim], after: Sequence[Dim], fill: float = 0) -> ir.Value:
    """Pad the last axes with a number; negative padding crops."""
    if all(pad == 0 for pad in [*before, *after]):
        return value
    dims = op.dims(value)
    lead = len(dims) - len(before)
    inputs = [op.const(fill, op.dtype_of(value))] if fill else []
    padded = op.Pad(value, op.sizes([*[0] * lead, *before, *[0] * lead, *after]), *inputs)
    sizes = [low + size + high for low, size, high in zip(before, dims[lead:], after, strict=True)]
    return op.shaped(padded, (*dims[:lead], *sizes))


# ---- sliding blocks


def _block_count(size: Dim, kernel: Dim, stride: Dim, padding: Dim, dilation: Dim) -> Dim:
    """Return the number of blocks along an axis."""
    last = size + 2 * padding - dilation * (kernel - 1) - 1
    return (last // stride if isinstance(last, int) else FloorDiv(last, stride)) + 1


@translates("aten::im2col")
def im2col(
    op: Op,
    self: ir.Value,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> ir.Value:
    """aten::im2col(Tensor self, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor"""
    value = self if op.rank_of(self) == 4 else op.Unsqueeze(self, [0])
    pads = spatial(padding, 2)
    axes = zip(op.dims(value)[2:], spatial(kernel_size, 2), spatial(stride, 2), pads, spatial(dilation, 2), strict=True)
    rows = [
        AxisWindows(_block_count(size, kernel, step, pad, dilated), kernel, step, dilated)
        for size, kernel, step, pad, dilated in axes
    ]
    # (N, C, rows of blocks, kernel height, columns of blocks, kernel width)
    blocks = windowed(op, padded_spatially(op, value, pads, pads), rows)
    return op.reshape(op.Transpose(blocks, perm=[0, 1, 3, 5, 2, 4]), op.result.shape)


_COL2IM_SINCE = 18


def _require_col2im(call: OpCall) -> str | None:
    """Reject the calls that Col2Im, whose kernel in ONNX Runtime computes in float32, does not compute exactly."""
    if call.opset < _COL2IM_SINCE:
        return f"Col2Im is of opset {_COL2IM_SINCE}"
    dtype = call.arguments["self"].dtype
    accepted = dtype in (torch.float32, torch.float16, torch.bfloat16)
    return None if accepted else f"Col2Im is not computed in {dtype}"


@translates("aten::col2im", accepts=_require_col2im)
def col2im(
    op: Op,
    self: ir.Value,
    output_size: Sequence[Dim],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> ir.Value:
    """aten::col2im(Tensor self, SymInt[2] output_size, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor"""
    pads = spatial(padding, 2)
    batch = self if op.rank_of(self) == 3 else op.Unsqueeze(self, [0])
    blocks = op.Col2Im(
        batch,
        op.sizes(list(output_size)),
        op.const(spatial(kernel_size, 2)),
        dilations=spatial(dilation, 2),
        pads=[*pads, *pads],
        strides=spatial(stride, 2),
    )
    return blocks if op.rank_of(self) == 3 else op.Squeeze(blocks, [0])
