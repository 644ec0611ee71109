"""Shape-only kernels of operators whose own kernel specializes dynamic sizes.

torch's kernels take sizes as plain C++ integers, choose an algorithm by size, or loop over time steps. The replacements
compute the shapes of the results only, which is sufficient with fake tensors. In order: convolution and pooling,
products and distances, indexing and shapes, recurrent layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_guarding_hint, statically_known_true

from fxonnx_translations._torch_compat import check, prims_common

__all__ = [
    "batch_norm",
    "cdist",
    "combinations",
    "conv_tbc",
    "cov",
    "ctc_loss",
    "fake_quantize",
    "fill_diagonal",
    "kron",
    "lstm",
    "lstsq",
    "max_pool1d",
    "narrow",
    "of_contiguous",
    "rnn",
    "scaled_dot_product_attention",
    "shape_as_tensor",
    "take_along_dim",
]

# Functions of torch without type annotations.
_broadcast: Callable[..., Sequence[int]] = torch.broadcast_shapes


def conv_tbc(original: Callable[..., Any], self: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """``aten::conv_tbc`` of [time, batch, channels], whose own kernel reads the sizes as plain integers."""
    return self.new_empty([self.size(0) + 2 * pad - weight.size(0) + 1, self.size(1), weight.size(2)])


def batch_norm(original: Callable[..., Any], input: Tensor, *arguments: Any) -> Tensor:
    """``aten::batch_norm``, whose meta kernel keeps the strides of transposed tensors; torch's results are contiguous.

    An unbacked number of elements, of which there may be none, has the shape only. On a GPU, torch chooses a kernel by
    the size of the batch, which would limit it.
    """
    if not has_guarding_hint(input.numel()):
        return torch.empty_like(input)
    result: Tensor = original(input, *arguments) if input.device.type == "cpu" else torch.empty_like(input)
    strides = result.stride()
    # The last axis, or the channels of channels_last.
    dense = (strides[-1], strides[1]) if len(strides) >= 4 else (strides[-1],)
    return result if any(statically_known_true(step == 1) for step in dense) else result.new_empty(result.shape)


def fill_diagonal(original: Callable[..., Any], self: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """``aten::fill_diagonal_``, which fills a strided view of as many elements as the smallest size."""
    check(self.dim() >= 2, lambda: f"fill_diagonal_ of {self.dim()} axes; it takes at least two")
    return self


def fake_quantize(original: Callable[..., Any], self: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    """The operators ``fake_quantize_*_cachemask``: the quantized tensor and the mask of the elements in range."""
    return torch.empty_like(self), torch.empty_like(self, dtype=torch.bool)


def max_pool1d(
    original: Callable[..., Any],
    self: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Tensor:
    """``aten::max_pool1d``, as ``max_pool2d`` of an image with one row."""
    result: Tensor = torch.ops.aten.max_pool2d(
        self.unsqueeze(-2),
        (1, *kernel_size),
        (1, *(stride or kernel_size)),
        (0, *padding),
        (1, *dilation),
        ceil_mode,
    )
    return result.squeeze(-2)


def of_contiguous(original: Callable[..., Tensor], self: Tensor, *arguments: Any) -> Tensor:
    """``aten::pixel_shuffle``, ``pixel_unshuffle`` and ``col2im``, whose decompositions take a view of their input."""
    result = original(torch.empty_like(self, memory_format=torch.contiguous_format), *arguments)
    return result.contiguous(memory_format=prims_common.suggest_memory_format(self))


def kron(original: Callable[..., Any], self: Tensor, other: Tensor) -> Tensor:
    """``aten::kron``: the product of the sizes per axis, aligned at the last axis."""
    rank = max(self.dim(), other.dim())
    shapes = [(1,) * (rank - tensor.dim()) + tuple(tensor.shape) for tensor in (self, other)]
    dtype = torch.result_type(self, other)
    return self.new_empty([one * two for one, two in zip(*shapes, strict=True)], dtype=dtype)


def cdist(
    original: Callable[..., Any], x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: int | None = None
) -> Tensor:
    """``aten::cdist``, whose own kernel chooses a different algorithm above 25 rows."""
    check(x1.size(-1) == x2.size(-1), lambda: f"points of {x1.size(-1)} and {x2.size(-1)} coordinates")
    batch = _broadcast(x1.shape[:-2], x2.shape[:-2])
    return x1.new_empty([*batch, x1.size(-2), x2.size(-2)])


def cov(
    original: Callable[..., Any],
    self: Tensor,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """``aten::cov``, whose own kernel checks the values of weights and of the divisor."""
    check(self.dim() <= 2, lambda: f"cov of {self.dim()} axes; it takes up to two")
    rows = self.shape[0] if self.dim() == 2 else 1
    dtype = self.dtype if self.dtype.is_floating_point or self.dtype.is_complex else torch.get_default_dtype()
    for weights in (fweights, aweights):
        if weights is not None and weights.dtype.is_floating_point:
            dtype = torch.promote_types(dtype, weights.dtype)
    return self.new_empty([] if rows == 1 else [rows, rows], dtype=dtype)


def ctc_loss(
    original: Callable[..., Any],
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """``aten::ctc_loss``, whose own kernel reads the lengths."""
    is_batch = log_probs.dim() == 3 and reduction == 0
    return log_probs.new_empty([log_probs.shape[1]] if is_batch else [])


def lstsq(
    original: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]],
    self: Tensor,
    b: Tensor,
    rcond: float | None = None,
    *,
    driver: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``aten::linalg_lstsq``: whether there are residuals depends on the ranks, which are taken to be full."""
    *batch, rows, columns = self.shape
    is_vector = b.shape == self.shape[:-1]
    if not is_vector and b.shape[:-1] != self.shape[:-1]:
        return original(self, b, rcond, driver=driver)
    right = (1,) if is_vector else (b.shape[-1],)
    solution = self.new_empty([*batch, columns, *(() if is_vector else right)])
    has_residuals = rows > columns and driver in ("gels", "gelsd", "gelss")
    residuals = self.new_empty([*batch, *right] if has_residuals else [0])
    rank = self.new_empty([0] if driver == "gels" else list(batch), dtype=torch.int64)
    has_values = driver in ("gelsd", "gelss")
    values = self.new_empty([*batch, min(rows, columns)] if has_values else [0])
    return solution, residuals, rank, values


def narrow(original: Callable[..., Any], self: Tensor, dim: int, start: Tensor, length: int) -> Tensor:
    """``aten::narrow.Tensor``, whose own kernel reads the value of ``start``."""
    check(start.dim() == 0 and not start.dtype.is_floating_point, lambda: "start must be an integer of rank 0")
    return self.narrow(dim, 0, length)


def combinations(original: Callable[..., Tensor], self: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """``aten::combinations``, whose own kernel selects from all tuples by a mask."""
    if r < 1 or self.dim() != 1:
        return original(self, r, with_replacement)
    # The positions are a constant, so that the size must be the example's.
    size = int(self.shape[0])
    return self.new_empty([math.comb(size + r - 1 if with_replacement else size, r) if size else 0, r])


def take_along_dim(original: Callable[..., Any], self: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """``aten::take_along_dim``: all axes except ``dim`` are broadcast."""
    if dim is None:
        return self.new_empty([indices.numel()])
    check(self.dim() == indices.dim(), lambda: f"the indices have {indices.dim()} axes, the input has {self.dim()}")
    axis = dim % self.dim()
    shape = list(_broadcast(self.narrow(axis, 0, 1).shape, indices.narrow(axis, 0, 1).shape))
    return self.new_empty([*shape[:axis], indices.shape[axis], *shape[axis + 1 :]])


def shape_as_tensor(original: Callable[..., Any], self: Tensor) -> Tensor:
    """``aten::_shape_as_tensor``, whose own kernel reads memory that fake tensors do not have."""
    return self.new_empty([self.dim()], dtype=torch.int64)


def scaled_dot_product_attention(
    original: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *args: Any,
    **options: Any,
) -> Tensor:
    """``aten::scaled_dot_product_attention``, whose own kernel compares the sizes of a mask with 1."""
    mask = () if attn_mask is None else attn_mask.shape
    if all(has_guarding_hint(size) for size in (*query.shape, *key.shape, *value.shape, *mask)):
        return original(query, key, value, attn_mask, *args, **options)
    return query.new_empty([*query.shape[:-1], value.shape[-1]])


def lstm(
    original: Callable[..., Any],
    input: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """``aten::lstm.input``: the output sequence, the hidden state and the cell state."""
    return _output_sequence(input, hx[0], bidirectional, batch_first), _empty_like(hx[0]), _empty_like(hx[1])


def rnn(
    original: Callable[..., Any],
    input: Tensor,
    hx: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor]:
    """``aten::gru.input``, ``rnn_tanh.input`` and ``rnn_relu.input``: the output sequence and the hidden state."""
    return _output_sequence(input, hx, bidirectional, batch_first), _empty_like(hx)


def _output_sequence(input: Tensor, hidden: Tensor, bidirectional: bool, batch_first: bool) -> Tensor:
    batch = input.size(0 if batch_first else 1)
    # A check instead of a comparison: equal unbacked sizes become one dim of the exported model.
    check(hidden.size(1) == batch, lambda: f"the hidden state is for {hidden.size(1)} sequences, the input has {batch}")
    channels = hidden.size(2) * (2 if bidirectional else 1)
    if not batch_first:
        return input.new_empty([*input.shape[:-1], channels])
    # torch computes by time, and as_strided depends on the memory layout.
    return input.new_empty([input.size(1), batch, channels]).transpose(0, 1)


def _empty_like(state: Tensor) -> Tensor:
    return state.new_empty(state.shape)
