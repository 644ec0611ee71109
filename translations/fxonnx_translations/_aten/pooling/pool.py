"""Max and average pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch

from ..._builder import dtypes
from ..._builder.dtypes import DOUBLE, FLOAT, INT32, INT64
from ..._builder.op import Op
from ..._builder.shape_inference import ints_of
from ..._builder.symbolic_dims import Dim
from ..._registry import translates
from ..conv import AxisWindows, padded_spatially, spatial, windowed
from ..indexing.axes import sliced

# ---- windows


# Types without a MaxPool kernel in ONNX Runtime, to the smallest type with one that represents all their numbers.
_MAX_CARRIERS = {
    ir.DataType.BFLOAT16: FLOAT,
    ir.DataType.INT16: FLOAT,
    ir.DataType.UINT16: FLOAT,
    INT32: DOUBLE,
}


@dataclass(frozen=True)
class Windows:
    """The windows of a pool, with one number per spatial axis.

    Attributes:
        kernel: Size of a window.
        strides: Distance between windows.
        pads: Padding before the first element, and after the last.
        dilations: Distance between elements of a window.
        ceil_mode: Whether the last window may exceed the padded input.
    """

    kernel: list[int]
    strides: list[int]
    pads: list[int]
    dilations: list[int]
    ceil_mode: bool

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)

    @property
    def spans(self) -> list[int]:
        """Distance from the first to the last element of a window, inclusive."""
        return [step * (size - 1) + 1 for size, step in zip(self.kernel, self.dilations, strict=True)]

    @property
    def reach(self) -> list[int]:
        """Maximal number of elements by which windows exceed the padded input: in ceil_mode less than one stride."""
        return [stride - 1 if self.ceil_mode else 0 for stride in self.strides]

    def overhang(self, sizes: Sequence[Dim], counts: Sequence[Dim]) -> list[int] | None:
        """Return the number of elements by which the last windows exceed the input, to express ceil_mode by padding.

        Args:
            sizes: Spatial sizes of the input.
            counts: Number of windows per axis, without those that torch drops because they begin in the end padding.

        Returns:
            Number of elements to pad after each axis, or None if a size is symbolic in ceil_mode.
        """
        if not self.ceil_mode:
            return self.pads
        result = []
        for size, count, stride, pad, span in zip(sizes, counts, self.strides, self.pads, self.spans, strict=True):
            if not isinstance(size, int) or not isinstance(count, int):
                return None
            result.append(max(0, (count - 1) * stride + span - size - pad))
        return result


def _windows(
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Windows:
    kernel, rank = list(kernel_size), len(kernel_size)
    strides = spatial(stride, rank) if stride else kernel
    return Windows(kernel, strides, spatial(padding, rank), spatial(dilation, rank), ceil_mode)


def batched(op: Op, value: ir.Value, rank: int) -> ir.Value:
    """Add the batch axis if it is missing."""
    return value if op.rank_of(value) == rank + 2 else op.Unsqueeze(value, [0])


def unbatched(op: Op, value: ir.Value, rank: int) -> ir.Value:
    """Remove the batch axis if torch's result has none."""
    return value if len(op.result.shape) == rank + 2 else op.Squeeze(value, [0])


def _counts(op: Op, windows: Windows) -> tuple[Dim, ...]:
    return op.result.shape[-windows.rank :]


def _padded(op: Op, value: ir.Value, before: Sequence[int], after: Sequence[int], fill: float) -> ir.Value:
    if not any([*before, *after]):
        return value
    return op.Pad(value, [0, 0, *before, 0, 0, *after], op.const(fill, op.dtype_of(value)))


# ---- max pooling


def _is_too_padded(op: Op, value: ir.Value, windows: Windows) -> bool:
    """Whether ONNX Runtime's MaxPool rejects the padding, which must be less than the kernel size."""
    after = windows.overhang(op.dims(value)[2:], _counts(op, windows)) or windows.pads
    return any(pad >= size for pad, size in zip([*windows.pads, *after], windows.kernel * 2, strict=True))


def max_windows(op: Op, value: ir.Value, windows: Windows, outputs: int) -> tuple[ir.Value, ...]:
    """MaxPool in a type with a kernel; ``value`` has a batch axis, and so have the results."""
    before, after = windows.pads, windows.overhang(op.dims(value)[2:], _counts(op, windows))
    ceil_mode = int(after is None)
    after = before if after is None else after
    if _is_too_padded(op, value, windows):
        value = _padded(op, value, before, after, _lowest(op.dtype_of(value)))
        before = after = [0] * windows.rank
    value = _kept_zeros(op, value)
    return op.multi(
        "MaxPool",
        value,
        outputs=outputs,
        kernel_shape=windows.kernel,
        strides=windows.strides,
        pads=[*before, *after],
        dilations=windows.dilations,
        ceil_mode=ceil_mode,
    )


def _kept_zeros(op: Op, value: ir.Value) -> ir.Value:
    """A value that is padded by -0.0 instead of 0.0; before opset 11, where the number is an attribute, by almost 0.

    ONNX Runtime (1.31) merges padding by 0.0 into MaxPool, which pads by the lowest number, and into AveragePool.
    """
    node = value.producer()
    if node is None or node.op_type != "Pad" or "mode" in node.attributes or not op.dtype_of(value).is_floating_point():
        return value
    source, *others = node.inputs
    fill = others[1].const_value if len(others) > 1 and others[1] is not None else None
    if source is None or (fill is not None and any(fill.tobytes())) or "value" in node.attributes:
        return value
    pads = others[0] if others else list(node.attributes["pads"].as_ints())
    return op.Pad(source, pads, op.const(-0.0 if op.opset >= 11 else -1e-37, op.dtype_of(value)))


def _lowest(dtype: ir.DataType) -> float:
    return -math.inf if dtype.is_floating_point() else torch.iinfo(dtypes.to_torch_dtype(dtype)).min


def _by_slices(
    op: Op, value: ir.Value, windows: Windows, fill: float, combine: Callable[[ir.Value, ir.Value], ir.Value]
) -> ir.Value:
    """Pool axis by axis: the elements at one position of all windows are a slice.

    For element types without kernels for the pooling operators.
    """
    after = [pad + more for pad, more in zip(windows.pads, windows.reach, strict=True)]
    value = _padded(op, value, windows.pads, after, fill)
    for axis, count in enumerate(_counts(op, windows)):
        size, stride, step = windows.kernel[axis], windows.strides[axis], windows.dilations[axis]
        result = None
        for position in range(0, size * step, step):
            end = position + (count - 1) * stride + 1
            piece = sliced(op, value, axis + 2, position, end, stride)
            result = piece if result is None else combine(result, piece)
        value = value if result is None else result
    return value


def _maxima(op: Op, self: ir.Value, windows: Windows) -> ir.Value:
    value, dtype = batched(op, self, windows.rank), op.dtype_of(self)
    if dtype == INT64:
        return unbatched(op, _by_slices(op, value, windows, _lowest(dtype), lambda a, b: op.Max(a, b)), windows.rank)
    carrier = max_carrier(op, dtype)
    (pooled,) = max_windows(op, op.cast(value, carrier), windows, 1)
    return unbatched(op, op.rounded(pooled, dtype), windows.rank)


def max_carrier(op: Op, dtype: ir.DataType) -> ir.DataType:
    if op.opset < 12 and dtype in (ir.DataType.INT8, ir.DataType.UINT8):
        return FLOAT
    return _MAX_CARRIERS.get(dtype, dtype)


@translates("aten::max_pool1d", "aten::max_pool2d", "aten::max_pool3d")
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
    return _maxima(op, self, _windows(kernel_size, stride, padding, dilation, ceil_mode))


def plane_indices(op: Op, indices: ir.Value, sizes: Sequence[Dim]) -> ir.Value:
    """Convert ONNX's indices into the whole tensor to torch's indices into the plane of a channel."""
    plane: Dim = 1
    for size in sizes:
        plane = plane * size
    return op.Mod(indices, op.size(plane))


@translates(
    "aten::max_pool1d_with_indices",
    "aten::max_pool2d_with_indices",
    "aten::max_pool3d_with_indices",
    exact="NaN propagates in windows that MaxPool cannot express",
)
def max_pool_with_indices(
    op: Op,
    self: ir.Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[ir.Value, ir.Value]:
    """aten::max_pool1d_with_indices(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=[0], int[1] dilation=[1], bool ceil_mode=False) -> (Tensor, Tensor)
    aten::max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)
    aten::max_pool3d_with_indices(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, int[3] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)
    """
    windows, dtype = _windows(kernel_size, stride, padding, dilation, ceil_mode), op.dtype_of(self)
    batch = batched(op, self, windows.rank)
    if dtype == INT64 or _is_too_padded(op, batch, windows):
        pooled, within = _max_with_indices_by_gather(op, batch, windows)
    else:
        pooled, indices = max_windows(op, op.cast(batch, max_carrier(op, dtype)), windows, 2)
        pooled, within = op.cast(pooled, dtype), plane_indices(op, indices, op.dims(batch)[2:])
    return unbatched(op, pooled, windows.rank), unbatched(op, within, windows.rank)


def _max_with_indices_by_gather(op: Op, value: ir.Value, windows: Windows) -> tuple[ir.Value, ir.Value]:
    """Return the maxima and their indices without MaxPool: gather the elements of all windows."""
    sizes, dtype = op.dims(value)[2:], op.dtype_of(value)
    plane = op.Range(0, op.scalar(math.prod(sizes)), 1)
    numbers = op.reshape(op.shaped(plane, (math.prod(sizes),)), sizes)
    elements = _unfold_windows(op, value, windows, _lowest(dtype))
    spots = _unfold_windows(op, numbers, windows, -1)
    largest = op.ReduceMax(elements, [-1], keepdims=1)
    inside = op.GreaterOrEqual(spots, 0)
    nowhere = op.const(torch.iinfo(torch.int64).max)
    first = op.ReduceMin(op.Where(op.And(op.Equal(elements, largest), inside), spots, nowhere), [-1], keepdims=0)
    largest = op.Squeeze(largest, [-1])
    if not op.exact_numerics or not dtype.is_floating_point():
        return largest, first
    # torch returns the index of the last NaN of a window.
    last = op.ReduceMax(op.Where(op.IsNaN(elements), spots, op.const(-1)), [-1], keepdims=0)
    unordered = op.GreaterOrEqual(last, 0)
    return op.Where(unordered, op.const(math.nan, dtype), largest), op.Where(unordered, last, first)


def _unfold_windows(op: Op, value: ir.Value, windows: Windows, fill: float) -> ir.Value:
    """Return the elements of each window along a new last axis."""
    rank, counts = windows.rank, _counts(op, windows)
    lead = op.rank_of(value) - rank
    rows = [AxisWindows(*axis) for axis in zip(counts, windows.kernel, windows.strides, windows.dilations, strict=True)]
    after = [pad + more for pad, more in zip(windows.pads, windows.reach, strict=True)]
    gathered = windowed(op, padded_spatially(op, value, windows.pads, after, fill), rows)
    perm = [*range(lead), *range(lead, lead + 2 * rank, 2), *range(lead + 1, lead + 2 * rank, 2)]
    dims = [*op.dims(value)[:lead], *counts, math.prod(windows.kernel)]
    return op.reshape(op.Transpose(gathered, perm=perm), dims)


# ---- average pooling


def _length(op: Op, windows: Windows, axis: int, size: Dim, count: Dim, include_pad: bool) -> int | ir.Value:
    """Return torch's divisor per window of an axis: its number of elements inside the (padded) input."""
    kernel, stride, pad = windows.kernel[axis], windows.strides[axis], windows.pads[axis]
    if not windows.ceil_mode and (include_pad or pad == 0):
        return kernel
    low, high = (-pad, size + pad) if include_pad else (0, size)
    first = op.Sub(op.Mul(op.Range(0, op.scalar(count), 1), stride), pad)
    last = op.Min(op.Add(first, kernel), op.scalar(high))
    return op.shaped(op.Sub(last, op.Max(first, low) if low == 0 else first), (count,))


def _exact_average(op: Op, value: ir.Value, windows: Windows, include_pad: bool, divisor: int | None) -> ir.Value:
    """Return the average for types without an AveragePool kernel: sums by slices, divided."""
    total = _by_slices(op, value, windows, 0, lambda a, b: op.Add(a, b))
    if divisor is not None:
        return op.Div(total, divisor)
    sizes, counts = op.dims(value)[2:], _counts(op, windows)
    volume, factors = 1, []
    for axis, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        length = _length(op, windows, axis, size, count, include_pad)
        if isinstance(length, int):
            volume *= length
        else:
            factors.append(op.Reshape(length, [-1] + [1] * (windows.rank - axis - 1)))
    # One division by the number of elements: integers are truncated once.
    elements = op.const(volume, INT64)
    for factor in factors:
        elements = op.Mul(factor, elements)
    return op.Div(total, op.cast(elements, op.dtype_of(value)))


def _merges_too_much(value: ir.Value, windows: Windows) -> bool:
    """Whether a Pad before an AveragePool would give it as much padding as its kernel, which ONNX Runtime rejects."""
    node = value.producer()
    if node is None or node.op_type != "Pad":
        return False
    amounts = ints_of(node.inputs[1]) if len(node.inputs) > 1 else list(node.attributes["pads"].as_ints())
    if amounts is None:  # they are not merged either
        return False
    rank, half = windows.rank, len(amounts) // 2
    before, after = amounts[:half][-rank:], amounts[-rank:]
    most = [max(pair) for pair in zip(before, after, strict=True)]
    return any(more + pad >= size for more, pad, size in zip(most, windows.pads, windows.kernel, strict=True))


def _average(op: Op, value: ir.Value, windows: Windows, include_pad: bool) -> ir.Value:
    """AveragePool; padding that torch counts and ONNX does not is added by a separate Pad."""
    if _merges_too_much(value, windows):
        value = _kept_zeros(op, value)
    pads, nothing = windows.pads, [0] * windows.rank
    counts = _counts(op, windows)
    after = windows.overhang(op.dims(value)[2:], counts)
    begin, end, attributes = pads, pads if after is None else after, {}
    if after is None:
        attributes["ceil_mode"] = 1
    if include_pad and any(pads):
        if windows.ceil_mode:
            # torch counts the padding, but not the elements that ceil_mode adds.
            value, begin = _padded(op, value, pads, pads, 0), nothing
            end = nothing if after is None else [max(0, more - pad) for more, pad in zip(after, pads, strict=True)]
        else:
            attributes["count_include_pad"] = 1
    pooled = op.AveragePool(
        value, kernel_shape=windows.kernel, strides=windows.strides, pads=[*begin, *end], **attributes
    )
    if after is None and begin is not pads:
        # ONNX keeps a last window that begins in the padding, since the padding is part of its input here.
        dims = (*op.dims(value)[:2], *counts)
        axes = list(range(2, 2 + windows.rank))
        pooled = op.shaped(op.Slice(pooled, [0] * windows.rank, op.sizes(counts), axes), dims)
    return pooled


@translates("aten::avg_pool1d", "aten::avg_pool2d", "aten::avg_pool3d")
def avg_pool(
    op: Op,
    self: ir.Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> ir.Value:
    """aten::avg_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=[0], bool ceil_mode=False, bool count_include_pad=True) -> Tensor
    aten::avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor
    aten::avg_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor
    """
    windows, dtype = _windows(kernel_size, stride, padding, (1,), ceil_mode), op.dtype_of(self)
    value = batched(op, self, windows.rank)
    if dtype in (DOUBLE, INT64):
        # ONNX Runtime's AveragePool has kernels for FLOAT and FLOAT16.
        return unbatched(op, _exact_average(op, value, windows, count_include_pad, divisor_override), windows.rank)
    if not op.has_kernel("AveragePool", dtype):
        value = op.widened(value, FLOAT)
    if divisor_override is None:
        pooled = _average(op, value, windows, count_include_pad)
    elif ceil_mode:
        pooled = _exact_average(op, value, windows, count_include_pad, divisor_override)
    else:
        pooled = op.Mul(_average(op, value, windows, True), math.prod(windows.kernel) / divisor_override)
    return unbatched(op, op.cast(pooled, dtype), windows.rank)
